# Copyright (c) mmweightformer contributors. All rights reserved.
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
import reference
import torch
from helpers import (GRAPHS_FOR_ALL_SIZES, SMALL, backbone_state,
                     build_backbone, count_macs, official_backbone,
                     relative_error)
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.registry import MODELS, DefaultScope
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from mmweightformer.models import SimpleFeaturePyramid, WeightFormer


@pytest.mark.parametrize('name', ['weightformer_square', 'weightformer_odd'])
class TestGolden:
    """The numbers of the published implementation."""

    @pytest.mark.parametrize('dtype, tolerance', [(torch.float64, 1e-10),
                                                  (torch.float32, 1e-5)])
    def test_outputs(self, name, dtype, tolerance):
        golden = reference.load_golden(name)
        model = official_backbone(
            golden['state'],
            out_indices=range(5),
            final_norm=False,
            out_type='raw').to(dtype)
        image = golden['input'].to(dtype)
        embed = model.patch_embed(image)[0]
        assert relative_error(embed, golden['embed']) < tolerance
        for i, out in enumerate(model(image)):
            assert relative_error(out, golden[f'block{i}']) < tolerance

    @pytest.mark.parametrize('dtype, tolerance', [(torch.float64, 1e-10),
                                                  (torch.float32, 1e-5)])
    def test_norm_and_logits(self, name, dtype, tolerance):
        golden = reference.load_golden(name)
        image = golden['input'].to(dtype)
        tokens, = official_backbone(
            golden['state'], out_type='raw').to(dtype)(
                image)
        assert relative_error(tokens, golden['norm']) < tolerance
        features, = official_backbone(
            golden['state'], out_type='avg_featmap').to(dtype)(
                image)
        head = {n: v.to(dtype) for n, v in golden['state'].items()}
        logits = features @ head['head.weight'].T + head['head.bias']
        assert relative_error(logits, golden['logits']) < tolerance

    @pytest.mark.parametrize('with_cp', [False, True])
    def test_gradients(self, name, with_cp):
        golden = reference.load_golden(name)
        grads = reference.load_golden(f'{name}_grad')
        model = official_backbone(
            golden['state'], out_type='avg_featmap', with_cp=with_cp)
        image = golden['input'].requires_grad_()
        features, = model(image)
        state = golden['state']
        logits = features @ state['head.weight'].T + state['head.bias']
        (logits**2).sum().backward()
        assert relative_error(image.grad, grads['grad_input']) < 1e-10
        expected = backbone_state(grads['grad'])
        params = dict(model.named_parameters())
        assert params.keys() == expected.keys()
        for key, param in params.items():
            assert relative_error(param.grad, expected[key]) < 1e-10, key


@settings(max_examples=15)
@given(
    st.integers(1, 3), st.integers(1, 5), st.integers(1, 5),
    st.sampled_from([1, 2, 3, 4]), st.sampled_from([4, 8, 16]))
def test_any_grid_is_the_formula(batch, h, w, every, embed_dims):
    official = reference.random_state(
        embed_dims, 4, patch_size=2, dynamic_every=every)
    arch = dict(embed_dims=embed_dims, depth=4, dynamic_every=every)
    model = official_backbone(
        official, arch=arch, patch_size=2, out_type='raw')
    image = torch.randn(batch, 3, 2 * h, 2 * w, dtype=torch.float64)
    expected = reference.forward(image, official, dynamic_every=every)
    assert relative_error(model(image)[0], expected['norm']) < 1e-10


@pytest.mark.parametrize('arch, params', [('t', 7.07), ('small', 27.49),
                                          ('b', 27.49)])
def test_published_parameters(arch, params):
    with torch.device('meta'):
        model = build_backbone(arch)
    total = sum(p.numel() for p in model.parameters())
    head = 1000 * (model.embed_dims + 1)
    assert round((total + head) / 1e6, 2) == params


@pytest.mark.parametrize('arch, size, gmacs, limit', [
    ('t', 224, 1.12, 1.02),
    ('s', 224, 4.43, 1.01),
    ('b', 448, 17.66, 0.97),
    ('t', 512, 5.86, 0.94),
    ('s', 512, 23.07, 0.96),
    ('t', 1024, 23.42, 0.93),
    ('s', 1024, 92.21, 0.93),
])
def test_published_macs(arch, size, gmacs, limit):
    """The formulas in the published order cost what was published.

    Ours cost less where there are more tokens than the weights are wide, and
    at fewer a little more, for a norm that reads less memory.
    """
    with torch.device('meta'):
        model = build_backbone(arch)
        image = torch.empty(1, 3, size, size)
    official = reference.random_state(
        model.embed_dims, 17, 1000, dtype=torch.float32)
    official = {name: value.to('meta') for name, value in official.items()}
    published = count_macs(reference.forward, image, official)
    assert round(published / 1e9, 2) == gmacs
    # The head of the published figure is no part of the backbone.
    assert count_macs(model, image) < limit * published


