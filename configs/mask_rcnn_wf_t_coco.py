# Mask R-CNN with WeightFormer-T and ViTDet's pyramid and head norms, COCO, 1x.
# It needs the data in data/coco, see README.md, and pre-trained weights.
_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    'mmdet::_base_/datasets/coco_instance.py',
    'mmdet::_base_/schedules/schedule_1x.py',
    '_base_/mmdet_runtime.py',
]
# Behind _base_, or mmengine takes the file for one of its new style.
from mmengine.device import get_device  # noqa: E402

# So that the packages' own tools know the plugin as well.
custom_imports = dict(imports=['mmweightformer'], allow_failed_imports=False)

# What training wf_t_in1k.py leaves; None in our tools is from scratch.
pretrained = 'work_dirs/wf_t_in1k/epoch_300.pth'

norm_cfg = dict(type='LN2d', eps=1e-6)
model = dict(
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
        bbox_head=dict(
            type='Shared4Conv1FCBBoxHead',
            conv_out_channels=256,
            norm_cfg=norm_cfg),
        mask_head=dict(norm_cfg=norm_cfg)))

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
