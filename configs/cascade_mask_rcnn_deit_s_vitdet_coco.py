# Cascade Mask R-CNN with DeiT-S, otherwise as with DeiT-T.
_base_ = 'cascade_mask_rcnn_deit_t_vitdet_coco.py'

pretrained = 'work_dirs/deit_s_in1k/vitsam.pth'

model = dict(
    backbone=dict(
        arch=dict(embed_dims=384, num_heads=6, feedforward_channels=1536),
        init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=384))
