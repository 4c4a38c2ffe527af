# Ablation, dynamic linear: a prediction without activation.
_base_ = '../wf_t_in1k.py'

model = dict(backbone=dict(dynamic_linear='linear'))
