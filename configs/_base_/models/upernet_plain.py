# UPerNet for a plain backbone of stride 16: four maps, resampled to strides 4,
# 8, 16 and 32. The backbone is the config's own; 192 are its channels.
norm_cfg = dict(type='SyncBN', requires_grad=True)
head = dict(num_classes=150, norm_cfg=norm_cfg, align_corners=False)
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512)),
    neck=dict(
        type='MultiLevelNeck',
        in_channels=[192] * 4,
        out_channels=192,
        scales=[4, 2, 1, 0.5]),
    decode_head=dict(
        type='UPerHead',
        in_channels=[192] * 4,
        in_index=[0, 1, 2, 3],
        channels=512,
        pool_scales=(1, 2, 3, 6),
        dropout_ratio=0.1,
        loss_decode=dict(type='CrossEntropyLoss', loss_weight=1.0),
        **head),
    auxiliary_head=dict(
        type='FCNHead',
        in_channels=192,
        in_index=3,
        channels=256,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        loss_decode=dict(type='CrossEntropyLoss', loss_weight=0.4),
        **head),
    train_cfg=dict(),
    # In windows of the size of training, as positions and predicted weights
    # were trained for it.
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)))
