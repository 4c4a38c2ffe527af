# Copyright (c) mmweightformer contributors. All rights reserved.
from pathlib import Path

import pytest
import reference
import torch
from helpers import SMALL, count_macs
from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.model import BaseModel
from mmengine.registry import MODELS, DefaultScope
from torch import nn
from torch.nn import functional as F

from mmweightformer.analysis import model_complexity


def costs(cfg, *shape):
    """The costs by name, after the checks that hold for every model."""
    if isinstance(cfg, str):
        cfg = Config.fromfile(cfg)
    elif isinstance(cfg, dict):
        cfg = Config(cfg)
    rows = model_complexity(cfg, shape).rows
    by_name = {row.name: row for row in rows}
    assert len(by_name) == len(rows)
    totals = [row for row in rows if row.name in ('backbone + neck', 'total')]
    parts = [row for row in rows if row not in totals]
    assert rows == parts + totals
    assert by_name['total'][1:] == tuple(map(sum, list(zip(*parts))[1:]))
    if 'backbone + neck' in by_name:
        for i in 1, 2, 3:
            assert by_name['backbone + neck'][i] == sum(
                by_name[name][i] for name in ('backbone', 'neck'))
    return by_name


def gmacs(row, digits=2):
    """In the published order and in ours."""
    macs = row.macs_published, row.macs
    return tuple(round(number / 1e9, digits) for number in macs)


@pytest.mark.parametrize('config, size, params, published, ours', [
    ('wf_t_in1k', 224, 7.07, 1.12, 1.14),
    ('wf_s_in1k', 224, 27.49, 4.43, 4.46),
    ('wf_b_in1k_448', 448, 27.49, 17.66, 17.06),
])
def test_published_imagenet(config, size, params, published, ours):
    total = costs(f'configs/{config}.py', size, size)['total']
    assert round(total.params / 1e6, 2) == params
    assert gmacs(total) == (published, ours)


@pytest.mark.parametrize('arch, published, ours', [('t', 5.86, 5.5),
                                                   ('s', 23.07, 22.04)])
def test_published_ade20k(arch, published, ours):
    wf = costs(f'configs/upernet_wf_{arch}_ade20k.py', 512, 512)
    assert gmacs(wf['backbone']) == (published, ours)
    deit = costs(f'configs/upernet_deit_{arch}_ade20k.py', 512, 512)
    for part in 'neck', 'decode_head', 'auxiliary_head':
        assert wf[part] == deit[part]
    assert wf['auxiliary_head'].params > 0 == wf['auxiliary_head'].macs


@pytest.mark.parametrize('model, backbone, neck, both', [
    ('wf_t', (23.42, 21.7), 53.70, 77),
    ('wf_s', (92.21, 85.75), 57.88, 150),
    ('deit_t', (52.02, 52.02), 53.70, 106),
])
def test_published_coco(model, backbone, neck, both):
    rows = costs(f'configs/cascade_mask_rcnn_{model}_vitdet_coco.py', 1024,
                 1024)
    assert gmacs(rows['backbone']) == backbone
    assert gmacs(rows['neck']) == (neck, neck)
    assert gmacs(rows['backbone + neck'], 0)[0] == both


# Of latents of 32×32. DiT's are the figures of its authors.
@pytest.mark.parametrize('config, params, published, ours', [
    ('dit_wf_s_2', 37.57, 5.02, 5.06),
    ('dit_wf_s_8', 37.84, 0.34, 0.34),
    ('dit_s_2', 32.87, 6.06, 6.06),
    ('dit_s_4', 32.92, 1.41, 1.41),
    ('dit_s_8', 33.14, 0.36, 0.36),
])
def test_denoisers(config, params, published, ours):
    rows = costs(f'configs/{config}_in1k_256.py', 32, 32)
    assert rows.keys() == {'denoiser', 'total'}
    assert round(rows['denoiser'].params / 1e6, 2) == params
    assert gmacs(rows['denoiser']) == (published, ours)


def test_denoiser_of_another_shape_and_of_pixels():
    """One step, of as many channels as the denoiser has."""
    arch = dict(embed_dims=32, depth=1, patch_size=2, num_heads=4)
    denoiser = dict(type='DiT', arch=arch, in_channels=3, num_classes=7)
    cfg = Config(
        dict(model=dict(type='ClassConditionalDiffusion', denoiser=denoiser)))
    complexity = model_complexity(cfg, (8, 12))
    tokens = 4 * 6
    macs = tokens * 32 * (3 * 2**2 + 12 * 32 + 6 * 2**2)
    macs += 2 * tokens**2 * 32
    macs += 32 * (256 + 32 + (6 + 2) * 32)  # of the condition
    assert complexity.rows[-1].macs == macs
    note, = complexity.notes
    assert note == 'denoiser: one step without guidance, which doubles it'


