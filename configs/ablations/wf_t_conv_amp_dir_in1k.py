# Ablation, dynamic convolution: amplitude and direction apart.
_base_ = '../wf_t_in1k.py'

model = dict(backbone=dict(dynamic_conv='amp_dir'))
