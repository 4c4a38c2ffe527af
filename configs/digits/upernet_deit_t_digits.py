# UPerNet with DeiT-T on the digits, otherwise as with WeightFormer-T.
_base_ = 'upernet_wf_t_digits.py'

custom_imports = dict(imports=['mmweightformer', 'mmpretrain.models'])

model = dict(
    init_cfg=dict(type='TruncNormal', layer='Linear', std=.02),
    backbone=dict(
        _delete_=True,
        type='mmpretrain.VisionTransformer',
        arch='deit-tiny',
        img_size=128,
        out_indices=(2, 5, 8, 11),
        out_type='featmap'))
