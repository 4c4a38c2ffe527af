# The COCO config with a smaller head and input, for the digits scenes that
# tools/dataset_converters/digits.py makes. Minutes on a CPU.
_base_ = '../mask_rcnn_wf_t_coco.py'

# From scratch, unless --cfg-options pretrained=FILE.
pretrained = None
model = dict(
    backbone=dict(drop_path_rate=0., init_cfg=None),
    neck=dict(out_channels=64),
    rpn_head=dict(
        in_channels=64,
        feat_channels=64,
        num_convs=1,
        anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64),
        # mmdet's own head: on so few proposals, convolutions learn slower.
        bbox_head=dict(
            type='Shared2FCBBoxHead',
            in_channels=64,
            conv_out_channels=64,
            fc_out_channels=256,
            num_classes=10),
        mask_roi_extractor=dict(out_channels=64),
        mask_head=dict(
            num_convs=2,
            in_channels=64,
            conv_out_channels=64,
            num_classes=10,
            norm_cfg=None)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=500, max_per_img=200),
        rcnn=dict(sampler=dict(num=64, pos_fraction=0.5))),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=200)))

data_root = 'data/digits/coco/'
metainfo = dict(classes=tuple('0123456789'))
# No flip: a mirrored digit is none.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=(128, 128), keep_ratio=True),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(128, 128), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                   'scale_factor')),
]
# Learning to read patches takes updates more than images: small batches.
train_dataloader = dict(
    batch_size=4,
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        filter_cfg=dict(filter_empty_gt=True, min_size=16),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=8,
    dataset=dict(
        data_root=data_root, metainfo=metainfo, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val2017.json')
test_evaluator = val_evaluator

train_cfg = dict(max_epochs=4, val_interval=2)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=100),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True),
]
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, fused=True),
    paramwise_cfg=dict(norm_decay_mult=0.),
    clip_grad=dict(max_norm=5.))
auto_scale_lr = dict(base_batch_size=4)
default_hooks = dict(
    logger=dict(interval=50),
    checkpoint=dict(max_keep_ckpts=2),
    visualization=dict(score_thr=0.5))
