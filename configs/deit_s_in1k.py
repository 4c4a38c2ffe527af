# DeiT-S on ImageNet-1K, otherwise as DeiT-T.
_base_ = 'deit_t_in1k.py'

model = dict(backbone=dict(arch='deit-small'), head=dict(in_channels=384))
