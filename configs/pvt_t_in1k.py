# PVT-Tiny on ImageNet-1K. PVT's recipe is DeiT's: here that of deit_t_in1k.py
# with the drop path of 0.1.
#
# MMDetection's PVT lacks what only the published classifier has: the class
# token in the last stage, with its position, and the norm at the end. Here the
# tokens are averaged, and each stage ends with a norm, as in PVT v2.
_base_ = 'deit_t_in1k.py'

custom_imports = dict(imports=['mmweightformer', 'mmdet.models'])

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmdet.PyramidVisionTransformer',
        num_layers=[2, 2, 2, 2],
        out_indices=(3, ),
        norm_after_stage=True,
        drop_path_rate=0.1),
    neck=dict(_delete_=True, type='MeanPooling'),
    head=dict(type='LinearClsHead', in_channels=512, init_cfg=None))
