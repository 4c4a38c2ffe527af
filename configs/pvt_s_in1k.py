# PVT-Small on ImageNet-1K, otherwise as PVT-Tiny.
_base_ = 'pvt_t_in1k.py'

model = dict(backbone=dict(num_layers=[3, 4, 6, 3]))
