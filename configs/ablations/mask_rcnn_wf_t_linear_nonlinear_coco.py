# Ablation, dynamic linear: one activation on the product.
_base_ = '../mask_rcnn_wf_t_coco.py'

pretrained = 'work_dirs/wf_t_linear_nonlinear_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        dynamic_linear='nonlinear', init_cfg=dict(checkpoint=pretrained)))
