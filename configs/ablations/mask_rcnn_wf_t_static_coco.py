# Ablation, static layers in the dynamic blocks.
_base_ = '../mask_rcnn_wf_t_coco.py'

pretrained = 'work_dirs/wf_t_static_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        dynamic_linear='static',
        dynamic_conv='static',
        init_cfg=dict(checkpoint=pretrained)))
