# 160,000 iterations of a linearly decaying lr, at a total batch of 16.
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=160000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

param_scheduler = [
    dict(
        type='LinearLR', start_factor=1e-6, begin=0, end=1500, by_epoch=False),
    dict(
        type='PolyLR',
        power=1.0,
        eta_min=0.0,
        begin=1500,
        end=160000,
        by_epoch=False),
]
auto_scale_lr = dict(base_batch_size=16)
