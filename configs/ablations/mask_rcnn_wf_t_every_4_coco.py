# Ablation, a dynamic block every 4 blocks.
_base_ = '../mask_rcnn_wf_t_coco.py'

pretrained = 'work_dirs/wf_t_every_4_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=192, depth=17, dynamic_every=4),
        init_cfg=dict(checkpoint=pretrained)))
