# WeightFormer-T classifies the digits that tools/dataset_converters/digits.py
# makes: the miniature of ImageNet, on which the comparison pre-trains.
_base_ = '../_base_/mmpretrain_runtime.py'

custom_imports = dict(imports=['mmweightformer'], allow_failed_imports=False)

model = dict(
    type='ImageClassifier',
    backbone=dict(type='WeightFormer', arch='t', out_type='avg_featmap'),
    head=dict(type='LinearClsHead', num_classes=10, in_channels=192))
data_preprocessor = dict(
    num_classes=10,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True)

metainfo = dict(classes=tuple('0123456789'))
# No flip: a mirrored digit is none.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='RandomResizedCrop',
        scale=64,
        crop_ratio_range=(0.7, 1.0),
        aspect_ratio_range=(0.9, 1.1)),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64)),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=16,
    num_workers=1,
    dataset=dict(
        type='ImageNet',
        data_root='data/digits/imagenet',
        split='train',
        metainfo=metainfo,
        pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=True))
val_dataloader = dict(
    batch_size=50,
    num_workers=1,
    dataset=dict(
        type='ImageNet',
        data_root='data/digits/imagenet',
        split='val',
        metainfo=metainfo,
        pipeline=test_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False))
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=1)
test_evaluator = val_evaluator

optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=3e-4, weight_decay=0.05, fused=True),
    paramwise_cfg=dict(norm_decay_mult=0., flat_decay_mult=0.),
    clip_grad=dict(max_norm=5.))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=100),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=5, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=16)
default_hooks = dict(
    logger=dict(interval=50), checkpoint=dict(max_keep_ckpts=1))
