# Ablation, static layers in the dynamic blocks.
_base_ = '../wf_t_in1k.py'

model = dict(backbone=dict(dynamic_linear='static', dynamic_conv='static'))
