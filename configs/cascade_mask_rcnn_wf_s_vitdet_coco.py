# Cascade Mask R-CNN with WeightFormer-S, otherwise as with WeightFormer-T.
_base_ = 'cascade_mask_rcnn_wf_t_vitdet_coco.py'

pretrained = 'work_dirs/wf_s_in1k/epoch_300.pth'

model = dict(
    backbone=dict(arch='s', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=384))
