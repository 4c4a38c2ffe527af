# UPerNet with WeightFormer-T, ADE20K, 160k iterations at 8 GPUs x 2 images.
# It needs the data in data/ade, see README.md, and pre-trained weights.
_base_ = [
    '_base_/models/upernet_plain.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/schedule_160k.py',
    '_base_/mmseg_runtime.py',
]
# Behind _base_, or mmengine takes the file for one of its new style.
from mmengine.device import get_device  # noqa: E402

# So that the packages' own tools know the plugin as well.
custom_imports = dict(imports=['mmweightformer'], allow_failed_imports=False)

# What training wf_t_in1k.py leaves; None in our tools is from scratch.
pretrained = 'work_dirs/wf_t_in1k/epoch_300.pth'

# The paper leaves open what follows: lr and weight decay are those of MMSeg's
# ConvNeXt-T and -S, the layer-wise decay is that of its BEiT, the drop path
# that of its DeiT. They are the same for WeightFormer and DeiT.
model = dict(
    backbone=dict(
        type='WeightFormer',
        arch='t',
        # The end of each quarter.
        out_indices=(4, 8, 12, 16),
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained', checkpoint=pretrained, prefix='backbone.')))

# Mixed precision, where mmengine has it.
amp = get_device() not in ('cpu', 'mps')
optim_wrapper = dict(
    type='AmpOptimWrapper' if amp else 'OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
    constructor='LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(
        # BEiT's 0.9 for 12 blocks, spread over 17.
        layer_decay_rate=0.9**(12 / 17),
        norm_decay_mult=0.,
        flat_decay_mult=0.))
