# Copyright (c) mmweightformer contributors. All rights reserved.
"""The predictions other than the published ones, and users' own."""
import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from helpers import (GRAPHS_FOR_ALL_SIZES, SMALL, build_backbone, captured,
                     count_macs, randomize, relative_error)
from hypothesis import given
from hypothesis import strategies as st
from mmengine.registry import MODELS
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from mmweightformer.analysis.transcription import LiteralWeightFormer
from mmweightformer.deployment import Exportable, export
from mmweightformer.models import (DynamicDepthwiseConv2d, DynamicLinear,
                                   PredictedDepthwiseConv2d, PredictedLinear)
from mmweightformer.models.strategies import DYNAMIC_CONV, DYNAMIC_LINEAR

GRIDS = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))


def mean_tokens(x):
    return x.flatten(1, 2).mean(1, keepdim=True)


def pooled_tokens(x):
    """2×2 means of the grid, written as a sum."""
    for dim in 1, 2:
        if x.shape[dim] > 1:
            pairs = x.shape[dim] // 2
            x = x.narrow(dim, 0, 2 * pairs).unflatten(dim, (pairs, 2))
            x = x.mean(dim + 1)
    return x.flatten(1, 2)


def silu(x):
    return x * torch.sigmoid(x)


def linear_delta(name, layer, x):
    """ΔW by the formula of each docstring, all sums in one line."""
    tokens = mean_tokens(x) if name == 'gap' else pooled_tokens(x)
    n = 1 if name == 'gap' else x.shape[1] * x.shape[2]
    a, b = (tokens @ layer.proj.weight.T + layer.proj.bias).split(
        layer.ranks, -1)
    scale = 1 / (n * layer.in_features**0.5)
    if name == 'deep':
        a, b = (silu(t) @ deep.weight.T + deep.bias
                for t, deep in ((a, layer.deep1), (b, layer.deep2)))
    if name in ('bilateral', 'gap', 'deep'):
        a, b = silu(a), silu(b)
    core = torch.einsum('bnr,bns->brs', a, b) * scale
    if name == 'nonlinear':
        core = silu(core)
    return torch.einsum('rc,brs,so->bco', layer.w1, core, layer.w2)


@pytest.mark.parametrize('name', DYNAMIC_LINEAR)
@given(grid=GRIDS, c=st.integers(1, 4), o=st.integers(1, 4))
def test_linear_is_its_formula(name, grid, c, o):
    layer = randomize(DYNAMIC_LINEAR[name](2 * c, 2 * o, 2)).double()
    x = torch.randn(*grid, 2 * c, dtype=torch.float64)
    delta = linear_delta(name, layer, x)
    torch.testing.assert_close(layer.predict_delta(x), delta)
    weight = layer.weight + delta / (delta.norm(dim=1, keepdim=True) + 1)
    torch.testing.assert_close(layer.predict(x), weight)
    expected = torch.einsum('bhwc,bco->bhwo', x, weight) + layer.bias
    assert relative_error(layer(x), expected) < 1e-12
    layer.normalize = False
    torch.testing.assert_close(layer.predict(x), layer.weight + delta)


def conv_delta(name, layer, x):
    """Δw by the formula of each docstring."""
    size = layer.kernel_size
    mean = x.mean((2, 3), keepdim=True)
    if name == 'gap':
        hidden = F.gelu(layer.conv1(mean))
        return layer.conv2(hidden).reshape(len(x), layer.channels, *size)
    if name == 'conv':
        hidden = F.gelu(layer.conv1(x))
        return layer.conv2(F.adaptive_avg_pool2d(hidden, size))
    pooled = F.adaptive_avg_pool2d(x, size)
    kernel = layer.conv2(F.gelu(layer.conv1(pooled)))
    if name == 'adaptive':
        return kernel
    amplitude = torch.log1p(layer.amplitude(mean).exp())
    return amplitude * kernel / kernel.norm(dim=(2, 3), keepdim=True)


@pytest.mark.parametrize('name', DYNAMIC_CONV)
@given(grid=GRIDS, kernel_size=st.sampled_from([1, 3, 5, 7, (1, 3), (5, 1)]))
def test_conv_is_its_formula(name, grid, kernel_size):
    layer = randomize(DYNAMIC_CONV[name](4, kernel_size)).double()
    batch, h, w = grid
    x = torch.randn(batch, 4, h, w, dtype=torch.float64)
    delta = conv_delta(name, layer, x)
    torch.testing.assert_close(layer.predict_delta(x), delta)
    norm = delta.square().sum((2, 3), keepdim=True).sqrt()
    kernels = layer.weight[:, 0] + delta / (norm + 1)
    torch.testing.assert_close(layer.predict(x), kernels)
    expected = torch.cat([
        F.conv2d(image[None], kernel[:, None], layer.bias, 1, layer.padding, 1,
                 4) for image, kernel in zip(x, kernels)
    ])
    assert relative_error(layer(x), expected) < 1e-12
    layer.normalize = False
    torch.testing.assert_close(layer.predict(x), layer.weight[:, 0] + delta)


