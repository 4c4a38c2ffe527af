# Ablation, dynamic linear: a prediction without activation.
_base_ = '../mask_rcnn_wf_t_coco.py'

pretrained = 'work_dirs/wf_t_linear_linear_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        dynamic_linear='linear', init_cfg=dict(checkpoint=pretrained)))
