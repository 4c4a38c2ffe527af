# Copyright (c) mmweightformer contributors. All rights reserved.
import pytest
import torch
from helpers import SMALL, build_backbone, randomize
from torch import nn

from mmweightformer.analysis.dynamic_weights import (LayerWeights,
                                                     class_contrasts,
                                                     dynamic_weights,
                                                     recorded_inputs,
                                                     varied_channels)
from mmweightformer.models import DynamicDepthwiseConv2d, DynamicLinear
from mmweightformer.models.predicted_weights import (delta_ratio,
                                                     predicted_delta,
                                                     predicted_layers)

DYNAMIC = [1, 4]


@pytest.fixture
def backbone():
    return randomize(build_backbone()).double().eval()


def normalized(delta, dim):
    return delta / (delta.square().sum(dim, keepdim=True).sqrt() + 1)


def delta_by_hand(layer, x):
    with torch.no_grad():
        delta = layer.predict_delta(x)
    return normalized(delta, 1 if delta.ndim == 3 else (2, 3))


def deltas_by_hand(backbone, image):
    """Of an image, by running the blocks one after the other."""
    deltas, layers = {}, backbone.layers
    with torch.no_grad():
        x = backbone._embed(image)
        for i, layer in enumerate(layers):
            if i in DYNAMIC:
                grid = layer.norm1(x).permute(0, 3, 1, 2)
                deltas[f'layers.{i}.dwconv'] = delta_by_hand(
                    layer.dwconv, grid)
                after = grid + layer.dwconv(grid)
                tokens = layer.norm2(after.permute(0, 2, 3, 1))
                deltas[f'layers.{i}.fc1'] = delta_by_hand(layer.fc1, tokens)
            x = layer(x)
    return deltas


def test_layers_are_found(backbone):
    assert list(predicted_layers(backbone)) == [
        f'layers.{i}.{name}' for i in DYNAMIC for name in ('dwconv', 'fc1')
    ]
    assert list(predicted_layers(DynamicLinear(4, 8))) == ['']
    with pytest.raises(ValueError, match='Linear must have layers whose'):
        predicted_layers(nn.Linear(2, 2))


def test_dynamic_weights_are_those_of_each_image(backbone):
    """Also where sizes differ, in batches."""
    batches = [torch.randn(2, 3, 64, 48).double(), torch.randn(1, 3, 80, 80)]
    batches[1] = batches[1].double()
    measured = {w.name: w for w in dynamic_weights(backbone, batches)}
    images = [image[None] for batch in batches for image in batch]
    expected = [deltas_by_hand(backbone, image) for image in images]
    assert measured.keys() == expected[0].keys()
    for name, layer in predicted_layers(backbone).items():
        flat = torch.stack([deltas[name].flatten() for deltas in expected])
        torch.testing.assert_close(measured[name].gram, flat @ flat.T)
        torch.testing.assert_close(measured[name].ratios,
                                   flat.norm(dim=1) / layer.weight.norm())
        if name.endswith('fc1'):
            assert measured[name].kind == 'linear'
            assert measured[name].kernels is None
            continue
        assert measured[name].kind == 'conv'
        torch.testing.assert_close(measured[name].kernels,
                                   flat.view(3, *layer.weight[:, 0].shape))
        torch.testing.assert_close(measured[name].weight, layer.weight[:, 0])


def test_similarity():
    deltas = torch.randn(5, 20).double() + 3
    deltas *= torch.tensor([1, 100, 1, 1e-3, 1])[:, None]
    layer = LayerWeights('', 'linear', torch.ones(5), deltas @ deltas.T)
    units = deltas / deltas.norm(dim=1, keepdim=True)
    torch.testing.assert_close(layer.similarity(False), units @ units.T)
    assert layer.similarity(False).min() > 0.5
    rest = units - units.mean(0)
    torch.testing.assert_close(
        layer.similarity(True),
        torch.cosine_similarity(rest[:, None], rest, dim=-1))
    off_diagonal = layer.similarity(True).sum() - 5
    assert off_diagonal / 20 == pytest.approx(-1 / 4, abs=0.02)


def test_similarity_of_images_that_are_all_alike():
    deltas = torch.randn(20).double().expand(3, -1) * 0.02
    layer = LayerWeights('', 'linear', torch.ones(3), deltas @ deltas.T)
    torch.testing.assert_close(
        layer.similarity(False),
        torch.ones(3, 3).double())
    assert torch.equal(layer.similarity(True), torch.zeros(3, 3).double())


