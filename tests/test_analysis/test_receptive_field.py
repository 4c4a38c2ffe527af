# Copyright (c) mmweightformer contributors. All rights reserved.
import cv2
import numpy as np
import pytest
import torch
from helpers import build_backbone, randomize
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from mmweightformer.analysis.config_model import load_backbone
# yapf: disable
from mmweightformer.analysis.receptive_field import (Panel, ReceptiveField,
                                                     build_for_field,
                                                     draw_receptive_fields,
                                                     load_images, local_reach,
                                                     normalize,
                                                     receptive_field)

# yapf: enable

PATCH = 4
ARCH = dict(embed_dims=32, depth=5)
STATIC = dict(ARCH, dynamic_indices=[])


def random_backbone(arch, **kwargs):
    backbone = build_backbone(arch, patch_size=PATCH, **kwargs).double()
    return randomize(backbone).requires_grad_(False)


def random_images(*shape, count=2):
    return [torch.randn(1, 3, *shape).double() for _ in range(count)]


@pytest.mark.parametrize('grid', [(16, 16), (15, 15), (12, 17)])
@pytest.mark.parametrize('kernel_size', [1, 3])
def test_static_field_is_the_cone(grid, kernel_size):
    """Exactly zero outside of it, and something in each of its tokens."""
    backbone = random_backbone(dict(STATIC, kernel_size=kernel_size))
    shape = [PATCH * side for side in grid]
    field = receptive_field(backbone, random_images(*shape))
    assert field.grid == grid and field.stride == PATCH
    assert field.num_images == 2 and field.map.shape == tuple(shape)
    tokens = nn.functional.avg_pool2d(field.map[None], PATCH)[0]
    half = 5 * (kernel_size // 2)
    rows, columns = (
        slice(side // 2 - half, side // 2 + half + 1) for side in grid)
    assert (tokens[rows, columns] > 0).all()
    tokens[rows, columns] = 0
    assert (tokens == 0).all()
    reach = local_reach(backbone)
    assert reach == half * PATCH
    assert field.share_outside(reach) == 0
    if half:
        assert field.share_outside(reach - PATCH) > 0


def test_static_blocks_of_random_initial_weights():
    """Also in float32, at the weights that training starts from."""
    backbone = build_backbone(STATIC, patch_size=PATCH)
    backbone.init_weights()
    field = receptive_field(backbone, [torch.randn(2, 3, 128, 128)])
    assert field.share_outside(local_reach(backbone)) == 0


def test_predicted_weights_reach_the_whole_image():
    backbone = random_backbone(ARCH)
    field = receptive_field(backbone, random_images(128, 96))
    assert field.share_outside(local_reach(backbone)) > 0.01
    assert (field.map > 0).all()


def test_norm_at_the_end_leaves_a_gradient():
    """At initial weights, the plain sum of the centre has none."""
    backbone = build_backbone(ARCH, patch_size=PATCH)
    backbone.init_weights()
    image = torch.randn(1, 3, 64, 64)
    single = receptive_field(backbone, [image])
    exact = receptive_field(backbone.double(), [image.double()])
    torch.testing.assert_close(single.map, exact.map, rtol=0.01, atol=1e-7)
    image = image.double().requires_grad_()
    plain = backbone(image)[-1][:, :, 8, 8].sum()
    gradient, = torch.autograd.grad(plain, image)
    assert gradient.abs().max() < 1e-9 * exact.map.max()


def test_formula():
    """ReLU, the sum over channels, absolute values, and the mean."""
    conv = nn.Conv2d(3, 6, PATCH, PATCH).double().requires_grad_(False)
    images = torch.randn(5, 3, 12, 16).double()
    expected = torch.zeros(12, 16).double()
    for output in conv(images)[:, :, 1, 2]:
        kernel = conv.weight[output > 0].sum(0)
        expected[4:8, 8:12] += kernel.abs().sum(0) / 5
    for batches in images.split(1), images.split(2), [images]:
        field = receptive_field(conv, batches)
        torch.testing.assert_close(field.map, expected, rtol=1e-12, atol=0)
        assert field.num_images == 5


def test_last_of_several_outputs():
    both = random_backbone(STATIC, out_indices=(3, 1))
    images = random_images(64, 64)
    field = receptive_field(both, images)
    assert local_reach(both) == 2 * PATCH
    assert field.share_outside(2 * PATCH) == 0
    assert field.share_outside(PATCH) > 0
    assert local_reach(nn.Identity()) is None


def uniform(*grid, stride=PATCH):
    shape = [stride * side for side in grid]
    return ReceptiveField(torch.ones(shape).double(), grid, stride, 1)


def test_shares_of_a_uniform_field():
    """Of pixels, whose number is known: the centre of 4×4 is at (2, 2)."""
    field = uniform(4, 4)
    shares = field.shares_within()
    assert len(shares) == 9 and shares[-1] == 1
    assert shares[0] == 4**2 / 16**2
    assert shares[1] == 6**2 / 16**2
    assert shares[4] == 12**2 / 16**2
    assert shares[5] == 13**2 / 16**2
    assert field.share_outside(4) == 1 - shares[4]
    assert field.share_outside(8) is None
    assert field.side(0.5) == 12
    assert field.side(0.999) == 16
    assert uniform(3, 3).share_outside(PATCH) is None


def test_one_pixel_holds_all():
    field = uniform(6, 7)
    field.map.zero_()
    field.map[3 * PATCH - 2, 0] = 7
    assert field.distances()[3 * PATCH - 2, 0] == 3 * PATCH
    assert field.side(0.5) == 7 * PATCH
    assert field.share_outside(3 * PATCH - 1) == 1
    assert field.shares_within().tolist() == [0] * (3 * PATCH) + [1]


def test_summary():
    field = uniform(4, 4)
    data = Panel('a', 'random', field, PATCH).summary()
    assert data['cone'] == dict(side_tokens=3, side_pixels=3 * PATCH)
    assert data['centre_token'] == [2, 2]
    assert data['share_outside_cone'] == data['share_outside_3x3_tokens']
    assert data['share_within_tokens'] == [n**2 / 16**2 for n in (4, 12, 16)]
    covering = Panel('a', 'random', field, 2 * PATCH).summary()
    assert covering['share_outside_cone'] is None
    alone = Panel('a', 'random', field).summary()
    assert alone['share_outside_cone'] is None and alone['cone'] is None


class Outputs(nn.Module):
    """Returns what it is told to of its input."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize('function, sizes, message', [
    (lambda x: x.mean((2, 3)), [8], r'\(B, C, h, w\), got \(1, 3\)'),
    (lambda x: [x, x.flatten(2)], [8], r'got \(1, 3, 64\)'),
    (lambda x: (), [8], "got <class 'tuple'>"),
    (lambda x: x, [], 'images must be at least one'),
    (lambda x: x, [8, 4], r'one size, got \(8, 8\) and \(4, 4\)'),
    (lambda x: x * 0, [8], 'the gradient of the centre is zero'),
    (lambda x: x * float('nan'), [8], 'zero|not finite'),
    (lambda x: x.abs() * float('inf'), [8], 'is not finite'),
    (lambda x: x[:, :, ::3, ::3].exp(), [8], '8×8 for a feature map of 3×3'),
])
def test_refuses(function, sizes, message):
    images = [torch.rand(1, 3, size, size) for size in sizes]
    with pytest.raises(ValueError, match=message):
        receptive_field(Outputs(function), images)


@pytest.mark.parametrize('backbone', [
    dict(type='WeightFormer', arch=ARCH),
    dict(
        type='mmpretrain.VisionTransformer',
        arch='deit-tiny',
        out_indices=0,
        out_type='featmap'),
])
def test_refuses_a_padded_image(backbone):
    """28 pixels are padded to two patches of 16, not to two of 14."""
    image = torch.rand(1, 3, 28, 28)
    with pytest.raises(ValueError, match='multiple of the stride, got 28×28'):
        receptive_field(MODELS.build(backbone), [image])


CLASSIFIER = dict(
    default_scope='mmpretrain',
    model=dict(
        type='ImageClassifier',
        backbone=dict(
            type='VisionTransformer',
            arch=dict(
                embed_dims=16,
                num_layers=1,
                num_heads=2,
                feedforward_channels=16),
            img_size=32,
            init_cfg=[dict(type='Pretrained', checkpoint='no.pth')]),
        head=dict(type='LinearClsHead', in_channels=16, num_classes=2)),
    data_preprocessor=dict(mean=[1., 2., 3.], std=[2., 2., 2.], to_rgb=True))
SEGMENTOR = dict(
    default_scope='mmseg',
    model=dict(
        type='EncoderDecoder',
        pretrained='no.pth',
        data_preprocessor=dict(
            type='SegDataPreProcessor',
            mean=[1., 2., 3.],
            std=[2., 2., 2.],
            bgr_to_rgb=True,
            size=(512, 512),
            test_cfg=dict(size_divisor=512)),
        backbone=dict(
            type='mmpretrain.ResNet',
            depth=18,
            base_channels=1,
            stem_channels=1),
        decode_head=dict(
            type='FCNHead',
            in_index=0,
            in_channels=8,
            channels=8,
            num_classes=3)))
DETECTOR = dict(
    default_scope='mmdet',
    model=dict(
        type='SingleStageDetector',
        data_preprocessor=dict(
            type='DetDataPreprocessor',
            mean=[1., 2., 3.],
            std=[2., 2., 2.],
            bgr_to_rgb=True,
            pad_size_divisor=1024),
        backbone=dict(
            type='WeightFormer',
            arch=ARCH,
            out_type='avg_featmap',
            init_cfg=dict(type='Pretrained', checkpoint='no.pth')),
        bbox_head=dict(
            type='YOLOXHead', num_classes=2, in_channels=32, feat_channels=8)))
# Without a choice, it would return no map.
CONVNEXT = Config(CLASSIFIER).to_dict()
CONVNEXT['model']['backbone'] = dict(
    type='ConvNeXt',
    arch=dict(depths=[1, 1], channels=[8, 16]),
    out_indices=[1])


@pytest.mark.parametrize('cfg, grid', [(CLASSIFIER, 4), (SEGMENTOR, 2),
                                       (DETECTOR, 4), (CONVNEXT, 8)])
def test_models_of_all_packages(cfg, grid):
    """Without what is pre-trained, padding, or a mean over the image."""
    before = Config(cfg).to_dict()
    model = build_for_field(Config(cfg))
    assert Config(cfg).to_dict() == before
    image = torch.rand(3, 64, 64) * 255
    normal = normalize(model, image)
    mean = torch.tensor([1., 2., 3.])[:, None, None]
    torch.testing.assert_close(normal[0], (image.flip(0) - mean) / 2)
    field = receptive_field(model.backbone, [normal])
    assert field.grid == (grid, grid) and field.stride == 64 // grid


def test_same_random_weights_and_no_trace():
    torch.manual_seed(3)
    one, two = (build_for_field(Config(CLASSIFIER)) for _ in range(2))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert drawn == torch.rand(1)
    other = build_for_field(Config(CLASSIFIER), seed=1)
    weights = [net.backbone.layers[0].ffn.layers[1].weight
               for net in (one, two, other)]  # yapf: disable
    assert torch.equal(*weights[:2])
    assert not torch.equal(*weights[1:])


def test_no_backbone():
    for cfg in {}, dict(model=dict(type='BaseModel')):
        with pytest.raises(ValueError, match='no model.backbone'):
            build_for_field(Config(cfg))


def test_load_backbone(tmp_path):
    path = str(tmp_path / 'a.pth')
    source, target = (
        randomize(build_backbone(ARCH, patch_size=PATCH)) for _ in range(2))
    state = source.state_dict()
    for saved in (state, {
            f'backbone.{k}': v
            for k, v in state.items()
    } | {
            'head.fc.bias': torch.ones(1)
    }):
        randomize(target)
        torch.save(dict(state_dict=saved), path)
        load_backbone(target, path)
        for name, value in target.state_dict().items():
            assert torch.equal(value, state[name])
    for other, message in [
        (dict(embed_dims=32, depth=6), 'lacks .* such as backbone.layers.5'),
        (dict(embed_dims=32, depth=4), 'has not, .* backbone.layers.4'),
        (dict(embed_dims=16, depth=5), 'size mismatch for '),
    ]:
        net = build_backbone(other, patch_size=PATCH)
        with pytest.raises(ValueError, match=f'a.pth does not fit.*{message}'):
            load_backbone(net, path)


@pytest.fixture
def data_cfg(tmp_path):
    """Ten images of a width of 40, one grey each, two classes."""
    for i in range(10):
        folder = tmp_path / 'data' / 'ab'[i // 5]
        folder.mkdir(parents=True, exist_ok=True)
        picture = np.full((20, 40, 3), 10 * i, np.uint8)
        picture[:, :5] = 255
        cv2.imwrite(str(folder / f'{i}.png'), picture)
    return Config(
        dict(
            default_scope='mmpretrain',
            test_dataloader=dict(
                batch_size=4,
                dataset=dict(
                    type='CustomDataset',
                    data_prefix=str(tmp_path / 'data'),
                    pipeline=[
                        dict(type='LoadImageFromFile'),
                        dict(type='PackInputs')
                    ]))))


def test_images_are_spread_over_the_classes(data_cfg):
    images = load_images(data_cfg, 4, 16)
    for image, value in zip(images, [0, 20, 50, 70], strict=True):
        assert image.shape == (3, 16, 16)
        torch.testing.assert_close(image, torch.full_like(image, value))
    assert len(load_images(data_cfg, 11, 16)) == 10


def test_images_that_are_not_there(data_cfg, tmp_path):
    with pytest.raises(ValueError, match='number must be at least 1, got 0'):
        load_images(data_cfg, 0, 16)
    with pytest.raises(ValueError, match='no test_dataloader'):
        load_images(Config(), 1, 16)
    data_cfg.test_dataloader.dataset.data_prefix = str(tmp_path / 'none')
    with pytest.raises(
            FileNotFoundError,
            match='test data are missing: .*/no'
            r'ne  \(test_dataloader.dataset.data_prefix.img\)'):
        load_images(data_cfg, 1, 16)


@pytest.mark.parametrize('suffix, head', [('png', b'\x89PNG'),
                                          ('pdf', b'%PDF'), ('svg', b'<?xml')])
def test_figure(tmp_path, suffix, head):
    """With zeros, with a cone and without, and a place that stays empty."""
    field = uniform(6, 6)
    field.map[:4] = 0
    panels = [
        Panel('a', 'random', field, PATCH),
        Panel('b', 'random', uniform(3, 3, stride=8)),
        Panel('b', 'trained', uniform(3, 3, stride=8), 8),
    ]
    path = tmp_path / f'figure.{suffix}'
    draw_receptive_fields(panels, 'A title', path)
    assert path.read_bytes().startswith(head)
