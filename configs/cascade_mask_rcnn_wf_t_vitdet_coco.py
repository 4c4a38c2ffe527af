# Cascade Mask R-CNN with WeightFormer-T by the protocol of ViTDet, COCO, 100
# epochs on 8 GPUs. It needs the data in data/coco, see README.md, and
# pre-trained weights.
_base_ = [
    'mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py',
    'mmdet::common/lsj-100e_coco-instance.py',
]
# Behind _base_, or mmengine takes the file for one of its new style.
from mmengine.device import get_device  # noqa: E402

# So that the packages' own tools know the plugin as well.
custom_imports = dict(imports=['mmweightformer'], allow_failed_imports=False)

# What training wf_t_in1k.py leaves; None in our tools is from scratch.
pretrained = 'work_dirs/wf_t_in1k/epoch_300.pth'

norm_cfg = dict(type='LN2d', eps=1e-6)
model = dict(
    # No image is larger, so each is padded to 1024×1024, in tests as well.
    data_preprocessor=dict(pad_size_divisor=1024),
    backbone=dict(
        _delete_=True,
        type='WeightFormer',
        arch='t',
        # The last block's output as it is, as ViTDet hands it to its pyramid.
        final_norm=False,
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained', checkpoint=pretrained, prefix='backbone.')),
    neck=dict(
        _delete_=True,
        type='SimpleFeaturePyramid',
        in_channels=192,
        out_channels=256,
        num_outs=5,
        norm_cfg=norm_cfg),
    rpn_head=dict(num_convs=2),
    roi_head=dict(
        # Class-agnostic boxes of stricter coders, as in the base.
        bbox_head=[
            dict(
                head,
                type='Shared4Conv1FCBBoxHead',
                conv_out_channels=256,
                norm_cfg=norm_cfg) for head in _base_.model.roi_head.bbox_head
        ],
        mask_head=dict(norm_cfg=norm_cfg)),
    # Large-scale jitter makes images without room for an anchor within their
    # border, at which the base's training would stop.
    train_cfg=dict(rpn=dict(allowed_border=-1)))

# The base has large-scale jitter at 1024×1024. It also repeats the data set,
# for its epochs, which iterations do not need.
train_dataloader = dict(
    batch_size=8,
    num_workers=8,
    sampler=dict(type='InfiniteSampler'),
    dataset=dict(_delete_=True, **_base_.train_dataloader.dataset.dataset))
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = _base_.image_size  # not the base's 1333×800
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

max_iters = 184375
interval = 5000
train_cfg = dict(
    _delete_=True,
    type='IterBasedTrainLoop',
    max_iters=max_iters,
    val_interval=interval)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, end=250),
    dict(
        type='MultiStepLR',
        by_epoch=False,
        milestones=[163889, 177546],
        gamma=0.1),
]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=interval))
log_processor = dict(by_epoch=False)

# Mixed precision, as published, where mmengine has it.
amp = get_device() not in ('cpu', 'mps')
optim_wrapper = dict(
    _delete_=True,
    type='AmpOptimWrapper' if amp else 'OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.1),
    constructor='LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(
        # ViTDet's 0.7 for 12 blocks, spread over 17.
        layer_decay_rate=0.7**(12 / 17),
        norm_decay_mult=0.,
        flat_decay_mult=0.))
