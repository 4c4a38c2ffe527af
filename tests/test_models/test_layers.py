# Copyright (c) mmweightformer contributors. All rights reserved.
import pytest
import reference
import torch
from helpers import randomize, relative_error
from hypothesis import given
from hypothesis import strategies as st

from mmweightformer.models import DynamicDepthwiseConv2d, DynamicLinear
from mmweightformer.models.strategies import DYNAMIC_CONV, DYNAMIC_LINEAR

GRIDS = st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
DTYPES = st.sampled_from([(torch.float64, 1e-12), (torch.float32, 1e-5)])


def linear_params(layer):
    return {
        'w': layer.weight,
        'b': layer.bias,
        'wfm.weight': layer.proj.weight,
        'wfm.bias': layer.proj.bias,
        'w1': layer.w1,
        'w2': layer.w2
    }


def conv_params(layer):
    return {
        'w': layer.weight,
        'b': layer.bias,
        'wfm.0.weight': layer.conv1.weight,
        'wfm.0.bias': layer.conv1.bias,
        'wfm.2.weight': layer.conv2.weight
    }


@given(GRIDS, st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 2, 4]),
       DTYPES)
def test_dynamic_linear_is_the_formula(grid, c, o, reduction, precision):
    dtype, tolerance = precision
    layer = DynamicLinear(c * reduction, o * reduction, reduction)
    layer = randomize(layer).to(dtype)
    x = torch.randn(*grid, layer.in_features, dtype=dtype)
    expected = reference.dynamic_linear(x, linear_params(layer), reduction)
    assert relative_error(layer(x), expected) < tolerance


@given(GRIDS, st.integers(1, 9), st.sampled_from([1, 3, 5]), DTYPES)
def test_dynamic_conv_is_the_formula(grid, channels, kernel_size, precision):
    dtype, tolerance = precision
    layer = randomize(DynamicDepthwiseConv2d(channels, kernel_size)).to(dtype)
    x = torch.randn(*grid, channels, dtype=dtype)
    expected = reference.dynamic_depthwise_conv(x, conv_params(layer))
    y = layer(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    assert relative_error(y, expected) < tolerance


PUBLISHED = [
    (DynamicLinear(4, 8, 2), (2, 3, 5, 4)),
    (DynamicDepthwiseConv2d(3), (2, 3, 4, 5)),
]
OTHERS = [
    *((layer(4, 8, 2), (2, 3, 5, 4))
      for layer in DYNAMIC_LINEAR.values() if layer is not DynamicLinear),
    *((layer(4), (2, 4, 4, 5)) for layer in DYNAMIC_CONV.values()
      if layer is not DynamicDepthwiseConv2d),
]


@pytest.mark.parametrize(
    'layer, shape', [*PUBLISHED, *OTHERS],
    ids=lambda value: type(value).__name__)
class TestEveryLayer:

    def test_gradients(self, layer, shape):
        layer = randomize(layer).double()
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        params = dict(layer.named_parameters())

        def function(x, *values):
            return torch.func.functional_call(layer, dict(zip(params, values)),
                                              x)

        assert torch.autograd.gradcheck(
            function, (x, *params.values()), fast_mode=True)

    def test_no_delta_has_a_finite_gradient(self, layer, shape):
        for param in layer.parameters():
            torch.nn.init.zeros_(param)
        x = torch.zeros(shape, dtype=layer.weight.dtype, requires_grad=True)
        layer(x).sum().backward()
        assert x.grad.isfinite().all()
        assert all(p.grad.isfinite().all() for p in layer.parameters())

    def test_samples_do_not_see_each_other(self, layer, shape):
        layer = randomize(layer).double()
        x = torch.randn(shape, dtype=torch.float64)
        alone = torch.cat([layer(sample[None]) for sample in x])
        torch.testing.assert_close(layer(x), alone)

    def test_empty_batch(self, layer, shape):
        layer = layer.float()
        full = layer(torch.randn(shape))
        empty = layer(torch.randn(0, *shape[1:]))
        assert empty.shape == (0, *full.shape[1:])
        empty.sum().backward()
        assert all(p.grad is not None for p in layer.parameters())

    def test_any_memory_layout(self, layer, shape):
        layer = randomize(layer).double()
        x = torch.randn(shape, dtype=torch.float64)
        strided = x.transpose(1, 3).contiguous().transpose(1, 3)
        assert strided.stride() != x.stride()
        torch.testing.assert_close(layer(strided), layer(x))
        first = x[:1].expand(2, -1, -1, -1)
        torch.testing.assert_close(layer(first)[1:], layer(x[:1]))


@pytest.mark.parametrize('layer, shape', PUBLISHED)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_parameters(layer, shape, dtype):
    layer = randomize(layer).to(dtype)
    x = torch.randn(shape, dtype=dtype)
    y = layer(x)
    assert y.dtype == dtype
    exact = layer.double()(x.double())
    assert relative_error(y.double(), exact) < 0.02


def check_autocast(layer, x, dtype):
    exact = layer(x)
    with torch.autocast('cpu', dtype):
        y = layer(x)
    # Not the largest error: kernels that nearly cancel have few digits.
    assert (y.float() - exact).norm() < 0.02 * exact.norm()
    (y.float()**2).mean().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
class TestAutocastAt2048:
    """At 2048×2048 pixels, so 128×128 tokens, beyond float16's 65,504."""

    @pytest.mark.parametrize('factor', [30, 1000])
    def test_dynamic_linear(self, dtype, factor):
        layer = randomize(DynamicLinear(16, 64))
        # Each of 4,096 pooled tokens adds factor² to the sum.
        torch.nn.init.constant_(layer.proj.bias, factor)
        x = torch.randn(1, 128, 128, 16, requires_grad=True)
        check_autocast(layer, x, dtype)

    def test_dynamic_conv(self, dtype):
        layer = randomize(DynamicDepthwiseConv2d(16))
        # The entries of a kernel are about 300, their squares 90,000.
        torch.nn.init.constant_(layer.conv1.bias, 300)
        x = torch.randn(1, 16, 128, 128, requires_grad=True)
        check_autocast(layer, x, dtype)


@pytest.mark.parametrize('kwargs, message', [
    (dict(in_features=0, out_features=8), 'in_features .* got 0'),
    (dict(in_features=8, out_features=-8), 'out_features .* got -8'),
    (dict(in_features=8, out_features=8, reduction=0), 'reduction .* got 0'),
    (dict(in_features=6, out_features=8), r'reduction \(4\) .* \(6\)'),
    (dict(in_features=8, out_features=6), r'reduction \(4\) .* \(6\)'),
    (dict(in_features='8', out_features=8), "in_features .* got '8'"),
    (dict(in_features=8, out_features=8.), 'out_features .* got 8.0'),
])
def test_dynamic_linear_refuses(kwargs, message):
    with pytest.raises((TypeError, ValueError), match=message):
        DynamicLinear(**kwargs)


@pytest.mark.parametrize('args, message', [
    ((0, 3), 'channels .* got 0'),
    ((4, 2), 'kernel_size must be odd, got 2'),
    ((4, -1), 'kernel_size .* got -1'),
    ((4, (3, 2)), r'kernel_size .* got \(3, 2\)'),
    ((4, (3, 3, 3)), r'kernel_size .* got \(3, 3, 3\)'),
    ((4, (3, '3')), "kernel_size .* got '3'"),
    ((4, 3, 1), 'normalize .* got 1'),
])
def test_dynamic_conv_refuses(args, message):
    with pytest.raises((TypeError, ValueError), match=message):
        DynamicDepthwiseConv2d(*args)
