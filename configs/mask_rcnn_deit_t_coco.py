# Mask R-CNN with DeiT-T, otherwise as with WeightFormer-T.
# In detection, as in ViTDet, DeiT attends within windows of 14×14 patches but
# for 4 of its 12 layers, and has no class token: MMPreTrain's ViTSAM.
_base_ = 'mask_rcnn_wf_t_coco.py'

custom_imports = dict(imports=['mmweightformer', 'mmpretrain.models'])

# What training deit_t_in1k.py leaves, brought into ViTSAM:
# python tools/model_converters/deit_to_vitsam.py \
#     work_dirs/deit_t_in1k/epoch_300.pth work_dirs/deit_t_in1k/vitsam.pth
pretrained = 'work_dirs/deit_t_in1k/vitsam.pth'

model = dict(
    # For training from scratch: MMPreTrain leaves it to the classifier.
    init_cfg=dict(type='TruncNormal', layer='Linear', std=.02),
    backbone=dict(
        _delete_=True,
        type='mmpretrain.ViTSAM',
        arch=dict(
            embed_dims=192,
            num_layers=12,
            num_heads=3,
            feedforward_channels=768,
            global_attn_indexes=[2, 5, 8, 11]),
        img_size=1024,
        out_channels=0,
        use_rel_pos=False,
        window_size=14,
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained', checkpoint=pretrained, prefix='backbone.')))

optim_wrapper = dict(
    paramwise_cfg=dict(
        # ViTDet's, for 12 layers.
        layer_decay_rate=0.7,
        custom_keys={'.pos_embed': dict(decay_mult=0.)}))
