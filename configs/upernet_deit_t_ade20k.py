# UPerNet with MMPreTrain's DeiT-T, otherwise as with WeightFormer-T.
_base_ = 'upernet_wf_t_ade20k.py'

custom_imports = dict(imports=['mmweightformer', 'mmpretrain.models'])

# What training deit_t_in1k.py leaves; None in our tools is from scratch.
pretrained = 'work_dirs/deit_t_in1k/epoch_300.pth'

model = dict(
    # For training from scratch: MMPreTrain leaves it to the classifier.
    init_cfg=dict(type='TruncNormal', layer='Linear', std=.02),
    backbone=dict(
        _delete_=True,
        type='mmpretrain.VisionTransformer',
        arch='deit-tiny',
        # The position embedding is resized to it on loading.
        img_size=(512, 512),
        out_indices=(2, 5, 8, 11),
        out_type='featmap',
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained', checkpoint=pretrained, prefix='backbone.')))

optim_wrapper = dict(
    paramwise_cfg=dict(
        layer_decay_rate=0.9,
        custom_keys={
            '.cls_token': dict(decay_mult=0.),
            '.pos_embed': dict(decay_mult=0.),
        }))
