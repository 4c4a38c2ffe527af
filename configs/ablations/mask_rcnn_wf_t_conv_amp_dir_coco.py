# Ablation, dynamic convolution: amplitude and direction apart.
_base_ = '../mask_rcnn_wf_t_coco.py'

pretrained = 'work_dirs/wf_t_conv_amp_dir_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        dynamic_conv='amp_dir', init_cfg=dict(checkpoint=pretrained)))
