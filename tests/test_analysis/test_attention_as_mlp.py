# Copyright (c) mmweightformer contributors. All rights reserved.
import re

import pytest
import torch
from helpers import randomize, relative_error, run_tool
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mmweightformer.analysis.attention_as_mlp import (apply_mlp, attention,
                                                      largest_difference,
                                                      layer_sizes, predict_mlp)
from mmweightformer.models import DynamicLinear

TOOL = 'tools/visualization/vis_attention_as_mlp.py'


def random(*shape):
    return torch.randn(shape, dtype=torch.float64)


def random_weights(c, heads, d, e, o):
    return [
        random(*shape) * shape[0]**-0.5
        for shape in [(c, heads * d), (c,
                                       heads * d), (c,
                                                    heads * e), (heads * e, o)]
    ]


def mlp(x, context, *args):
    return apply_mlp(x, *predict_mlp(context, *args), args[-1])


@given(
    st.integers(1, 3), st.integers(1, 20), st.integers(1, 20),
    st.integers(1, 12), st.integers(1, 4), st.integers(1, 8),
    st.integers(1, 8), st.integers(1, 12))
def test_attention_is_the_mlp(batch, m, n, c, heads, d, e, o):
    weights = random_weights(c, heads, d, e, o)
    context = random(batch, n, c)
    w1, w2 = predict_mlp(context, *weights, heads)
    assert w1.shape == (batch, c, heads * n)
    assert w2.shape == (batch, heads * n, o)
    for x in context, random(batch, m, c):
        y = apply_mlp(x, w1, w2, heads)
        expected = attention(x, context, *weights, heads)
        assert relative_error(y, expected) < 1e-12


@given(
    st.integers(1, 3), st.integers(2, 12), st.integers(1, 8),
    st.integers(1, 3), st.integers(1, 4))
def test_gradients_are_those_of_attention(batch, n, c, heads, d):
    x, *weights = inputs = [
        random(batch, n, c), *random_weights(c, heads, d, d, c)
    ]
    for value in inputs:
        value.requires_grad_()
    cotangent = random(batch, n, c)

    def gradients(function):
        y = function(x, x, *weights, heads)
        grads = torch.autograd.grad(y, inputs, cotangent)
        return torch.cat([grad.flatten() for grad in grads])

    assert relative_error(gradients(mlp), gradients(attention)) < 1e-12


@pytest.mark.parametrize('heads', [1, 2, 4])
def test_multihead_attention_is_the_mlp(heads):
    layer = nn.MultiheadAttention(8, heads, bias=False, batch_first=True)
    layer = randomize(layer).double()
    x = random(2, 7, 8)
    weights = [*layer.in_proj_weight.chunk(3), layer.out_proj.weight]
    y = mlp(x, x, *(weight.mT for weight in weights), heads)
    assert relative_error(y, layer(x, x, x)[0]) < 1e-12


def test_each_token_is_a_hidden_unit_of_each_head():
    *weights, heads = *random_weights(6, 3, 2, 2, 6), 3
    x = random(1, 5, 6)
    one = predict_mlp(x[:, :1], *weights, heads)
    all_ = predict_mlp(x, *weights, heads)
    for part, whole, axis in zip(one, all_, (2, 1)):
        first = whole.index_select(axis, torch.tensor([0, 5, 10]))
        torch.testing.assert_close(part, first)


def test_ranks():
    """A head's weights have the rank of the head, or as many as tokens."""
    for n, rank in (2, 2), (9, 3):
        w1, w2 = predict_mlp(
            random(1, n, 8), *random_weights(8, 2, 3, 3, 8), 2)
        assert torch.linalg.matrix_rank(w1[0, :, :n]) == rank
        assert torch.linalg.matrix_rank(w2[0, :n]) == rank
    layer = randomize(DynamicLinear(16, 64)).double()
    for side, rank in (2, 1), (3, 1), (10, 4):  # N' is 1, 1 and 25; C/r is 4
        delta = layer.predict(random(1, side, side, 16)) - layer.weight
        assert torch.linalg.matrix_rank(delta[0], rtol=1e-10) == rank


