# Copyright (c) mmweightformer contributors. All rights reserved.
import math

import pytest
import reference
import torch
from helpers import count_macs, randomize, relative_error
from mmengine.registry import MODELS
from torch import nn
from torch.nn import functional as F

from mmweightformer.models import DiT, WeightFormerDiT
from mmweightformer.utils import official_to_mm

# The size of the golden file.
SMALL = dict(embed_dims=32, depth=5, patch_size=2)
BOTH = pytest.mark.parametrize('name', ['DiT', 'WeightFormerDiT'])


def build(name='WeightFormerDiT', num_classes=10, arch=None, **kwargs):
    arch = dict(SMALL, **(arch or {}))
    if name == 'DiT':
        arch.setdefault('num_heads', 4)
    return MODELS.build(
        dict(type=name, arch=arch, num_classes=num_classes, **kwargs))


def build_random(*args, **kwargs):
    return randomize(build(*args, **kwargs)).double().eval()


def inputs(batch=2, h=8, w=8, channels=4, dtype=torch.float64):
    return (torch.randn(batch, channels, h, w, dtype=dtype),
            torch.randint(1000, (batch, )), torch.randint(10, (batch, )))


def load_golden():
    golden = reference.load_golden('weightformer_dit')
    model = build().eval()
    prefix = 'denoiser.'
    model.load_state_dict({
        name[len(prefix):]: value
        for name, value in official_to_mm(golden['state']).items()
    })
    return model, golden


def position_embedding(h, w, dims):
    """The published formula, a number at a time."""
    out = torch.zeros(h, w, dims, dtype=torch.float64)
    quarter = dims // 4
    for row in range(h):
        for column in range(w):
            for i in range(quarter):
                rate = 10000**(-i / quarter)
                for j, value in enumerate([
                        math.sin(column * rate),
                        math.cos(column * rate),
                        math.sin(row * rate),
                        math.cos(row * rate)
                ]):
                    out[row, column, j * quarter + i] = value
    return out


def norm(x):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


def modulation(condition, params, number):
    out = F.linear(
        F.silu(condition), params['adaLN_modulation.1.weight'],
        params['adaLN_modulation.1.bias'])
    return out[:, None, None].chunk(number, dim=-1)


def transcription(x, timesteps, labels, state):
    """WeightFormerDiT from its formulas, under the published names."""
    weight = state['x_embedder.proj.weight']
    dims, channels, size, _ = weight.shape
    x = F.conv2d(x, weight, state['x_embedder.proj.bias'], stride=size)
    x = x.permute(0, 2, 3, 1)
    batch, h, w, _ = x.shape
    x = x + position_embedding(h, w, dims)
    rates = 10000**(-torch.arange(128, dtype=torch.float64) / 128)
    angles = timesteps[:, None] * rates
    time = torch.cat([angles.cos(), angles.sin()], 1)
    time = F.linear(time, state['t_embedder.mlp.0.weight'],
                    state['t_embedder.mlp.0.bias'])
    time = F.linear(
        F.silu(time), state['t_embedder.mlp.2.weight'],
        state['t_embedder.mlp.2.bias'])
    condition = time + state['y_embedder.embedding_table.weight'][labels]
    for i in range(5):
        params = reference.select(state, f'blocks.{i}.')
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation(
            condition, params, 6)
        dwc, linear1, linear2 = (
            reference.select(params, f'{layer}.')
            for layer in ('dwc', 'linear1', 'linear2'))
        dynamic = i in (1, 4)
        conv = (
            reference.dynamic_depthwise_conv
            if dynamic else reference.static_depthwise_conv)
        x = norm(x)
        x = x + gate_a * conv(x * (1 + scale_a) + shift_a, dwc)
        hidden = norm(x) * (1 + scale_m) + shift_m
        if dynamic:
            hidden = reference.dynamic_linear(hidden, linear1)
        else:
            hidden = F.linear(hidden, linear1['weight'], linear1['bias'])
        hidden = F.gelu(hidden, approximate='tanh')
        x = x + gate_m * F.linear(hidden, linear2['weight'], linear2['bias'])
    final = reference.select(state, 'final_layer.')
    shift, scale = modulation(condition, final, 2)
    x = F.linear(
        norm(x) * (1 + scale) + shift, final['linear.weight'],
        final['linear.bias'])
    x = x.reshape(batch, h, w, size, size, 2 * channels)
    x = x.permute(0, 5, 1, 3, 2, 4)
    return x.reshape(batch, 2 * channels, h * size, w * size)


