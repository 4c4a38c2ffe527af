# WeightFormerDiT generates digits of 16×16 pixels: the miniature of the
# ImageNet configs, a third as deep. The data are made by
#     python tools/dataset_converters/digits.py data/digits_plain --size 32 \
#         --layouts imagenet --min-ease 1
_base_ = '../_base_/mmpretrain_runtime.py'

custom_imports = dict(imports=['mmweightformer'], allow_failed_imports=False)

model = dict(
    type='ClassConditionalDiffusion',
    denoiser=dict(
        type='WeightFormerDiT',
        # A receptive field of the whole image, in spite of few blocks.
        arch=dict(embed_dims=64, depth=5, patch_size=2, kernel_size=5),
        in_channels=3,
        num_classes=10,
        # Of the usual 0.02, it takes far longer to tell classes apart.
        init_cfg=dict(type='Normal', layer='Embedding', std=1.)),
    input_size=16,
    # Pixels have limits.
    noise_schedule=dict(beta_schedule='linear', clip_sample=True),
    test_cfg=dict(sampler='ddim', num_steps=25, guidance_scale=6.))
data_preprocessor = dict(
    type='ClsDataPreprocessor', mean=[127.5] * 3, std=[127.5] * 3, to_rgb=True)

pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(16, 16), interpolation='area'),
    dict(type='PackInputs'),
]
dataset = dict(
    type='ImageNet',
    data_root='data/digits_plain/imagenet',
    split='train',
    metainfo=dict(classes=tuple('0123456789')),
    pipeline=pipeline)
train_dataloader = dict(
    batch_size=64,
    num_workers=1,
    dataset=dataset,
    sampler=dict(type='InfiniteSampler', shuffle=True))
# As usual for FID, the training images are what samples are compared with:
# a quarter of them, as many of each class.
test_dataloader = dict(
    batch_size=100,
    num_workers=1,
    dataset=dict(dataset, indices=list(range(0, 8000, 4))),
    sampler=dict(type='DefaultSampler', shuffle=False))
# The features are those of the classifier that `make generate` trains.
test_evaluator = dict(
    type='GenerationMetric',
    features=dict(
        type='ClassifierFeatures',
        config='configs/digits/wf_t_digits.py',
        checkpoint='work_dirs/generate/classifier/epoch_5.pth'))

optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=6e-3, weight_decay=0., fused=True),
    clip_grad=dict(max_norm=1.))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=100),
    dict(
        type='CosineAnnealingLR',
        by_epoch=False,
        begin=100,
        end=5000,
        eta_min=6e-5),
]
train_cfg = dict(by_epoch=False, max_iters=5000)
val_cfg = None
test_cfg = dict()
default_hooks = dict(
    logger=dict(interval=50),
    checkpoint=dict(by_epoch=False, interval=1000, max_keep_ckpts=1))
custom_hooks = [dict(type='EMAHook', momentum=0.005)]
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