def test_gap_has_rank_one():
    layer = randomize(DYNAMIC_LINEAR['gap'](16, 32, 2)).double()
    x = torch.randn(2, 5, 6, 16, dtype=torch.float64)
    assert (torch.linalg.matrix_rank(layer.predict_delta(x)) == 1).all()


LAYERS = [
    *[(name, (layer, (16, 32)), (2, 5, 6, 16))
      for name, layer in DYNAMIC_LINEAR.items()],
    *[(name, (layer, (8, )), (2, 8, 5, 6))
      for name, layer in DYNAMIC_CONV.items()]
]  # yapf: disable


@pytest.mark.parametrize(
    'layer, shape', [layer for _, *layer in LAYERS],
    ids=[layer.__name__ for _, (layer, _), _ in LAYERS])
class TestEveryLayer:
    """Beside what test_layers.py asks of them."""

    def build(self, layer):
        cls, sizes = layer
        return randomize(cls(*sizes))

    @pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
    def test_autocast(self, layer, shape, dtype):
        layer = self.build(layer)
        x = torch.randn(shape, requires_grad=True)
        exact = layer(x)
        with torch.autocast('cpu', dtype):
            y = layer(x)
        assert (y.float() - exact).norm() < 0.02 * exact.norm()
        (y.float()**2).mean().backward()
        assert x.grad.isfinite().all()

    @pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
    def test_half_parameters(self, layer, shape, dtype):
        layer = self.build(layer).to(dtype)
        x = torch.randn(shape, dtype=dtype)
        y = layer(x)
        assert y.dtype == dtype
        exact = layer.double()(x.double())
        assert (y.double() - exact).norm() < 0.03 * exact.norm()

    def test_traced_equals_eager(self, layer, shape):
        layer = self.build(layer).double()
        x = torch.randn(shape, dtype=torch.float64)
        traced = torch.func.vmap(lambda s: layer(s[None])[0])(x)
        torch.testing.assert_close(traced, layer(x))


STRATEGIES = [
    *[dict(dynamic_linear=name) for name in (*DYNAMIC_LINEAR, 'static')],
    *[dict(dynamic_conv=name) for name in (*DYNAMIC_CONV, 'static')],
    dict(dynamic_linear='static', dynamic_conv='static')
]  # yapf: disable


def strategy_id(kwargs):
    return '-'.join(kwargs.values())


@pytest.mark.parametrize('kwargs', STRATEGIES, ids=strategy_id)
class TestBackbone:

    def test_is_linear_in_tokens(self, kwargs):
        """Equal steps in tokens, of even sides, are equal steps in MACs."""
        model = build_backbone(
            arch=dict(SMALL, kernel_size=5, reduction=8), **kwargs).eval()
        macs = [
            count_macs(
                model.to('meta'),
                torch.empty(1, 3, 256, 256 * n, device='meta'))
            for n in (1, 2, 3, 8)
        ]
        assert macs[2] - macs[1] == macs[1] - macs[0]
        assert macs[3] - macs[2] == 5 * (macs[1] - macs[0])

    @pytest.mark.parametrize('kernel_size', [3, 5, 7])
    @pytest.mark.parametrize('reduction', [1, 2, 8])
    def test_kernel_size_and_reduction(self, kwargs, kernel_size, reduction):
        model = build_backbone(
            arch=dict(SMALL, kernel_size=kernel_size, reduction=reduction),
            **kwargs)
        image = torch.randn(2, 3, 50, 70, requires_grad=True)
        y, = model(image)
        assert y.shape == (2, 32, 4, 5)
        y.square().sum().backward()
        assert image.grad.isfinite().all()
        for name, param in model.named_parameters():
            assert param.grad is not None, name
            assert param.grad.isfinite().all(), name
        for layer in model.modules():
            if isinstance(layer, PredictedLinear):
                assert layer.reduction == reduction
            if isinstance(layer, PredictedDepthwiseConv2d):
                assert layer.kernel_size == (kernel_size, kernel_size)

    def test_mlp_in_parts_is_the_mlp(self, kwargs):
        """The CPU's order of it, taken for every strategy, and the plain."""
        model = build_backbone(**kwargs).double()
        image = torch.randn(2, 3, 64, 64, dtype=torch.float64)
        expected, = model(image)
        for layer in model.layers:
            assert layer._runs_in_parts(image)
            layer.fc2.register_forward_hook(lambda *args: None)
            assert not layer._runs_in_parts(image)
        torch.testing.assert_close(model(image)[0], expected)

    def test_compiles_once_more_for_all_sizes(self, kwargs):
        model = randomize(build_backbone(**kwargs)).double().eval()
        model.requires_grad_(False)
        counter = CompileCounterWithBackend('aot_eager')
        torch.compiler.reset()
        compiled = torch.compile(model, fullgraph=True, backend=counter)
        for batch, *size in (2, 64, 96), (3, 80, 130), (4, 113, 65):
            image = torch.randn(batch, 3, *size, dtype=torch.float64)
            torch.testing.assert_close(compiled(image), model(image))
        assert counter.frame_count == GRAPHS_FOR_ALL_SIZES

    def test_copies(self, kwargs):
        model = build_backbone(**kwargs).eval()
        image = torch.randn(1, 3, 32, 32)
        for other in copy.deepcopy(model), pickle.loads(pickle.dumps(model)):
            torch.testing.assert_close(other(image), model(image))


