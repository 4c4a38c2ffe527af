# Copyright (c) mmweightformer contributors. All rights reserved.
import pytest
import torch
import torch.nn.functional as F
from helpers import build_backbone, official_backbone, randomize
from torch import nn
from torch.nn.utils import prune

from mmweightformer.models.layers import feed_forward as module
from mmweightformer.models.layers.feed_forward import feed_forward


def arrays(*tokens, width=3, hidden=5):
    shapes = [(*tokens, width), (*tokens[:-1], width, hidden), (hidden, ),
              (width, hidden), (width, )]
    return [
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    ]


def formula(x, w1, b1, w2, b2):
    return F.linear(F.gelu(x @ w1 + b1), w2, b2)


@pytest.fixture(autouse=True)
def few_tokens_at_a_time(monkeypatch):
    monkeypatch.setattr(module, 'PART', 4)


@pytest.mark.parametrize('tokens', [(1, ), (4, ), (11, ), (0, ), (1, 11),
                                    (2, 5), (3, 4), (7, 2), (0, 3)])
class TestFeedForward:

    def test_is_the_formula(self, tokens):
        inputs = arrays(*tokens)
        torch.testing.assert_close(feed_forward(*inputs), formula(*inputs))
        with torch.inference_mode():
            torch.testing.assert_close(feed_forward(*inputs), formula(*inputs))

    def test_gradients(self, tokens):
        inputs = arrays(*tokens)
        # Not of a layout of its own: a sum's gradient is expanded.
        for reduce in torch.sum, lambda y: (y.mT**2).sum():
            grads = torch.autograd.grad(reduce(feed_forward(*inputs)), inputs)
            expected = torch.autograd.grad(reduce(formula(*inputs)), inputs)
            torch.testing.assert_close(grads, expected)


@pytest.mark.parametrize('frozen', range(5))
def test_frozen_inputs(frozen):
    inputs = arrays(2, 5)
    inputs[frozen].requires_grad_(False)
    feed_forward(*inputs).sum().backward()
    assert [x.grad is None for x in inputs] == [i == frozen for i in range(5)]


def test_keeps_one_hidden_layer():
    x, *params = arrays(1000, width=2, hidden=8)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
            lambda t: kept.append(t.numel()) or t, lambda t: t):
        feed_forward(x, *params)
    assert sum(kept) < 1000 * (2 + 8) + 100


def test_second_derivatives():
    inputs = arrays(2, 3)
    assert torch.autograd.gradgradcheck(feed_forward, inputs)
    inputs[3].requires_grad_(False)
    assert torch.autograd.gradgradcheck(feed_forward, inputs)


class Doubled(nn.Linear):
    """A layer that was put in place of another, as by LoRA."""

    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize('name', ['fc1', 'act', 'fc2'])
@pytest.mark.parametrize('index', [0, 1])
def test_layers_that_were_replaced_are_called(name, index):
    """In static and in dynamic blocks."""
    model = official_backbone()
    image = torch.randn(1, 3, 48, 64, dtype=torch.float64)
    before, = model(image)
    block, called = model.layers[index], []
    old = getattr(block, name)
    new = nn.ReLU() if name == 'act' else Doubled(
        *((32, 128) if name == 'fc1' else (128, 32))).double()
    new.register_forward_hook(lambda *_: called.append(1))
    setattr(block, name, new)
    assert not torch.allclose(model(image)[0], before)
    assert called
    setattr(block, name, old)
    torch.testing.assert_close(model(image)[0], before)


@pytest.mark.parametrize('name', ['fc1', 'act', 'fc2'])
@pytest.mark.parametrize('index', [0, 1])
def test_hooks_are_called(name, index):
    """Of which some compute weights, as those of pruning."""
    model = official_backbone()
    image = torch.randn(1, 3, 48, 64, dtype=torch.float64)
    before, = model(image)
    layer, called = getattr(model.layers[index], name), []
    for register in layer.register_forward_pre_hook, \
            layer.register_forward_hook:
        handle = register(lambda *_: called.append(1))
        torch.testing.assert_close(model(image)[0], before)
        handle.remove()
    assert len(called) == 2


def test_pruned_weights():
    model = official_backbone()
    image = torch.randn(1, 3, 48, 64, dtype=torch.float64)
    before, = model(image)
    prune.random_unstructured(model.layers[0].fc2, 'weight', 0.5)
    pruned, = model(image)
    assert not torch.allclose(pruned, before)
    for _ in range(2):
        model(image)[0].sum().backward()
    prune.remove(model.layers[0].fc2, 'weight')
    torch.testing.assert_close(model(image)[0], pruned)


def test_function_transforms():
    model = official_backbone()
    images = torch.randn(2, 1, 3, 48, 64, dtype=torch.float64)
    each = torch.func.vmap(lambda image: model(image)[0])(images)
    torch.testing.assert_close(each[1], model(images[1])[0])


def test_layer_without_bias():
    model = official_backbone()
    model.layers[0].fc2 = nn.Linear(128, 32, bias=False).double()
    model(torch.randn(1, 3, 48, 64, dtype=torch.float64))[0].sum().backward()


def test_dropout_alone_in_training():
    model = randomize(build_backbone(drop_rate=0.5)).double().eval()
    model.layers[0].drop.train()
    x = torch.randn(1, 3, 48, 64, dtype=torch.float64)
    assert not torch.equal(model(x)[0], model(x)[0])


def test_second_derivative_where_one_input_makes_another():
    x, _, *rest = arrays(2, 3)

    def second(function):
        grad, = torch.autograd.grad(
            function(x, x.mT @ x[..., :1].expand(-1, -1, 5), *rest).sum(),
            x,
            create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)

    torch.testing.assert_close(second(feed_forward), second(formula))


def test_gradients_of_parts_are_summed_wide():
    inputs = arrays(4000)
    exact = torch.autograd.grad(formula(*inputs).sum(), inputs[1])[0]
    narrow = [x.detach().bfloat16().requires_grad_() for x in inputs]
    grad, = torch.autograd.grad(feed_forward(*narrow).sum(), narrow[1])
    assert (grad - exact).abs().max() < 0.02 * exact.abs().max()


def test_parameters_are_contiguous():
    assert all(p.is_contiguous() for p in build_backbone().parameters())


@pytest.mark.parametrize('act', ['GELU', 'ReLU', 'SiLU'])
def test_any_activation(act):
    model = randomize(build_backbone(act_cfg=dict(type=act))).double().eval()
    block = model.layers[1]
    x = torch.randn(2, 3, 5, 32, dtype=torch.float64)
    expected = block.fc2(block.act(block.fc1(x)))
    torch.testing.assert_close(block.mlp(x), expected)


def test_dropout_in_training():
    model = randomize(build_backbone(drop_rate=0.5)).double()
    x = torch.randn(1, 3, 48, 64, dtype=torch.float64)
    assert not torch.equal(model(x)[0], model(x)[0])
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])


@pytest.mark.parametrize('training', [False, True])
def test_autocast_casts_the_hidden_layer(training):
    model = randomize(build_backbone()).train(training)
    hidden = []
    for layer in model.layers:
        layer.act.register_forward_hook(lambda *io: hidden.append(io[2].dtype))
    with torch.autocast('cpu', torch.bfloat16):
        model(torch.randn(1, 3, 48, 64))
    assert hidden == [torch.bfloat16] * 5
