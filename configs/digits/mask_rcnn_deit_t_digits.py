# Mask R-CNN with DeiT-T on the digits, otherwise as with WeightFormer-T. On so
# small a grid, each of its layers attends to the whole.
_base_ = 'mask_rcnn_wf_t_digits.py'

custom_imports = dict(imports=['mmweightformer', 'mmpretrain.models'])

model = dict(
    init_cfg=dict(type='TruncNormal', layer='Linear', std=.02),
    backbone=dict(
        _delete_=True,
        type='mmpretrain.ViTSAM',
        arch=dict(
            embed_dims=192,
            num_layers=12,
            num_heads=3,
            feedforward_channels=768,
            global_attn_indexes=list(range(12))),
        img_size=128,
        out_channels=0,
        use_rel_pos=False))
