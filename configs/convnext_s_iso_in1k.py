# Isotropic ConvNeXt-S on ImageNet-1K, with ConvNeXt's published recipe.
#
# MMPreTrain's ConvNeXt with a single stage differs from the published model
# in one norm behind the stem, of 768 parameters.
_base_ = 'mmpretrain::convnext/convnext-small_32xb128_in1k.py'

custom_imports = dict(imports=['mmweightformer'], allow_failed_imports=False)

model = dict(
    backbone=dict(
        arch=dict(_delete_=True, depths=[18], channels=[384]),
        stem_patch_size=16,
        out_indices=[0],
        # As published for the isotropic model.
        layer_scale_init_value=0.,
        drop_path_rate=0.1),
    head=dict(in_channels=384))

# 8 GPUs, with half of the published total batch at half of its lr.
total_batch = 8 * 256
train_dataloader = dict(batch_size=256)
optim_wrapper = dict(optimizer=dict(lr=4e-3 * total_batch / 4096))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        by_epoch=True,
        end=50,
        convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-6, by_epoch=True, begin=50),
]
auto_scale_lr = dict(base_batch_size=total_batch)
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))
