# DeiT-T goes on to classify the digits at the size of the scenes.
_base_ = 'wf_t_digits_128.py'

model = dict(
    init_cfg=dict(type='TruncNormal', layer='Linear', std=.02),
    backbone=dict(
        _delete_=True,
        type='VisionTransformer',
        arch='deit-tiny',
        img_size=128,
        patch_size=16,
        out_type='avg_featmap'))