def test_macs_are_linear_in_tokens():
    with torch.device('meta'):
        model = build_backbone('t')
        macs = [
            count_macs(model, torch.empty(1, 3, 16 * h, 16 * h))
            for h in (32, 64, 128)
        ]
    # What does not grow is the forming of the weights.
    fixed = (4 * macs[0] - macs[1]) / 3
    assert macs[2] == pytest.approx(16 * (macs[0] - fixed) + fixed)


@pytest.mark.parametrize('out_type, shape', [
    ('featmap', (2, 32, 2, 3)),
    ('avg_featmap', (2, 32)),
    ('raw', (2, 6, 32)),
])
def test_out_types(out_type, shape):
    model = build_backbone(out_type=out_type)
    out, = model(torch.randn(2, 3, 32, 48))
    assert out.shape == shape


def test_out_types_agree():
    outs = {
        out_type:
        official_backbone(out_type=out_type)(torch.ones(
            1, 3, 32, 48, dtype=torch.float64))[0]
        for out_type in WeightFormer.out_types
    }
    torch.testing.assert_close(outs['featmap'].flatten(2).mT, outs['raw'])
    torch.testing.assert_close(outs['raw'].mean(1), outs['avg_featmap'])


def test_out_indices():
    image = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    every = official_backbone(out_indices=range(5), final_norm=False)(image)
    model = official_backbone(out_indices=(3, -4), final_norm=False)
    assert model.out_channels == (32, 32)
    assert model.out_strides == (16, 16)
    outs = model(image)
    torch.testing.assert_close(outs, (every[3], every[1]))


def test_every_parameter_is_used():
    """Or distributed training would wait for their gradients."""
    model = build_backbone(out_indices=(1, 2))
    assert len(model.layers) == 3
    sum(out.sum() for out in model(torch.randn(1, 3, 32, 32))).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize('pad, grid', [('corner', (3, 2)), ('same', (3, 2)),
                                       (None, (2, 1))])
def test_pad(pad, grid):
    model = official_backbone(pad=pad)
    image = torch.randn(1, 3, 40, 20, dtype=torch.float64)
    out, = model(image)
    assert out.shape[2:] == grid
    padded = {
        'corner': torch.nn.functional.pad(image, (0, 12, 0, 8)),
        'same': torch.nn.functional.pad(image, (6, 6, 4, 4)),
        None: image[..., :32, :16]
    }[pad]
    torch.testing.assert_close(out, model(padded)[0])


