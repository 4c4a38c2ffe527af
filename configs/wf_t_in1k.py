# WeightFormer-T on ImageNet-1K, 300 epochs, with the published recipe.
# This file needs the data in data/imagenet, see README.md.
_base_ = [
    'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py',
    'mmpretrain::_base_/schedules/imagenet_bs1024_adamw_swin.py',
    '_base_/mmpretrain_runtime.py',
]

# So that the packages' own tools know the plugin as well.
custom_imports = dict(imports=['mmweightformer'], allow_failed_imports=False)

model = dict(
    type='ImageClassifier',
    backbone=dict(type='WeightFormer', arch='t', out_type='avg_featmap'),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=192,
        loss=dict(
            type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=.02)),
    train_cfg=dict(augments=[
        dict(type='Mixup', alpha=0.8),
        dict(type='CutMix', alpha=1.0),
    ]))

# 8 GPUs. The base exempts biases and all other 1-d parameters from decay.
total_batch = 8 * 256
train_dataloader = dict(batch_size=256)
optim_wrapper = dict(
    optimizer=dict(lr=5e-4 * total_batch / 512), clip_grad=dict(max_norm=5.))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        by_epoch=True,
        end=20,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        eta_min=5e-6 * total_batch / 512,
        by_epoch=True,
        begin=20),
]
auto_scale_lr = dict(base_batch_size=total_batch)

# 300 epochs make many checkpoints.
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))
