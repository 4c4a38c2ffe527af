# Ablation, dynamic convolution: static.
_base_ = '../wf_t_in1k.py'

model = dict(backbone=dict(dynamic_conv='static'))
