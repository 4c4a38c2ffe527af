# Copyright (c) mmweightformer contributors. All rights reserved.
"""A sequence is a grid of height 1, and equals the formulas in one dimension.
"""
import pytest
import torch
import torch.nn.functional as F
from helpers import count_macs, randomize, relative_error
from hypothesis import given
from hypothesis import strategies as st

from mmweightformer.models.backbones.weightformer import WeightFormerBlock
from mmweightformer.models.strategies import DYNAMIC_CONV, DYNAMIC_LINEAR

LENGTHS = st.integers(1, 12)
KERNEL_SIZES = st.sampled_from([1, 3, 7])
C, K = 8, 3


def build_linear(name='bilateral', in_features=C, out_features=2 * C):
    return randomize(DYNAMIC_LINEAR[name](in_features, out_features)).double()


def build_conv(name='adaptive', channels=C, kernel_size=K):
    layer = DYNAMIC_CONV[name](channels, kernel_size=(1, kernel_size))
    return randomize(layer).double()


def build_block(dynamic, kernel_size=K):
    block = WeightFormerBlock(
        C,
        4 * C,
        dynamic,
        dynamic_linear='bilateral',
        dynamic_conv='adaptive',
        reduction=4,
        kernel_size=(1, kernel_size),
        drop_rate=0.,
        drop_path_rate=0.,
        norm_cfg=dict(type='LN', eps=1e-6),
        act_cfg=dict(type='GELU'))
    return randomize(block).double()


def sequence(*shape):
    return torch.randn(shape, dtype=torch.float64)


