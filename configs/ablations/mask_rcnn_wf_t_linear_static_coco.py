# Ablation, dynamic linear: static.
_base_ = '../mask_rcnn_wf_t_coco.py'

pretrained = 'work_dirs/wf_t_linear_static_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        dynamic_linear='static', init_cfg=dict(checkpoint=pretrained)))