@pytest.mark.parametrize('side, channels, heads', [(6, 8, 2), (14, 192, 3)])
def test_what_is_counted(side, channels, heads):
    n, c, h = side**2, channels, heads
    computed, folded, dynamic = layer_sizes(side, channels, heads)
    assert computed[1:] == (n, h * n, 2 * n * c, 2 * n * c**2,
                            2 * n * c**2 + 2 * n**2 * c)
    # The projections of queries and outputs are in the predicted weights.
    assert folded[1:] == (n, h * n, 2 * h * n * c, 4 * n * c**2,
                          2 * h * n**2 * c)
    x = torch.randn(1, side, side, c)
    assert dynamic[1:4] == (n, 4 * c, DynamicLinear(c,
                                                    4 * c).predict(x).numel())
    assert dynamic.predict_macs == 3 * n * c**2 // 8 + 37 * c**3 // 16
    assert dynamic.apply_macs == 8 * n * c**2


def test_growth():
    """Attention's size is linear in N and its MACs quadratic, the other's are
    constant and linear.
    """
    by_side = [layer_sizes(side, 8, 2) for side in (10, 20, 30, 40)]
    tokens = [100, 400, 900, 1600]
    for sizes in zip(*by_side):
        assert [size.tokens for size in sizes] == tokens
        macs = [size.predict_macs + size.apply_macs for size in sizes]
        slopes = [(b - a) / (m - n)
                  for a, b, n, m in zip(macs, macs[1:], tokens, tokens[1:])]
        curvatures = [
            (b - a) / (m - n)
            for a, b, n, m in zip(slopes, slopes[1:], tokens, tokens[2:])
        ]
        dynamic = sizes[0].layer == 'dynamic MLP'
        assert len({size.weights for size in sizes}) == (1 if dynamic else 4)
        assert len({size.width for size in sizes}) == (1 if dynamic else 4)
        # Those of a parabola, or of a line.
        assert curvatures[0] == curvatures[1]
        assert (curvatures[0] == 0) == dynamic


def test_largest_difference():
    assert 0 < largest_difference(300, 8, 2) < 1e-12


@pytest.mark.parametrize('heads, message', [
    (0, 'num_heads .* got 0'),
    (2., 'num_heads .* got 2.0'),
    (4, 'num_heads must divide .* got 4 for 6'),
])
def test_refuses_heads(heads, message):
    x, weights = random(1, 5, 6), random_weights(6, 3, 2, 2, 6)
    for function in (predict_mlp, lambda *args: attention(x, *args)):
        with pytest.raises((TypeError, ValueError), match=message):
            function(x, *weights, heads)
    w1, w2 = random(1, 6, 6), random(1, 6, 6)
    with pytest.raises((TypeError, ValueError), match=message):
        apply_mlp(x, w1, w2, heads)


@pytest.mark.parametrize('suffix, magic',
                         [('png', b'\x89PNG'), ('pdf', b'%PDF'),
                          ('svg', b'<?xml')])
def test_tool(suffix, magic, tmp_path, capsys):
    out = tmp_path / 'new' / f'figure.{suffix}'
    assert run_tool(TOOL, out, '--sizes', 224, 64, '--channels', 8, '--heads',
                    2) is None
    assert out.read_bytes().startswith(magic)
    rows = [[cell.strip() for cell in line.strip('|').split('|')]
            for line in capsys.readouterr().out.splitlines()
            if line.startswith('|')]
    assert rows[2][:4] == ['16', 'attention, as computed', '32', '256']
    assert rows[8] == ['tokens', 'largest difference, relative']
    # 8·196·8², and the prediction of the weights.
    dynamic = rows[7]
    assert dynamic[:4] == ['196', 'dynamic MLP', '32', '256']
    assert dynamic[5] == '0.1'


@pytest.mark.parametrize('arguments, message', [
    (['a.gif'], 'out must end with one of .png, .pdf, .svg, got a.gif'),
    (['--sizes', '224', '100'], '--sizes must be multiples of 16 .* got 100'),
    (['--sizes', '0'], '--sizes .* got 0'),
    (['--heads', '0'], '--heads must be positive, got 0'),
    (['--channels', '64'], r'--channels .* \(3\), got 64'),
])
def test_tool_refuses(arguments, message, capsys):
    assert run_tool(TOOL, *arguments) == 2
    assert re.search(message, ' '.join(capsys.readouterr().err.split()))


def test_tool_says_what_cannot_be_written(tmp_path):
    out = tmp_path / 'folder.png'
    out.mkdir()
    assert 'folder.png' in run_tool(TOOL, out, '--sizes', 64)
