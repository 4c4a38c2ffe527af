# DeiT beside the network of the ablations: as wide, with as many parameters.
_base_ = 'wf_ablation_digits.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='VisionTransformer',
        arch=dict(
            embed_dims=64, num_layers=9, num_heads=2,
            feedforward_channels=256),
        img_size=64,
        patch_size=8,
        out_type='avg_featmap',
        init_cfg=dict(type='TruncNormal', layer='Linear', std=.02)))