def classifier(backbone, channels, classes=10):
    return dict(
        default_scope='mmpretrain',
        model=dict(
            type='ImageClassifier',
            backbone=backbone,
            head=dict(
                type='LinearClsHead',
                in_channels=channels,
                num_classes=classes)))


@pytest.mark.parametrize('shape', [(64, 64), (80, 112), (16, 48), (192, 160)])
def test_published_order_is_that_of_the_formulas(shape):
    """Where our order is the published one, and where it is not."""
    total = costs(
        classifier(
            dict(type='WeightFormer', arch=SMALL, out_type='avg_featmap'), 32),
        *shape)['total']
    state = reference.random_state(**SMALL, dtype=torch.float32)
    image = torch.zeros(1, 3, *shape)
    assert total.macs_published == count_macs(reference.forward, image, state)
    many = shape[0] * shape[1] // 32**2 > 8  # pooled tokens, against C/r
    assert (total.macs < total.macs_published) == many


def test_resnet_50():
    macs, channels = 3 * 7**2 * 64 * 112**2, 64
    for width, size, blocks in [(64, 56, 3), (128, 28, 4), (256, 14, 6),
                                (512, 7, 3)]:
        macs += channels * 4 * width * size**2  # the shortcut's
        for block in range(blocks):
            reduced = size * (2 if block == 0 and width > 64 else 1)
            macs += channels * width * reduced**2
            macs += (9 * width**2 + width * 4 * width) * size**2
            channels = 4 * width
    cfg = get_config('mmpretrain::resnet/resnet50_8xb32_in1k.py')
    rows = costs(cfg, 224, 224)
    assert rows.keys() == {'backbone', 'head', 'total'}  # pooling is free
    assert rows['backbone'] == ('backbone', 23_508_032, macs, macs)
    assert rows['head'][1:3] == (2_049_000, 2_048_000)
    assert round(rows['total'].macs / 1e9, 1) == 4.1


def test_vision_transformer():
    backbone = dict(
        type='VisionTransformer',
        arch=dict(
            embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=96),
        img_size=64)
    rows = costs(classifier(backbone, 32), 64, 64)
    tokens = 16 + 1
    block = tokens * 32 * (3 * 32 + 2 * tokens + 32 + 2 * 96)
    assert rows['backbone'].macs == 16 * 16**2 * 3 * 32 + 2 * block