@captured
@pytest.mark.parametrize('linear, conv', [('deep', 'conv'), ('gap', 'gap'),
                                          ('nonlinear', 'amp_dir'),
                                          ('linear', 'static')])
def test_exported_for_all_sizes(linear, conv, tmp_path):
    """export() compares the file with the model at five shapes."""
    model = randomize(
        build_backbone(
            dict(SMALL, depth=2), dynamic_linear=linear, dynamic_conv=conv))
    wrapped = nn.Module()
    wrapped.backbone = model
    path = tmp_path / 'model.pt2'
    checks = export(Exportable(wrapped, 'backbone'), path, {})
    assert len({check.shape for check in checks}) > 2


def test_names_choose_the_layers():
    model = build_backbone(
        dynamic_linear='deep', dynamic_conv=dict(type='gap', reduction=8))
    for i, layer in enumerate(model.layers):
        dynamic = i % 3 == 1
        assert (type(layer.fc1) is DYNAMIC_LINEAR['deep']) == dynamic
        assert (type(layer.dwconv) is DYNAMIC_CONV['gap']) == dynamic
    assert model.layers[1].dwconv.conv1.out_channels == 4


def test_a_config_has_its_own_arguments():
    model = build_backbone(
        dynamic_linear=dict(type='bilateral', reduction=2, normalize=False),
        dynamic_conv=dict(type='DynamicDepthwiseConv2d', kernel_size=7))
    fc1, dwconv = model.layers[1].fc1, model.layers[1].dwconv
    assert type(fc1) is DynamicLinear
    assert (fc1.reduction, fc1.normalize) == (2, False)
    assert type(dwconv) is DynamicDepthwiseConv2d
    assert dwconv.kernel_size == (7, 7)
    assert model.layers[0].dwconv.kernel_size == (3, 3)


@pytest.mark.parametrize('placement, expected', [
    (dict(), [1, 4]),
    (dict(dynamic_every=1), [0, 1, 2, 3, 4]),
    (dict(dynamic_every=4), [2]),
    (dict(dynamic_every=6), [4]),
    (dict(dynamic_every=2, dynamic_offset=1), [1, 3]),
    (dict(dynamic_indices=[]), []),
    (dict(dynamic_indices=(0, 3)), [0, 3]),
    (dict(dynamic_indices=range(2, 4)), [2, 3]),
])
def test_placement(placement, expected):
    model = build_backbone(arch=dict(SMALL, **placement))
    dynamic = [
        i for i, layer in enumerate(model.layers)
        if isinstance(layer.fc1, DynamicLinear)
    ]
    assert dynamic == expected


@pytest.fixture
def own_layers():
    """Predictions of a user: their deltas are their means, and nothing."""

    @MODELS.register_module()
    class MeanLinear(PredictedLinear):

        def predict_delta(self, x):
            mean = x.mean((1, 2, 3)).view(-1, 1, 1)
            return mean.expand(-1, self.in_features, self.out_features)

    @MODELS.register_module()
    class NoDepthwiseConv2d(PredictedDepthwiseConv2d):

        def predict_delta(self, x):
            return x.new_zeros(*x.shape[:2], *self.kernel_size)

    yield MeanLinear, NoDepthwiseConv2d
    for name in 'MeanLinear', 'NoDepthwiseConv2d':
        MODELS.module_dict.pop(name)


def test_a_users_own(own_layers):
    model = build_backbone(
        dynamic_linear='MeanLinear',
        dynamic_conv=dict(type='NoDepthwiseConv2d')).double()
    linear, conv = own_layers
    fc1, dwconv = model.layers[1].fc1, model.layers[1].dwconv
    assert type(fc1) is linear and type(dwconv) is conv
    x = torch.randn(2, 4, 4, 32, dtype=torch.float64)
    mean = x.mean((1, 2, 3))
    delta = mean / (mean.abs() * 32**0.5 + 1)
    torch.testing.assert_close(
        fc1(x), x @ fc1.weight + fc1.bias +
        (x.sum(-1) * delta[:, None, None])[..., None])
    image = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    model(image)[0].sum().backward()
    assert fc1.weight.grad.isfinite().all()