@pytest.mark.parametrize('size', [(1, 1), (16, 16), (15, 700), (333, 17)])
def test_any_size(size):
    out, = build_backbone()(torch.randn(1, 3, *size))
    assert out.shape[2:] == tuple(-(-s // 16) for s in size)
    assert out.isfinite().all()


def test_batches_of_any_size():
    model = official_backbone()
    images = torch.randn(3, 3, 32, 48, dtype=torch.float64)
    out, = model(images)
    alone = torch.cat([model(image[None])[0] for image in images])
    torch.testing.assert_close(out, alone)
    assert model(images[:0])[0].shape == (0, 32, 2, 3)


@pytest.mark.parametrize('frozen_stages', [-1, 0, 3, 5])
def test_frozen_stages(frozen_stages):
    model = build_backbone(frozen_stages=frozen_stages, drop_path_rate=0.5)
    model.train()
    before = {n: p.clone() for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    image = torch.randn(2, 3, 32, 32, requires_grad=True)
    (model(image)[0]**2 * torch.randn(32, 2, 2)).sum().backward()
    optimizer.step()
    for name, param in model.named_parameters():
        depth, num_layers = model.get_layer_depth(name)
        frozen = depth <= frozen_stages or frozen_stages == 5
        assert param.requires_grad != frozen
        assert (param.grad is None) == frozen, name
        if frozen:
            assert param.equal(before[name])
    for i, layer in enumerate(model.layers):
        assert layer.training == (i >= frozen_stages)
    assert model.drop.training == (frozen_stages < 0)


def test_frozen_blocks_train_with_checkpointing():
    model = build_backbone(frozen_stages=2, with_cp=True)
    model(torch.randn(1, 3, 32, 32))[0].sum().backward()
    assert model.layers[1].fc2.weight.grad is None
    assert model.layers[2].fc2.weight.grad is not None


def test_train_and_eval_return_the_model():
    model = build_backbone(drop_rate=0.5, drop_path_rate=0.5)
    assert model.train() is model and model.training
    assert model.eval() is model and not model.training
    image = torch.randn(1, 3, 32, 32)
    assert model(image)[0].equal(model(image)[0])
    model.train()
    assert not model(image)[0].equal(model(image)[0])


def test_drop_path_rises_with_depth():
    model = build_backbone(drop_path_rate=0.4)
    rates = [layer.drop_path.drop_prob for layer in model.layers]
    np.testing.assert_allclose(rates, [0, .1, .2, .3, .4], atol=1e-6)


def test_initialization():
    torch.manual_seed(0)
    model = build_backbone(dict(embed_dims=128, depth=2))
    model.init_weights()
    static, dynamic = model.layers
    for weight in (static.fc1.weight, static.fc2.weight, dynamic.fc1.weight,
                   dynamic.fc1.bias, dynamic.fc1.w1, dynamic.fc1.w2,
                   dynamic.fc1.proj.weight, dynamic.dwconv.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.15)
    for bias in static.fc1.bias, static.fc2.bias, dynamic.fc1.proj.bias:
        assert not bias.any()
    for norm in model.norm, model.patch_embed.norm, dynamic.norm1:
        assert norm.weight.eq(1).all() and not norm.bias.any()
    bound = static.dwconv.weight[0].numel()**-0.5
    assert 0.9 * bound < static.dwconv.weight.abs().max() <= bound


def test_layer_depth():
    model = build_backbone('t')
    for name, depth in {
            'patch_embed.projection.weight': 0,
            'patch_embed.norm.bias': 0,
            'layers.0.dwconv.weight': 1,
            'layers.16.fc1.w1': 17,
            'norm.weight': 18
    }.items():
        assert name in dict(model.named_parameters())
        assert model.get_layer_depth(name) == (depth, 19)
        assert model.get_layer_depth('backbone.' + name,
                                     'backbone.') == (depth, 19)
    assert model.get_layer_depth('head.fc.weight', 'backbone.') == (18, 19)
    # Blocks that are not built do not count.
    model = build_backbone('t', out_indices=2)
    assert model.get_layer_depth('layers.2.fc1.weight') == (3, 5)


@pytest.mark.parametrize('scope', ['mmengine', 'mmdet', 'mmseg', 'mmpretrain'])
def test_resolves_from_any_scope(scope):
    if scope != 'mmengine':
        import_module(f'{scope}.utils').register_all_modules(False)
    with DefaultScope.overwrite_default_scope(scope):
        with MODELS.switch_scope_and_registry(scope) as registry:
            model = registry.build(dict(type='WeightFormer', arch=SMALL))
    assert isinstance(model, WeightFormer)


def test_import_is_light():
    """Nor are compiled ops needed: mmcv-lite has none."""
    code = ('import sys; sys.modules["mmcv._ext"] = None; '
            'import mmweightformer; '
            'from mmengine.registry import MODELS; '
            'MODELS.build(dict(type="WeightFormer")); '
            'assert not {"mmdet", "mmseg", "mmpretrain", "mmcv.ops"} '
            '& sys.modules.keys()')
    subprocess.run([sys.executable, '-c', code], check=True)


# Odd and even grids, padded and not.
SIZES = [(224, 224), (96, 160), (75, 201), (65, 130), (512, 512), (100, 333),
         (300, 97), (257, 255), (320, 240), (96, 250)]


def with_pyramid(**kwargs):
    return nn.Sequential(
        official_backbone(**kwargs),
        SimpleFeaturePyramid(32, 32).double())


@pytest.mark.parametrize('train', [False, True])
def test_compiles_once_more_for_all_sizes(train):
    """Without a graph break; the second size makes the code dynamic."""
    model = with_pyramid().requires_grad_(train)
    counter = CompileCounterWithBackend('aot_eager')
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for size in SIZES:
        image = torch.randn(1 + train, 3, *size, dtype=torch.float64)
        outs, expected = compiled(image), model(image)
        torch.testing.assert_close(outs, expected)
    assert counter.frame_count == GRAPHS_FOR_ALL_SIZES
    if train:
        params = list(model.parameters())
        torch.testing.assert_close(
            torch.autograd.grad(sum(map(torch.sum, outs)), params),
            torch.autograd.grad(sum(map(torch.sum, expected)), params))


@pytest.mark.parametrize('size', [(1, 1), (16, 100), (20, 17), (40, 16)])
def test_compiled_tiny_images(size):
    model = official_backbone(out_indices=1).requires_grad_(False)
    image = torch.randn(2, 3, *size, dtype=torch.float64)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(image), model(image))


@pytest.mark.parametrize('pad', ['corner', 'same'])
def test_trace_is_for_all_sizes(pad):
    model = with_pyramid(pad=pad)
    traced = torch.jit.trace(model,
                             torch.randn(1, 3, 40, 64, dtype=torch.float64))
    for size in SIZES[:6]:
        image = torch.randn(2, 3, *size, dtype=torch.float64)
        torch.testing.assert_close(traced(image), model(image))


@pytest.mark.parametrize('kwargs, error, message', [
    (dict(arch='huge'), ValueError, "arch must be one of .*'t'.*'huge'"),
    (dict(arch=3), TypeError, 'arch must be a str or a dict, got 3'),
    (dict(arch=dict(depth=3)), TypeError, "'embed_dims'.* got None"),
    (dict(arch=dict(SMALL, width=3)), ValueError, "got 'width'"),
    (dict(arch=dict(SMALL, dynamic_every=0)), ValueError, 'dynamic_every'),
    (dict(arch=dict(SMALL, dynamic_offset=3)), ValueError, 'from 0 to 2'),
    (dict(arch=dict(SMALL, kernel_size=2)), ValueError, 'kernel_size.*odd'),
    (dict(arch=dict(SMALL, mlp_ratio='4')), ValueError, 'mlp_ratio'),
    (dict(arch=dict(SMALL, mlp_ratio=1.1)), ValueError, r'must divide.*35'),
    (dict(arch=dict(SMALL, reduction=3)), ValueError, 'reduction'),
    (dict(patch_size=0), ValueError, 'patch_size must be at least 1'),
    (dict(patch_size=8.), TypeError, 'patch_size must be an int'),
    (dict(in_channels=True), TypeError, 'in_channels'),
    (dict(out_indices=5), ValueError, 'out_indices.* from -5 to 4, got 5'),
    (dict(out_indices=()), TypeError, 'out_indices'),
    (dict(out_indices='4'), TypeError, 'out_indices'),
    (dict(out_type='map'), ValueError, "'featmap', .* got 'map'"),
    (dict(drop_rate=1), ValueError, 'drop_rate'),
    (dict(drop_path_rate=-.1), ValueError, 'drop_path_rate'),
    (dict(drop_path_rate=None), TypeError, 'drop_path_rate'),
    (dict(norm_cfg=dict(type='BN')), ValueError, 'norm_cfg .*BN'),
    (dict(norm_cfg=dict(type='LN2d')), ValueError, 'norm_cfg .*LN2d'),
    (dict(arch=dict(SMALL, mlp_ratio=float('nan'))), ValueError, 'got nan'),
    (dict(final_norm='no'), TypeError, "final_norm must be .* got 'no'"),
    (dict(with_cp=1), TypeError, 'with_cp must be True or False, got 1'),
    (dict(pad='zero'), ValueError, "pad .*'corner'.* got 'zero'"),
    (dict(frozen_stages=6), ValueError, 'frozen_stages .* -1 to 5, got 6'),
])
def test_refuses(kwargs, error, message):
    with pytest.raises(error, match=message):
        WeightFormer(**{'arch': SMALL, **kwargs})


@pytest.mark.parametrize('kwargs, shape, message', [
    (dict(), (1, 4, 32, 32), r'\(B, 3, H, W\).*\(1, 4, 32, 32\)'),
    (dict(), (3, 32, 32), r'\(B, 3, H, W\).*\(3, 32, 32\)'),
    (dict(), (1, 3, 0, 32), 'at least 1×1.* got 0×32'),
    (dict(pad=None), (1, 3, 15, 32), 'at least 16×16.* got 15×32'),
])
def test_refuses_images(kwargs, shape, message):
    with pytest.raises(ValueError, match=message):
        build_backbone(**kwargs)(torch.zeros(shape))
