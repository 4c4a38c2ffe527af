# WeightFormer-S on ImageNet-1K, otherwise as WeightFormer-T.
_base_ = 'wf_t_in1k.py'

model = dict(
    backbone=dict(arch='s', drop_path_rate=0.2), head=dict(in_channels=384))
