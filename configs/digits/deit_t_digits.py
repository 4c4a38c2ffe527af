# DeiT-T classifies the digits, otherwise as WeightFormer-T does: also from the
# mean over the image, from which it learns sooner than from its class token.
_base_ = 'wf_t_digits.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='VisionTransformer',
        arch='deit-tiny',
        img_size=64,
        patch_size=16,
        out_type='avg_featmap',
        init_cfg=dict(type='TruncNormal', layer='Linear', std=.02)))
