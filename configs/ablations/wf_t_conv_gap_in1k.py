# Ablation, dynamic convolution: kernels from a globally pooled vector.
_base_ = '../wf_t_in1k.py'

model = dict(backbone=dict(dynamic_conv='gap'))