@pytest.mark.parametrize('layer, shape', [
    (DynamicLinear(8, 16), (20, 3, 5, 8)),
    (DynamicLinear(8, 16), (20, 6, 8)),
    (DynamicLinear(8, 16, normalize=False), (20, 3, 5, 8)),
    (DynamicDepthwiseConv2d(8), (20, 8, 3, 5)),
    (DynamicDepthwiseConv2d(8, (1, 3)), (20, 8, 6)),
])
def test_delta_is_what_is_added(layer, shape):
    """Without it, the layer is one with the weight alone."""
    randomize(layer).double()
    x = torch.randn(shape).double()
    delta, y = predicted_delta(layer, x), layer(x)
    with torch.no_grad():
        if isinstance(layer, DynamicLinear):
            static = x @ layer.weight + layer.bias
            added = (x.flatten(1, -2) @ delta).view_as(y)
        else:
            grid = x if x.ndim == 4 else x[:, :, None]
            static = torch.conv2d(
                grid,
                layer.weight,
                layer.bias,
                padding=layer.padding,
                groups=8).view_as(y)
            added = torch.cat([
                torch.conv2d(
                    g[None], d[:, None], padding=layer.padding, groups=8)
                for g, d in zip(grid, delta)
            ]).view_as(y)
    torch.testing.assert_close(y, static + added)
    torch.testing.assert_close(
        delta_ratio(layer, x),
        delta.flatten(1).norm(dim=1) / layer.weight.norm())


def test_autocast_does_not_change_precision():
    layer = DynamicLinear(8, 16)
    x = torch.randn(2, 4, 4, 8)
    expected = predicted_delta(layer, x)
    with torch.autocast('cpu', torch.bfloat16):
        assert torch.equal(predicted_delta(layer, x), expected)


def test_hooks_are_removed(backbone):
    layers = predicted_layers(backbone)
    with recorded_inputs(layers) as inputs:
        backbone(torch.randn(1, 3, 64, 64).double())
    assert inputs.keys() == layers.keys()
    with pytest.raises(ValueError, match='must be'):
        dynamic_weights(backbone, [torch.randn(1, 5, 64, 64).double()])
    for layer in layers.values():
        assert not layer._forward_pre_hooks


def test_wrong_networks_and_images(backbone):
    with pytest.raises(ValueError, match='at least one, got none'):
        dynamic_weights(backbone, [])
    unused = nn.Sequential(nn.Identity())
    unused[0].layer = DynamicLinear(4, 8)
    with pytest.raises(ValueError, match='0.layer of Sequential is not'):
        dynamic_weights(unused, [torch.zeros(1)])


def contrast(vectors, labels, **kwargs):
    similarity = torch.cosine_similarity(vectors[:, None], vectors, dim=-1)
    result, = class_contrasts([similarity], labels, **kwargs)
    return result, similarity


def test_contrast_of_classes():
    labels = [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    centres = torch.randn(3, 16).double()
    vectors = centres[labels] + 0.5 * torch.randn(10, 16)
    result, similarity = contrast(vectors, labels)
    pairs = [(i, j) for i in range(10) for j in range(i)]
    within = [similarity[i, j] for i, j in pairs if labels[i] == labels[j]]
    between = [similarity[i, j] for i, j in pairs if labels[i] != labels[j]]
    assert result.within == pytest.approx(sum(within) / len(within))
    assert result.between == pytest.approx(sum(between) / len(between))
    assert result.chance[1] < result.within
    assert result.p_value < 0.01


def test_labels_that_tell_nothing():
    labels = torch.arange(40) % 4
    p_values = [
        contrast(torch.randn(40, 8), labels, permutations=99)[0].p_value
        for _ in range(40)
    ]
    # Uniform ones: their mean is 0.5 with a standard deviation of 0.05.
    assert 0.3 < sum(p_values) / 40 < 0.7


def test_contrast_is_exact_where_all_images_are_alike():
    result, _ = contrast(torch.ones(4, 3).double(), [0, 0, 1, 1])
    assert result.p_value == 1
    assert result.chance == pytest.approx((1, 1))


@pytest.mark.parametrize('labels', [[0, 0, 0], [0, 1, 2]])
def test_labels_must_allow_both(labels):
    with pytest.raises(ValueError, match='labels must be of two classes'):
        contrast(torch.eye(3), labels)


def test_permutations_must_be_positive():
    with pytest.raises(ValueError, match='permutations must be at least 1'):
        contrast(torch.eye(4), [0, 0, 1, 1], permutations=0)


def test_varied_channels():
    kernels = torch.zeros(2, 4, 3, 3)
    kernels[:, 0] = 9  # large, and the same in both images
    kernels[0, 2], kernels[0, 3] = 2, 1
    layer = LayerWeights('', 'conv', *[torch.ones(2)] * 3, kernels)
    assert varied_channels(layer, 2) == [2, 3]
    assert varied_channels(layer._replace(kernels=kernels[:1]), 1) == [0]
    assert len(varied_channels(layer, 99)) == 4


def test_networks_of_static_blocks_have_none():
    backbone = build_backbone(dict(SMALL, dynamic_indices=[]))
    with pytest.raises(ValueError, match='WeightFormer must have layers'):
        dynamic_weights(backbone, [torch.zeros(1, 3, 32, 32)])


def test_refuses_weights_that_are_not_finite(backbone):
    backbone.layers[4].fc1.w1.data[0, 0] = float('nan')
    with pytest.raises(ValueError, match='layers.4.fc1 .* not finite'):
        dynamic_weights(backbone, [torch.randn(2, 3, 64, 64).double()])
