# UPerNet with WeightFormer-S, otherwise as with WeightFormer-T.
_base_ = 'upernet_wf_t_ade20k.py'

pretrained = 'work_dirs/wf_s_in1k/epoch_300.pth'

model = dict(
    backbone=dict(arch='s', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[384] * 4, out_channels=384),
    decode_head=dict(in_channels=[384] * 4),
    auxiliary_head=dict(in_channels=384))
