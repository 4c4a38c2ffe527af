# Ablation, dynamic convolution: kernels by a convolution.
_base_ = '../mask_rcnn_wf_t_coco.py'

pretrained = 'work_dirs/wf_t_conv_conv_in1k/epoch_300.pth'
model = dict(
    backbone=dict(dynamic_conv='conv', init_cfg=dict(checkpoint=pretrained)))
