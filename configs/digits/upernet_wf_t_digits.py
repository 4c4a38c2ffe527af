# The ADE20K config with a smaller decoder and input, for the digits scenes
# that tools/dataset_converters/digits.py makes.
_base_ = '../upernet_wf_t_ade20k.py'

# From scratch, unless --cfg-options pretrained=FILE.
pretrained = None
# Over each pixel's channels: pyramid pooling leaves a batch norm one value an
# image.
norm_cfg = dict(type='LN2d', eps=1e-6)
num_classes = 11
model = dict(
    # The images are of one size, whichever: no pixel is filled up.
    data_preprocessor=dict(size=None, size_divisor=1),
    backbone=dict(drop_path_rate=0., init_cfg=None),
    neck=dict(out_channels=64),
    decode_head=dict(
        in_channels=[64] * 4,
        channels=64,
        num_classes=num_classes,
        norm_cfg=norm_cfg,
        # Nine pixels of ten are background: unweighted, a decoder that
        # predicts nothing else is hard to leave.
        loss_decode=dict(
            type='CrossEntropyLoss', class_weight=[0.3] + [1.] * 10)),
    auxiliary_head=None,
    test_cfg=dict(_delete_=True, mode='whole'))

data_root = 'data/digits/ade'
# No flip: a mirrored digit is none.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs'),
]
dataset = dict(
    _delete_=True,
    type='BaseSegDataset',
    data_root=data_root,
    img_suffix='.jpg',
    seg_map_suffix='.png',
    reduce_zero_label=True,
    metainfo=dict(classes=('background', *'0123456789')),
    pipeline=train_pipeline)
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    dataset=dict(
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'),
        **dataset))
val_dataloader = dict(
    batch_size=8,
    num_workers=1,
    dataset=dict(
        data_prefix=dict(
            img_path='images/validation',
            seg_map_path='annotations/validation'),
        **dataset))
test_dataloader = val_dataloader

train_cfg = dict(max_iters=900, val_interval=300)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False),
]
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-4, weight_decay=0.05, fused=True),
    paramwise_cfg=dict(norm_decay_mult=0., flat_decay_mult=0.),
    clip_grad=dict(max_norm=5.))
auto_scale_lr = dict(base_batch_size=8)
default_hooks = dict(
    logger=dict(interval=25), checkpoint=dict(interval=300, max_keep_ckpts=1))
