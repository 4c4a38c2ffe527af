# Copyright (c) mmweightformer contributors. All rights reserved.
"""Some random cases, that faults are found, and the faults that were."""
import copy
from functools import partial
from pprint import pformat
from types import SimpleNamespace

import cases
import pytest
import torch
import torch.nn.functional as F
from helpers import build_backbone, randomize, relative_error
from hypothesis import given, note, settings
from hypothesis import strategies as st

from mmweightformer.models import (DynamicLinear, SimpleFeaturePyramid,
                                   WeightFormer)
from mmweightformer.models.backbones import weightformer
from mmweightformer.models.layers import factored_linear
from mmweightformer.models.strategies import DYNAMIC_CONV, DYNAMIC_LINEAR


@settings(max_examples=25)
@given(st.randoms(use_true_random=False))
def test_random_cases(random):
    case = cases.draw(random)
    note(pformat(case))
    cases.check(case)


COMMON = dict(
    seed=0,
    dtype='float64',
    autocast=False,
    batch=3,
    size=(13, 9),
    layout='offset',
    values='normal',
    exponent=0,
    train=True,
    random_params=True,
    input_grad=True,
    bad='nan',
    bad_everywhere=False)
BACKBONE = dict(
    COMMON,
    kind='backbone',
    kwargs=dict(
        arch=dict(embed_dims=8, depth=3, dynamic_every=2),
        patch_size=4,
        in_channels=3,
        out_indices=(0, -1, 2),
        out_type='featmap',
        drop_rate=0.,
        drop_path_rate=0.,
        pad='corner',
        frozen_stages=1,
        with_cp=True))
LINEAR = dict(
    COMMON,
    kind='linear',
    layer='bilateral',
    kwargs=dict(in_features=8, out_features=12, normalize=True))
PYRAMID = dict(
    COMMON,
    kind='pyramid',
    kwargs=dict(
        in_channels=8,
        out_channels=6,
        scale_factors=(4, 2, 1, 0.5),
        num_outs=5))


@pytest.mark.parametrize('case', [BACKBONE, LINEAR, PYRAMID])
def test_no_fault(case):
    checker = cases.check(case)
    assert len(checker.checked) > 10
    assert 0 <= checker.batch_error < 1e-12


def wrapped(owner, name, change):
    """Changes what a function returns."""
    old = getattr(owner, name)

    def new(*args, **kwargs):
        return change(old(*args, **kwargs), *args)

    return owner, name, new


def counted(out, model, x):
    model.calls = getattr(model, 'calls', 0) + 1
    return tuple(y + model.calls for y in out)


FAULTS = {
    'input is not modified': (BACKBONE, [
        wrapped(WeightFormer, '_embed', lambda y, model, x: x.mul_(2).sum() * 0
                + y)
    ]),
    'shape': (BACKBONE, [
        wrapped(WeightFormer, '_format_output', lambda y, *_: y[..., 1:])
    ]),
    'dtype': (BACKBONE, [
        wrapped(WeightFormer, '_format_output', lambda y, *_: y.float())
    ]),
    'finite': (LINEAR, [
        wrapped(DynamicLinear, 'predict_core', lambda y, *_: y / 0)
    ]),
    'twice the same': (BACKBONE, [wrapped(WeightFormer, 'forward', counted)]),
    'state dict': (LINEAR, [
        wrapped(DynamicLinear, 'predict_core',
                lambda y, layer, *_: y * (id(layer) % 997))
    ]),
    'layout offset': (BACKBONE, [
        wrapped(WeightFormer, '_embed',
                lambda y, model, x: y * x.storage_offset())
    ]),
    "pad='corner'": (BACKBONE, [(weightformer, 'F',
                                 SimpleNamespace(pad=partial(
                                     F.pad, value=1.)))]),
    'batch independence': (LINEAR, [
        wrapped(DynamicLinear, 'predict_core',
                lambda y, *_: y + y.mean(0, keepdim=True))
    ]),
    'nan stays in its sample': (LINEAR, [
        wrapped(DynamicLinear, 'predict_core', lambda y, *_: y + y.sum() * 0)
    ]),
    'norm of the delta': (LINEAR, [
        wrapped(factored_linear, '_normalize', lambda y, *_: y * 1000)
    ]),
    'all parameters take part': (LINEAR, [
        wrapped(DynamicLinear, 'predict_factors',
                lambda y, *_: (y[0].detach(), y[1].detach()))
    ]),
    'frozen_stages': (BACKBONE, [(WeightFormer, '_freeze_stages',
                                  lambda model: None)]),
    'with_cp': (BACKBONE, [(weightformer, 'checkpoint',
                            lambda layer, x, **_: layer(2 * x - x.detach()))]),
    'MLP in parts': (BACKBONE, [
        wrapped(weightformer, 'feed_forward', lambda y, *_: y.sin())
    ]),
    'gradients stay in their sample': (LINEAR, [
        wrapped(DynamicLinear, 'forward', lambda y, layer, x: torch.where(
            x.isnan().any(), y.detach() + y * 0, y))
    ]),
    'contiguous': (PYRAMID, [
        wrapped(SimpleFeaturePyramid, 'forward',
                lambda y, *_: tuple(out.mT.contiguous().mT for out in y))
    ]),
}  # yapf: disable


