# Mask R-CNN with WeightFormer-S, otherwise as with WeightFormer-T.
_base_ = 'mask_rcnn_wf_t_coco.py'

model = dict(backbone=dict(arch='s'), neck=dict(in_channels=384))
