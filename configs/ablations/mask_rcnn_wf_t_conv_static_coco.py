# Ablation, dynamic convolution: static.
_base_ = '../mask_rcnn_wf_t_coco.py'

pretrained = 'work_dirs/wf_t_conv_static_in1k/epoch_300.pth'
model = dict(
    backbone=dict(dynamic_conv='static', init_cfg=dict(checkpoint=pretrained)))
