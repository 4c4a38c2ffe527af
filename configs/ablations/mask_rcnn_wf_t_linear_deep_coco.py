# Ablation, dynamic linear: predictors of more layers.
_base_ = '../mask_rcnn_wf_t_coco.py'

pretrained = 'work_dirs/wf_t_linear_deep_in1k/epoch_300.pth'
model = dict(
    backbone=dict(dynamic_linear='deep', init_cfg=dict(checkpoint=pretrained)))