class TestGolden:
    """The numbers of the published implementation."""

    @torch.no_grad()
    def test_output(self):
        model, golden = load_golden()
        out = model(golden['input'], golden['timesteps'], golden['labels'])
        assert relative_error(out, golden['output']) < 1e-5

    @torch.no_grad()
    def test_guidance(self):
        """Of two latents, the last two labels in place of the null class."""
        model, golden = load_golden()
        out, free = model(golden['input'][:2].repeat(2, 1, 1, 1),
                          golden['timesteps'], golden['labels']).chunk(2)
        expected, expected_free = golden['output_cfg1.5'].chunk(2)
        assert relative_error(model.guide(out, free, 1.5), expected) < 1e-5
        # There, each half gets the guided noise and keeps what is its own.
        assert torch.equal(expected_free[:, :3], expected[:, :3])
        assert relative_error(free[:, 3:], expected_free[:, 3:]) < 1e-5

    @torch.no_grad()
    def test_transcription(self):
        """So that the literal formulas can stand for it elsewhere."""
        _, golden = load_golden()
        state = {k: v.double() for k, v in golden['state'].items()}
        out = transcription(golden['input'].double(), golden['timesteps'],
                            golden['labels'], state)
        # The angles are of another rounding.
        assert relative_error(out, golden['output']) < 1e-4


@torch.no_grad()
@pytest.mark.parametrize('h, w', [(6, 14), (10, 6), (2, 8), (16, 16)])
def test_any_grid_equals_the_formulas(h, w):
    model, golden = load_golden()
    model.double()
    state = {k: v.double() for k, v in golden['state'].items()}
    x, _, labels = inputs(h=h, w=w)
    # Timesteps whose float32 angles are as good as those of float64.
    timesteps = torch.tensor([0, 1])
    out = model(x, timesteps, labels)
    assert out.shape == (2, 8, h, w)
    expected = transcription(x, timesteps, labels, state)
    assert relative_error(out, expected) < 1e-6
    # It is the position embedding that tells rows from columns.
    turned = transcription(x.mT, timesteps, labels, state).mT
    assert relative_error(out, turned) > 1e-2


@torch.no_grad()
@BOTH
@pytest.mark.parametrize('h, w', [(2, 3), (5, 1), (4, 4)])
def test_position_embedding_follows_the_grid(name, h, w):
    model = build_random(name)
    seen = []
    model.layers[0].register_forward_pre_hook(
        lambda layer, args: seen.append(args[0]))
    x, timesteps, labels = inputs(h=2 * h, w=2 * w)
    model(x, timesteps, labels)
    patches = model.patch_embed(x).permute(0, 2, 3, 1)
    expected = position_embedding(h, w, 32).expand(2, -1, -1, -1)
    assert torch.allclose(seen[0] - patches, expected, rtol=0, atol=1e-12)


@torch.no_grad()
@BOTH
def test_predict_guided(name):
    model = build_random(name)
    x, timesteps, labels = inputs()
    out = model(x, timesteps, labels)
    free = model(x, timesteps, torch.full_like(labels, 10))
    assert relative_error(out, free) > 1e-2
    for scale in 0., 1.5, 4.:
        guided = model.predict_guided(x, timesteps, labels, scale)
        # Of four channels of noise, three are guided.
        assert relative_error(guided[:, :3], free[:, :3] + scale *
                              (out[:, :3] - free[:, :3])) < 1e-12
        assert relative_error(guided[:, 3:], out[:, 3:]) < 1e-12
        assert torch.equal(model.guide(out, free, scale)[:, 3:], out[:, 3:])
    assert torch.equal(model.predict_guided(x, timesteps, labels, 1), out)