def test_a_users_own_delta_of_a_factored_layer():

    class TwiceLinear(DynamicLinear):

        def predict_delta(self, x):
            return 2 * super().predict_delta(x)

    layer = randomize(TwiceLinear(8, 16)).double()
    x = torch.randn(2, 3, 4, 8, dtype=torch.float64)
    delta = 2 * linear_delta('bilateral', layer, x)
    torch.testing.assert_close(
        layer.predict(x),
        layer.weight + delta / (delta.norm(dim=1, keepdim=True) + 1))


@pytest.mark.parametrize('kwargs, error, message', [
    (dict(dynamic_linear='global'), ValueError,
     r"dynamic_linear must be one of \['bilateral', .*'static'\].*'global'"),
    (dict(dynamic_linear=''), ValueError, "dynamic_linear .* got ''"),
    (dict(dynamic_linear='global', arch=dict(SMALL, dynamic_indices=[])),
     ValueError, "dynamic_linear .* got 'global'"),
    (dict(dynamic_conv=3, arch=dict(
        SMALL, dynamic_indices=[])), TypeError, 'dynamic_conv .* got 3'),
    (dict(arch=dict(SMALL, mlp_ratio=0.01)), ValueError,
     r"arch\['mlp_ratio'\] must leave .* got 0.01"),
    (dict(dynamic_linear=None), TypeError, 'dynamic_linear .* got None'),
    (dict(dynamic_linear=dict(reduction=2)), ValueError,
     r"dynamic_linear .* got \{'reduction': 2\}"),
    (dict(dynamic_linear='adaptive'), ValueError, "got 'adaptive'"),
    (dict(dynamic_linear=dict(type='Conv2d')), ValueError,
     'registered PredictedLinear'),
    (dict(dynamic_linear=dict(type='gap', reduction=5)), ValueError,
     r'dynamic_linear, GAPDynamicLinear: reduction \(5\) must divide'),
    (dict(dynamic_linear=dict(type='gap', ranks=5)), TypeError,
     "dynamic_linear, GAPDynamicLinear: .*'ranks'"),
    (dict(dynamic_linear=dict(type='gap', normalize=0)), TypeError,
     'normalize must be True or False, got 0'),
    (dict(dynamic_conv='bilateral'), ValueError,
     r"dynamic_conv must be one of \['adaptive', .*got 'bilateral'"),
    (dict(dynamic_conv=dict(type='gap', reduction=5)), ValueError,
     r'dynamic_conv, GAPDynamic.* reduction \(5\) must divide channels'),
    (dict(dynamic_conv=dict(type='conv', kernel_size=4)), ValueError,
     'kernel_size must be odd, got 4'),
    (dict(arch=dict(SMALL, dynamic_indices=[5])), ValueError,
     r"arch\['dynamic_indices'\] must be from 0 to 4, got 5"),
    (dict(arch=dict(SMALL, dynamic_indices=3)), TypeError,
     r"arch\['dynamic_indices'\] must be a sequence of ints, got 3"),
    (dict(arch=dict(SMALL, dynamic_indices='12')), TypeError, "got '12'"),
    (dict(arch=dict(SMALL, dynamic_indices=[1], dynamic_every=2)), ValueError,
     "takes the place of 'dynamic_every'"),
])
def test_refuses(kwargs, error, message):
    with pytest.raises(error, match=message):
        build_backbone(**kwargs)


@pytest.mark.parametrize('kwargs', [
    dict(dynamic_linear='gap'),
    dict(dynamic_conv='conv'),
    dict(dynamic_linear='static')
])
def test_the_transcription_is_of_the_published_ones(kwargs):
    with pytest.raises(ValueError, match="must be 'bilateral' and"):
        LiteralWeightFormer(SMALL, **kwargs)


@pytest.mark.parametrize('name', ['bilateral', 'gap'])
@pytest.mark.parametrize('shape', [(3, 8), (2, 1, 3, 4, 8)])
def test_linear_refuses_other_shapes(name, shape):
    layer = DYNAMIC_LINEAR[name](8, 8)
    with pytest.raises(ValueError, match=r'\(B, h, w, C\) or \(B, N, C\)'):
        layer(torch.randn(shape))


def test_conv_refuses_other_shapes():
    layer = DynamicDepthwiseConv2d(8)
    with pytest.raises(ValueError, match=r'\(B, C, h, w\) or \(B, C, N\)'):
        layer(torch.randn(8, 5))
