# Ablation, dynamic convolution: kernels from a globally pooled vector.
_base_ = '../mask_rcnn_wf_t_coco.py'

pretrained = 'work_dirs/wf_t_conv_gap_in1k/epoch_300.pth'
model = dict(
    backbone=dict(dynamic_conv='gap', init_cfg=dict(checkpoint=pretrained)))
