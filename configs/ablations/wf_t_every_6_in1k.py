# Ablation, a dynamic block every 6 blocks.
_base_ = '../wf_t_in1k.py'

model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=192, depth=17, dynamic_every=6)))