class Attention(nn.Module):
    """Three ways to attend, of which the CPU has fused kernels."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def predict(self, x):
        x = F.scaled_dot_product_attention(x, x, x)
        return self.layer(self.attention(x, x, x, need_weights=False)[0])


@MODELS.register_module()
class NeedsData(BaseModel):
    """Runs on the CPU alone, and works in every place."""

    def __init__(self, init_cfg=None):
        super().__init__(init_cfg=init_cfg)
        from mmcv.ops import DeformConv2dPack, ModulatedDeformConv2dPack
        self.backbone = nn.Conv2d(3, 8, 4, stride=4)
        self.neck = nn.ModuleList([
            DeformConv2dPack(8, 8, 3, padding=1, groups=2),
            ModulatedDeformConv2dPack(8, 8, 3, padding=1)
        ])
        self.head = Attention()
        self.unused_head = nn.Linear(8, 2)
        self.unused_head.weight = self.head.attention.out_proj.bias
        self.scale = nn.Parameter(torch.ones(8, 5))

    def forward(self, inputs, data_samples=None, mode='tensor'):
        x = self.backbone.forward(inputs)
        for layer in self.neck:
            x = layer(x)
        assert x.sum().item() != 0
        return self.head.predict(x.flatten(2).mT) @ self.scale


def test_every_place_where_work_is_done():
    tokens = 4 * 6
    # Offsets, and with modulation also masks, of 3×3 samples.
    neck = tokens * 8 * 9 * (18 + 8 // 2) + tokens * 8 * 9 * (27 + 8)
    attend, project = 2 * tokens**2 * 8, 4 * tokens * 8**2
    head = 3 * attend + 2 * project + 2 * tokens * 8 * 16
    init_cfg = dict(type='Pretrained', checkpoint='no.pth')
    fast_path = torch.backends.mha.get_fastpath_enabled()
    rows = costs(dict(model=dict(type='NeedsData', init_cfg=init_cfg)), 16, 24)
    assert torch.backends.mha.get_fastpath_enabled() == fast_path
    assert {
        name: row.macs
        for name, row in rows.items()
    } == {
        'backbone': tokens * 3 * 4**2 * 8,
        'neck': neck,
        'head': head,
        'unused_head': 0,
        'rest': tokens * 8 * 5,
        'backbone + neck': tokens * 3 * 4**2 * 8 + neck,
        'total': tokens * (3 * 4**2 * 8 + 8 * 5) + neck + head,
    }
    # Its weight is the head's.
    assert rows['unused_head'].params == 2
    assert rows['rest'].params == 8 * 5


def test_one_stage_detector():
    cfg = get_config('mmdet::retinanet/retinanet_r18_fpn_1x_coco.py')
    rows = costs(cfg, 64, 96)
    assert rows.keys() == {
        'backbone', 'neck', 'bbox_head', 'backbone + neck', 'total'
    }
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.model).eval()
    assert rows['total'].macs == count_macs(model, torch.zeros(1, 3, 64, 96))


def test_two_stage_detectors():
    """Heads of RoIs do not depend on the image, but on test_cfg."""
    boxes = 12544 * 1024 + 1024 * 1024 + 1024 * (81 + 4 * 80)
    masks = 14**2 * 256**2 * (4 * 9 + 4) + 28**2 * 256 * 80
    cfg = get_config('mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py')
    rows = costs(cfg, 64, 96)
    assert rows['roi_head'].macs == 1000 * boxes + 100 * masks
    levels = [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]
    assert rows['rpn_head'].macs == sum(
        h * w for h, w in levels) * (9 * 256**2 + 256 * 3 * 5)
    # Of the base, an image of fewer anchors than proposals.
    cfg.model.test_cfg.rpn.max_per_img = 300
    cfg.model.test_cfg.rcnn.max_per_img = 20
    complexity = model_complexity(cfg, (64, 96))
    assert complexity.rows[3].macs == 300 * boxes + 20 * masks
    note, = complexity.notes
    assert '300 proposals and 20 detections' in note

    cfg = get_config(
        'mmdet::cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py')
    boxes -= 1024 * 4 * 79  # one box for all classes
    assert costs(cfg, 64,
                 96)['roi_head'].macs == 3 * (1000 * boxes + 100 * masks)


def test_detector_without_proposals_of_an_rpn():
    cfg = get_config('mmdet::sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco.py')
    roi_head = cfg.model.roi_head
    roi_head.update(
        num_stages=1, stage_loss_weights=[1], bbox_head=roi_head.bbox_head[:1])
    cfg.model.rpn_head.num_proposals = 10
    few = costs(cfg, 64, 96)['roi_head'].macs
    cfg.model.rpn_head.num_proposals = 20
    complexity = model_complexity(cfg, (64, 96))
    many = complexity.rows[3].macs
    # Linear in the proposals, but for their attention.
    assert many == 2 * few + 2 * (2 * 10**2) * 256
    assert complexity.notes == []


def test_heads_of_mmseg():
    """Also those without a mode 'tensor', and what works in predict()."""
    import mmseg
    cfg = Config.fromfile(
        Path(mmseg.__file__).parent / '.mim' / 'configs' / 'maskformer' /
        'maskformer_r50-d32_8xb2-160k_ade20k-512x512.py')
    rows = costs(cfg, 64, 96)
    assert rows.keys() == {'backbone', 'decode_head', 'total'}
    assert rows['decode_head'].macs > 0


@pytest.mark.parametrize('shape, error, message', [
    ((0, 64), ValueError, 'shape must be at least 1, got 0'),
    ((64, 'a'), TypeError, "shape must be an int at least 1, got 'a'"),
    ((64, ), ValueError, r'shape must be a height and a width, got \(64,\)'),
])
def test_refuses(shape, error, message):
    with pytest.raises(error, match=message):
        model_complexity(Config(), shape)


def test_errors_of_the_model_come_through():
    cfg = classifier(dict(type='ResNet', depth=50, in_channels=4), 2048)
    with pytest.raises(RuntimeError, match='4 channels'):
        model_complexity(Config(cfg), (32, 32))
