# Ablation, dynamic linear: one activation on the product.
_base_ = '../wf_t_in1k.py'

model = dict(backbone=dict(dynamic_linear='nonlinear'))