@torch.no_grad()
def test_one_channel_is_guided_alone():
    model = build_random(in_channels=1)
    x, timesteps, labels = inputs(channels=1)
    guided = model.predict_guided(x, timesteps, labels, 2.)
    out = model(x, timesteps, labels)
    assert guided.shape == (2, 2, 8, 8)
    assert relative_error(guided[:, :1], out[:, :1]) > 1e-2
    assert relative_error(guided[:, 1:], out[:, 1:]) < 1e-12


@torch.no_grad()
@BOTH
@pytest.mark.parametrize('patch_size', [1, 3, 8])
def test_patches(name, patch_size):
    """A patch in, a patch out, at its own place."""
    model = build_random(name, arch=dict(patch_size=patch_size, depth=1))
    # Without blocks, no token sees another.
    model.layers = nn.ModuleList()
    x, timesteps, labels = inputs(1, 2 * patch_size, 3 * patch_size)
    out = model(x, timesteps, labels)
    assert out.shape == (1, 8, *x.shape[2:])
    patch = ..., slice(patch_size, None), slice(patch_size, 2 * patch_size)
    other = x.clone()
    other[patch] += 1
    change = model(other, timesteps, labels) - out
    assert change[patch].abs().min() > 0
    change[patch] = 0
    assert not change.any()


@BOTH
def test_checkpointing_keeps_gradients(name):
    x, timesteps, labels = inputs()
    model = build_random(name)
    grads, outs = [], []
    for model.with_cp in False, True:
        model.zero_grad()
        outs.append(model(x, timesteps, labels))
        outs[-1].square().mean().backward()
        grads.append([param.grad.clone() for param in model.parameters()])
    assert torch.equal(*outs)
    assert all(grad.any() for grad in grads[0])
    for grad, recomputed in zip(*grads):
        assert relative_error(recomputed, grad) < 1e-12


@torch.no_grad()
@BOTH
def test_initialization(name):
    """Every branch is closed, and nothing is predicted."""
    model = build(name).eval()
    x, timesteps, labels = inputs(dtype=torch.float32)
    assert not model(x, timesteps, labels).any()
    condition = torch.randn(2, 32)
    grid = torch.randn(2, 4, 4, 32)
    for layer in model.layers:
        kept = grid if name == 'DiT' else norm(grid)
        assert torch.equal(layer(grid, condition), kept)
    assert model.patch_embed.weight.std() > 0.05
    assert 0.015 < model.label_embed.weight.std() < 0.025


@torch.no_grad()
@BOTH
def test_samples_are_independent(name):
    model = build_random(name)
    x, timesteps, labels = inputs(3)
    together = model(x, timesteps, labels)
    for i in range(3):
        one = slice(i, i + 1)
        alone = model(x[one], timesteps[one], labels[one])
        assert relative_error(together[one], alone) < 1e-12


@torch.no_grad()
@BOTH
def test_depends_on_every_input(name):
    model = build_random(name)
    x, timesteps, labels = inputs()
    out = model(x, timesteps, labels)
    for changed in [(x, timesteps + 1, labels), (x, timesteps, labels + 1),
                    (x.flip(3), timesteps, labels)]:
        assert relative_error(model(*changed), out) > 1e-4


@torch.no_grad()
def test_dit_block_is_torch_attention():
    layer = build_random('DiT').layers[0]
    attention = nn.MultiheadAttention(32, 4, batch_first=True).double()
    attention.in_proj_weight.copy_(layer.qkv.weight)
    attention.in_proj_bias.copy_(layer.qkv.bias)
    attention.out_proj.load_state_dict(layer.proj.state_dict())
    mlp = nn.Sequential(
        nn.Linear(32, 128), nn.GELU('tanh'), nn.Linear(128, 32)).double()
    mlp[0].load_state_dict(layer.fc1.state_dict())
    mlp[2].load_state_dict(layer.fc2.state_dict())
    grid = torch.randn(2, 3, 5, 32, dtype=torch.float64)
    condition = torch.randn(2, 32, dtype=torch.float64)

    x = grid.flatten(1, 2)
    pairs = F.linear(
        F.silu(condition), layer.modulation[1].weight,
        layer.modulation[1].bias)
    shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = pairs.view(
        2, 6, 1, 32).unbind(1)
    y = norm(x) * (1 + scale_a) + shift_a
    x = x + gate_a * attention(y, y, y, need_weights=False)[0]
    x = x + gate_m * mlp(norm(x) * (1 + scale_m) + shift_m)
    out = layer(grid, condition)
    assert relative_error(out.flatten(1, 2), x) < 1e-12


