# The network of the ablations: WeightFormer with 64 channels, 12 blocks and a
# patch of 8 classifies the digits, of which an image is a grid of 8×8.
_base_ = 'wf_t_digits.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='WeightFormer',
        arch=dict(embed_dims=64, depth=12),
        patch_size=8,
        out_type='avg_featmap'),
    head=dict(in_channels=64))
train_dataloader = dict(batch_size=32)
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
train_cfg = dict(max_epochs=3)
auto_scale_lr = dict(base_batch_size=32)