@pytest.mark.parametrize('invariant', FAULTS)
def test_faults_are_found(invariant, monkeypatch):
    case, patches = FAULTS[invariant]
    for patch in patches:
        monkeypatch.setattr(*patch)
    with pytest.raises(cases.Fault) as caught:
        cases.check(case)
    assert caught.value.invariant == invariant


@pytest.mark.parametrize('name', DYNAMIC_LINEAR)
@pytest.mark.parametrize('factor', [1e10, 1e14, 1e18])
def test_norm_of_a_large_delta(name, factor):
    """Its square is beyond float32."""
    layer = randomize(DYNAMIC_LINEAR[name](16, 64))
    x = (torch.randn(2, 9, 9, 16) * factor).requires_grad_()
    y = layer(x)
    y.sum().backward()
    assert x.grad.isfinite().all()
    exact = copy.deepcopy(layer).double()(x.double())
    assert relative_error(y.double(), exact) < 1e-5


@pytest.mark.parametrize('name', DYNAMIC_CONV)
def test_gradients_of_a_grid_of_width_1(name):
    """That of a convolution with stride 2 was what lay in memory."""
    layer = randomize(DYNAMIC_CONV[name](32)).bfloat16()
    x = torch.randn(2, 32, 1, 1).bfloat16()
    x = x.to(memory_format=torch.channels_last)

    def gradients(layer, x):
        return torch.autograd.grad(
            layer(x).square().sum(), list(layer.parameters()))

    exact = gradients(copy.deepcopy(layer).double(), x.double())
    for _ in range(20):
        for grad, expected in zip(gradients(layer, x), exact):
            assert (grad - expected).norm() < 0.05 * expected.norm() + 1e-3


@pytest.mark.parametrize('in_channels, patch_size', [(2, 32), (4, 16), (4, 32),
                                                     (3, 16), (4, 1)])
@pytest.mark.parametrize('layout',
                         [torch.contiguous_format, torch.channels_last])
def test_an_image_as_wide_as_a_patch(in_channels, patch_size, layout):
    """In bfloat16 the convolution of the patches was wrong."""
    model = randomize(
        build_backbone(patch_size=patch_size, in_channels=in_channels))
    model = model.bfloat16().to(memory_format=layout)
    image = torch.randn(2, in_channels, 2 * patch_size, patch_size).bfloat16()
    tokens = model._embed(image.to(memory_format=layout))
    exact = copy.deepcopy(model.patch_embed).double()(image.double())[0]
    assert relative_error(tokens.flatten(1, 2).double(), exact) < 0.03


def test_more_columns_change_nothing():
    model = build_backbone(pad=None).double()
    image = torch.randn(2, 3, 48, 16, dtype=torch.float64)
    torch.testing.assert_close(model(F.pad(image, (0, 9))), model(image))
