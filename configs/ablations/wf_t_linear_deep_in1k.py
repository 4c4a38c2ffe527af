# Ablation, dynamic linear: predictors of more layers.
_base_ = '../wf_t_in1k.py'

model = dict(backbone=dict(dynamic_linear='deep'))
