# Copyright (c) mmweightformer contributors. All rights reserved.
import pytest
import torch
from helpers import build_backbone, count_macs
from mmengine.registry import MODELS
from torch import nn

from mmweightformer.models import LayerNorm2d, SimpleFeaturePyramid


@pytest.mark.parametrize('channels, params, gmacs', [(192, 2.665, 53.70),
                                                     (384, 3.298, 57.88)])
def test_published_costs(channels, params, gmacs):
    with torch.device('meta'):
        neck = SimpleFeaturePyramid(channels)
        features = torch.empty(1, channels, 64, 64)
    total = sum(p.numel() for p in neck.parameters())
    assert round(total / 1e6, 3) == params
    assert round(count_macs(neck, (features, )) / 1e9, 2) == gmacs


@pytest.mark.parametrize('grid', [(8, 12), (1, 1), (5, 7)])
def test_levels(grid):
    h, w = grid
    neck = MODELS.build(
        dict(type='SimpleFeaturePyramid', in_channels=8, out_channels=16))
    outs = neck((torch.randn(2, 8, h, w), ))
    halves = [(-(-h // n), -(-w // n)) for n in (2, 4)]
    assert [tuple(out.shape) for out in outs] == [
        (2, 16, *size)
        for size in [(4 * h, 4 * w), (2 * h, 2 * w), (h, w), *halves]
    ]


def test_last_map_alone_is_used_and_every_parameter():
    neck = SimpleFeaturePyramid(8, 16)
    last = torch.randn(1, 8, 4, 4)
    outs = neck((torch.randn(1, 8, 9, 9), last))
    for out, alone in zip(outs, neck((last, ))):
        torch.testing.assert_close(out, alone)
    sum(out.square().sum() for out in outs).backward()
    assert all(p.grad is not None for p in neck.parameters())


def test_roi_align_reads_the_features_as_they_are():
    """It takes any memory for contiguous, and then pools garbage."""
    from mmcv.ops import roi_align
    backbone = build_backbone()
    neck = SimpleFeaturePyramid(32, 16)
    features = backbone(torch.randn(1, 3, 64, 64))
    for x in (*features, *neck(features)):
        assert x.is_contiguous()
        h, w = x.shape[2:]
        whole = torch.tensor([[0., 0., 0., w, h]])
        pooled = roi_align(x, whole, (h, w), 1., 1, 'avg', True)
        torch.testing.assert_close(pooled, x)


def test_other_scales_and_levels():
    neck = SimpleFeaturePyramid(8, 16, scale_factors=(1., .5), num_outs=2)
    outs = neck((torch.randn(1, 8, 4, 4), ))
    assert [out.shape[-1] for out in outs] == [4, 2]


@pytest.mark.parametrize('kwargs, message', [
    (dict(in_channels=0), 'in_channels must be at least 4, got 0'),
    (dict(in_channels=8, out_channels=0), 'out_channels .* got 0'),
    (dict(in_channels=8, scale_factors=(3, )), 'scale factor .* got 3'),
    (dict(in_channels=8, num_outs=3), 'num_outs must be at least 4, got 3'),
    (dict(in_channels=8, scale_factors=()), r'scale_factors .* got \(\)'),
    (dict(in_channels=8, scale_factors=4), 'scale_factors .* got 4'),
])
def test_refuses(kwargs, message):
    with pytest.raises((TypeError, ValueError), match=message):
        SimpleFeaturePyramid(**kwargs)


@pytest.mark.parametrize('inputs', [torch.zeros(1, 8, 4, 4), ()])
def test_refuses_what_is_no_sequence(inputs):
    with pytest.raises(TypeError, match='sequence of feature maps, got'):
        SimpleFeaturePyramid(8)(inputs)


def test_refuses_other_channels():
    with pytest.raises(ValueError, match='in_channels=8 channels, got 9'):
        SimpleFeaturePyramid(8)((torch.zeros(1, 9, 4, 4), ))


def test_layer_norm_2d():
    norm = LayerNorm2d(6)
    nn.init.normal_(norm.weight)
    x = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    mean = x.mean(1, keepdim=True)
    var = x.var(1, keepdim=True, correction=0)
    expected = (x - mean) / (var + 1e-6).sqrt() * norm.weight.view(6, 1, 1)
    torch.testing.assert_close(norm.double()(x), expected.double())
