# Class-conditional latent diffusion on ImageNet at 256×256, trained as DiT:
# 400,000 iterations of 256 images, at a constant lr without warm-up.
_base_ = [
    './datasets/imagenet_diffusion_256.py',
    './mmpretrain_runtime.py',
]

# So that the packages' own tools know the plugin as well.
custom_imports = dict(imports=['mmweightformer'], allow_failed_imports=False)

# The folder of diffusers' AutoencoderKL, 8 pixels a latent.
autoencoder = 'checkpoints/sd-vae-ft-ema'

model = dict(
    type='ClassConditionalDiffusion',
    denoiser=dict(in_channels=4, num_classes=1000),
    input_size=32,
    noise_schedule=dict(beta_schedule='linear', clip_sample=False),
    drop_label_rate=0.1,
    autoencoder=autoencoder,
    # Guidance of 1 is none, as in the comparisons of DiT's sizes.
    test_cfg=dict(sampler='ddpm', num_steps=250, guidance_scale=1.0, seed=0))

# 8 GPUs.
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.))
auto_scale_lr = dict(base_batch_size=8 * 32)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=400000)
test_cfg = dict()

# Samples are those of the averaged weights.
custom_hooks = [dict(type='EMAHook', momentum=1e-4)]
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(
        by_epoch=False, interval=50000, save_param_scheduler=False))
log_processor = dict(by_epoch=False)

test_evaluator = dict(
    type='GenerationMetric',
    features=dict(
        type='InceptionFeatures',
        checkpoint='checkpoints/weights-inception-2015-12-05-6726825d.pth'))
