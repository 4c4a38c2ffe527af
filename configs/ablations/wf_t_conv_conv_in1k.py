# Ablation, dynamic convolution: kernels by a convolution.
_base_ = '../wf_t_in1k.py'

model = dict(backbone=dict(dynamic_conv='conv'))
