# Ablation, no dynamic block.
_base_ = '../mask_rcnn_wf_t_coco.py'

pretrained = 'work_dirs/wf_t_no_dynamic_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=192, depth=17, dynamic_indices=[]),
        init_cfg=dict(checkpoint=pretrained)))