# Parameters in millions and multiply-adds in billions, of latents of 32×32.
# DiT's MACs are those that its authors published, but for their 5.56 of B/4.
@pytest.mark.parametrize('kind, arch, params, macs', [
    (WeightFormerDiT, 's/2', 37.57, 5.06),
    (WeightFormerDiT, 's/4', 37.62, 1.28),
    (WeightFormerDiT, 's/8', 37.84, 0.34),
    (WeightFormerDiT, 'b/2', 149.01, 20.14),
    (WeightFormerDiT, 'b/4', 149.12, 5.11),
    (WeightFormerDiT, 'B/8', 149.56, 1.36),
    (DiT, 's/2', 32.87, 6.06),
    (DiT, 's/4', 32.92, 1.41),
    (DiT, 'S/8', 33.14, 0.36),
    (DiT, 'b/2', 130.32, 23.01),
    (DiT, 'b/4', 130.43, 5.57),
    (DiT, 'b/8', 130.87, 1.42),
])
def test_sizes(kind, arch, params, macs):
    with torch.device('meta'):
        model = kind(arch).eval().requires_grad_(False)
        step = torch.zeros(1, dtype=torch.long)
        counted = count_macs(model, torch.zeros(1, 4, 32, 32), step, step)
    numbers = [param.numel() for param in model.parameters()]
    assert round(sum(numbers) / 1e6, 2) == params
    assert round(counted / 1e9, 2) == macs


@pytest.mark.parametrize('name, kwargs, error, message', [
    ('DiT', dict(arch='l/2'), ValueError, 'arch must be one of .*s/2'),
    ('WeightFormerDiT', dict(arch=2), TypeError, 'arch must be a str or a d'),
    ('WeightFormerDiT', dict(arch=dict(SMALL, num_heads=2)), ValueError,
     'a key of arch must be one of .*num_heads'),
    ('DiT', dict(arch=dict(SMALL, num_heads=2, dynamic_every=3)), ValueError,
     'a key of arch must be one of .*dynamic_every'),
    ('DiT', dict(arch=dict(SMALL, num_heads=5)), ValueError,
     r"arch\['num_heads'\] \(5\) must divide arch\['embed_dims'\] \(32\)"),
    ('DiT', dict(arch=SMALL), TypeError, r"arch\['num_heads'\] must be an in"),
    ('WeightFormerDiT', dict(arch=dict(SMALL, embed_dims=30)), ValueError,
     r"arch\['embed_dims'\] must be a multiple of 4, got 30"),
    ('WeightFormerDiT', dict(arch=dict(SMALL, patch_size=0)), ValueError,
     r"arch\['patch_size'\] must be at least 1, got 0"),
    ('DiT', dict(in_channels=0), ValueError, 'in_channels must be at least 1'),
    ('DiT', dict(num_classes=0), ValueError, 'num_classes must be at least 1'),
    ('DiT', dict(with_cp=1), TypeError,
     'with_cp must be True or False, got 1'),
    ('WeightFormerDiT', dict(dynamic_conv='no'), ValueError, 'dynamic_conv'),
])
def test_refuses_arguments(name, kwargs, error, message):
    kind = dict(DiT=DiT, WeightFormerDiT=WeightFormerDiT)[name]
    with pytest.raises(error, match=message):
        kind(**kwargs)


@pytest.mark.parametrize('shape, message', [
    ((1, 3, 8, 8), r'the input must be \(B, 4, H, W\).* got \(1, 3, 8, 8\)'),
    ((4, 8, 8), r'the input must be \(B, 4, H, W\)'),
    ((1, 4, 8, 7), 'multiples of patch_size=2, got 8×7'),
    ((1, 4, 0, 8), 'positive multiples of patch_size=2, got 0×8'),
])
def test_refuses_inputs(shape, message):
    step = torch.zeros(1, dtype=torch.long)
    with pytest.raises(ValueError, match=message):
        build()(torch.zeros(shape), step, step)