def linear_formula(layer, x):
    """The bilateral prediction for (B, N, C), a sample after the other."""
    outputs = []
    for tokens in x:
        length, channels = tokens.shape
        pooled = tokens
        if length > 1:
            pooled = F.avg_pool1d(tokens.T[None], 2)[0].T
        factors = pooled @ layer.proj.weight.T + layer.proj.bias
        a, b = factors.split([channels // 4, layer.out_features // 4], 1)
        delta = layer.w1.T @ F.silu(a).T @ F.silu(b) @ layer.w2
        delta = delta / (length * channels**0.5)
        delta = delta / (delta.norm(dim=0) + 1)
        outputs.append(tokens @ (layer.weight + delta) + layer.bias)
    return torch.stack(outputs)


def conv_formula(layer, x):
    """The adaptive prediction for (B, C, N), a sample after the other."""
    kernel_size = layer.kernel_size[1]
    outputs = []
    for features in x:
        pooled = F.adaptive_avg_pool1d(features[None], kernel_size)
        hidden = F.gelu(
            F.conv1d(pooled, layer.conv1.weight[..., 0], layer.conv1.bias))
        delta = F.conv1d(hidden, layer.conv2.weight[..., 0])[0]
        delta = delta / (delta.norm(dim=1, keepdim=True) + 1)
        outputs.append(
            F.conv1d(
                features,
                layer.weight[:, :, 0] + delta[:, None],
                layer.bias,
                padding=kernel_size // 2,
                groups=len(features)))
    return torch.stack(outputs)


def block_formula(block, x):
    """One block for (B, N, C)."""

    def norm(layer, x):
        return F.layer_norm(x, (C, ), layer.weight, layer.bias, 1e-6)

    dynamic = isinstance(block.norm1, torch.nn.LayerNorm)
    if dynamic:
        x = norm(block.norm1, x)
        x = x + conv_formula(block.dwconv, x.mT).mT
        hidden = linear_formula(block.fc1, norm(block.norm2, x))
    else:
        weight = block.dwconv.weight[:, :, 0]
        x = x + F.conv1d(
            x.mT,
            weight,
            block.dwconv.bias,
            padding=weight.shape[-1] // 2,
            groups=C).mT
        hidden = F.linear(
            norm(block.norm2, x), block.fc1.weight, block.fc1.bias)
    return x + F.linear(F.gelu(hidden), block.fc2.weight, block.fc2.bias)


@given(st.integers(1, 3), LENGTHS, st.integers(1, 3), st.integers(1, 3))
def test_dynamic_linear_is_the_formula(batch, length, c, o):
    layer = build_linear(in_features=4 * c, out_features=4 * o)
    x = sequence(batch, length, 4 * c)
    y = layer(x)
    assert y.shape == (batch, length, 4 * o)
    assert relative_error(y, linear_formula(layer, x)) < 1e-12


@given(st.integers(1, 3), LENGTHS, st.integers(1, 9), KERNEL_SIZES)
def test_dynamic_conv_is_the_formula(batch, length, channels, kernel_size):
    layer = build_conv(channels=channels, kernel_size=kernel_size)
    x = sequence(batch, channels, length)
    y = layer(x)
    assert y.shape == x.shape
    assert relative_error(y, conv_formula(layer, x)) < 1e-12


@given(st.booleans(), st.integers(1, 3), LENGTHS, KERNEL_SIZES)
def test_block_is_the_formula(dynamic, batch, length, kernel_size):
    block = build_block(dynamic, kernel_size)
    x = sequence(batch, length, C)
    y = block(x[:, None])[:, 0]
    assert relative_error(y, block_formula(block, x)) < 1e-12


LAYERS = pytest.mark.parametrize(
    'build, name', [(build_linear, name)
                    for name in DYNAMIC_LINEAR] + [(build_conv, name)
                                                   for name in DYNAMIC_CONV],
    ids=lambda value: value if isinstance(value, str) else value.__name__)


def random_input(build, length, batch=2):
    """A sequence, and the axis at which it becomes a grid of height 1."""
    if build is build_linear:
        return sequence(batch, length, C), 1
    return sequence(batch, C, length), 2


@LAYERS
@pytest.mark.parametrize('length', [1, 2, 7, 16])
class TestEveryStrategy:

    def test_is_a_grid_of_height_1(self, build, name, length):
        layer = build(name)
        x, height = random_input(build, length)
        assert torch.equal(
            layer(x),
            layer(x.unsqueeze(height)).squeeze(height))

    def test_gradients(self, build, name, length):
        layer = build(name)
        x = random_input(build, length)[0].requires_grad_()
        params = dict(layer.named_parameters())

        def function(x, *values):
            return torch.func.functional_call(layer, dict(zip(params, values)),
                                              x)

        assert torch.autograd.gradcheck(
            function, (x, *params.values()), fast_mode=True)

    def test_empty_batch(self, build, name, length):
        layer = build(name)
        x = random_input(build, length, batch=0)[0]
        assert layer(x).shape == layer(x.new_ones(1, *x.shape[1:]))[:0].shape


@LAYERS
def test_macs_are_linear_in_tokens(build, name):
    layer = build(name)
    short, middle, long = (
        count_macs(layer,
                   random_input(build, length)[0])
        for length in (1024, 2048, 4096))
    assert long - middle == 2 * (middle - short) > 0


@pytest.mark.parametrize('dynamic', [False, True])
def test_macs_of_a_block_are_linear_in_tokens(dynamic):
    block = build_block(dynamic)
    short, middle, long = (
        count_macs(block, sequence(2, 1, length, C))
        for length in (1024, 2048, 4096))
    assert long - middle == 2 * (middle - short) > 0


@LAYERS
@pytest.mark.parametrize('shape', [(C, C), (1, C, 1, C, C)])
def test_other_shapes_are_refused(build, name, shape):
    with pytest.raises(ValueError) as error:
        build(name)(sequence(*shape))
    assert 'the input must be (B, ' in str(error.value)
    assert f'got {shape}' in str(error.value)


@pytest.mark.parametrize('kernel_size, message', [
    ((1, 2), r'kernel_size must be odd, got \(1, 2\)'),
    ((0, 3), 'kernel_size must be at least 1, got 0'),
    ((1, 3, 3), r'kernel_size must be one size or two, got \(1, 3, 3\)'),
    ((3, ), r'kernel_size must be one size or two, got \(3,\)'),
    ((1, 3.), 'kernel_size must be an int at least 1, got 3.0'),
])
@pytest.mark.parametrize('name', DYNAMIC_CONV)
def test_kernel_sizes_are_checked(name, kernel_size, message):
    with pytest.raises((TypeError, ValueError), match=message):
        DYNAMIC_CONV[name](C, kernel_size=kernel_size)
