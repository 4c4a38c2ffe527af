# Copyright (c) mmweightformer contributors. All rights reserved.
import numpy as np
import pytest
import torch
from helpers import Malicious
from mmengine.config import Config
from mmengine.registry import METRICS, MODELS
from mmengine.structures import BaseDataElement

from mmweightformer.analysis.config_model import build_model

pytest.importorskip('torchmetrics')


@MODELS.register_module()
class ChannelFeatures(torch.nn.Module):
    """An image's means of R, G and B are features, and R, G its logits."""

    def __init__(self, scale=1., predicts_labels=True):
        super().__init__()
        self.scale, self.predicts_labels = scale, predicts_labels

    def forward(self, images):
        assert not self.training and not torch.is_grad_enabled()
        assert images.dtype == torch.uint8 and images.dim() == 4
        features = self.scale * images.double().mean((2, 3))
        return features, features[:, :2]


def build_metric(scale=1., predicts_labels=True, **kwargs):
    return METRICS.build(
        dict(
            type='GenerationMetric',
            features=dict(
                type='ChannelFeatures',
                scale=scale,
                predicts_labels=predicts_labels),
            **kwargs))


def flat_images(colours, size=(2, 3)):
    """Images of one colour each."""
    return [
        torch.tensor(colour, dtype=torch.uint8).view(3, 1, 1).expand(3, *size)
        for colour in colours
    ]


def process(metric, real, fake, labels=None):
    """One batch, of images in RGB."""
    labels = [0] * len(fake) if labels is None else labels
    metric.process(
        dict(inputs=[image.flip(0) for image in real]),
        [{
            'pred_img': image,
            'gt_label': torch.tensor([label])
        } for image, label in zip(fake, labels)])


def evaluate(metric, size):
    return {
        name.replace('generation/', ''): value
        for name, value in metric.evaluate(size).items()
    }


def run(real, fake, labels=None, **kwargs):
    metric = build_metric(**kwargs)
    process(metric, real, fake, labels)
    return evaluate(metric, len(fake))


def random_colours(number, seed=0):
    return np.random.default_rng(seed).integers(256, size=(number, 3))


def closed_form(mean1, cov1, mean2, cov2):
    """By symmetric square roots."""

    def root(matrix):
        values, vectors = np.linalg.eigh(matrix)
        return vectors @ np.diag(np.sqrt(values)) @ vectors.T

    half = root(cov1)
    cross = root(half @ cov2 @ half)
    return ((mean1 - mean2)**2).sum() + np.trace(cov1 + cov2 - 2 * cross)


def moments(features):
    return features.mean(0), np.cov(features.T)


def test_fid():
    """It is 0 for equal sets, and that of Gaussians with their moments."""
    real, fake = random_colours(50), random_colours(40, 1) // 2
    images = flat_images(real)
    assert run(images, images[::-1])['FID'] == pytest.approx(0, abs=1e-8)
    metric = build_metric()
    process(metric, images[:40], flat_images(fake))
    expected = closed_form(*moments(real[:40]), *moments(fake))
    assert expected > 1000
    assert evaluate(metric, 40)['FID'] == pytest.approx(expected, rel=1e-12)


def test_fid_of_reference(tmp_path):
    real, fake = random_colours(50), random_colours(40, 1) // 2
    path = str(tmp_path / 'reference.npz')
    mean, cov = moments(real)
    np.savez(path, mu=mean, sigma=cov)
    # Real images, here of no use to a feature network, are not asked for.
    metric = build_metric(reference=path)
    process(metric, [torch.zeros(4, 8, 8)], flat_images(fake))
    assert evaluate(metric, 40)['FID'] == pytest.approx(
        closed_form(mean, cov, *moments(fake)), rel=1e-12)


def test_inception_score():
    """It is 1 for equal predictions, and the classes' number for sure ones."""
    grey = flat_images([(i, i, i) for i in range(20)])
    assert run(grey, grey)['IS'] == pytest.approx(1, abs=1e-12)
    sure = flat_images([(255, 0, 0), (0, 255, 0)] * 10)
    assert run(sure, sure)['IS'] == pytest.approx(2, rel=1e-12)
    # By hand: logits are 1 apart, to either side.
    near = flat_images([(1, 0, 0), (0, 1, 0)] * 10)
    p = torch.tensor([1., 0.], dtype=torch.float64).softmax(0)
    expected = (p * (2 * p).log()).sum().exp().item()
    assert run(near, near)['IS'] == pytest.approx(expected, rel=1e-12)


def test_accuracy():
    images = flat_images([(9, 1, 0), (1, 9, 0), (9, 1, 0), (9, 1, 0)])
    assert run(images, images, [0, 1, 1, 0])['accuracy'] == 75
    # Other classes than those of labels, which may then be any.
    metrics = run(images, images, [0, 1, 1, 700], predicts_labels=False)
    assert metrics.keys() == {'FID', 'IS'}


def test_names():
    images = flat_images(random_colours(4))
    metric = build_metric()
    process(metric, images, images)
    assert metric.evaluate(4).keys() == {
        'generation/FID', 'generation/IS', 'generation/accuracy'
    }
    metric = build_metric(prefix='digits')
    process(metric, images, images)
    assert 'digits/FID' in metric.evaluate(4)


@pytest.mark.parametrize('batch_sizes', [(12, ), (1, ) * 12, (5, 4, 3)])
def test_batches_and_order_do_not_matter(batch_sizes):
    real = flat_images(random_colours(12))
    fake = flat_images(random_colours(12, 1) // 60)
    labels = list(random_colours(12, 2)[:, 0] % 2)
    expected = run(real, fake, labels)
    order = np.random.default_rng(3).permutation(12)
    metric = build_metric()
    start = 0
    for size in batch_sizes:
        chosen = order[start:start + size]
        process(metric, [real[i] for i in chosen], [fake[i] for i in chosen],
                [labels[i] for i in chosen])
        start += size
    assert len(metric.results) == 12
    assert evaluate(metric, 12) == pytest.approx(expected, rel=1e-9)


def test_padded_samples_do_not_count():
    """A sampler repeats images so that all processes have as many."""
    images = flat_images(random_colours(12))
    metric = build_metric()
    process(metric, images + images[:3], images[::-1] + images[:3])
    assert evaluate(metric, 12)['FID'] == pytest.approx(0, abs=1e-8)


def test_one_process_computes(monkeypatch):
    """It waits for no other, also where there are others."""
    images = flat_images(random_colours(12))
    metric = build_metric()
    process(metric, images, images[::-1])
    expected = metric.compute_metrics(metric.results)
    # Any communication fails: there is no process group.
    monkeypatch.setattr(torch.distributed, 'is_initialized', lambda: True)
    assert metric.compute_metrics(metric.results) == expected


def test_same_score_every_time():
    """Though torchmetrics shuffles; and others' random numbers stay."""
    images = flat_images(random_colours(10001) // 60, (1, 1))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = run(images, images)['IS']
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert run(images, images)['IS'] == first


def test_inputs_in_any_form():
    """As a tensor, a list of one or several sizes, and data elements."""
    colours = random_colours(4)
    images = flat_images(colours)
    expected = run(images, images)
    metric = build_metric()
    samples = [{'pred_img': image, 'gt_label': 0} for image in images]
    metric.process(dict(inputs=torch.stack(images).flip(1)), samples)
    assert evaluate(metric, 4) == expected
    sizes = flat_images(colours[:2], (5, 4)) + images[2:]
    assert run(sizes, images) == pytest.approx(expected, abs=1e-9)
    elements = [
        BaseDataElement(pred_img=image, gt_label=torch.tensor([0])).to_dict()
        for image in images
    ]
    metric.process(dict(inputs=[image.flip(0) for image in images]), elements)
    assert evaluate(metric, 4) == expected


def test_errors():
    images = flat_images(random_colours(3))
    metric = build_metric()
    with pytest.raises(ValueError, match=r"pred_img.*\['gt_label'\]"):
        metric.process(dict(inputs=images), [dict(gt_label=0)])
    with pytest.raises(ValueError, match='inputs must be uint8.*float32'):
        process(metric, [image.float() for image in images], images)
    with pytest.raises(ValueError, match=r'inputs must .*\(4, 2, 3\)'):
        process(metric, [torch.zeros(4, 2, 3, dtype=torch.uint8)] * 3, images)
    with pytest.raises(ValueError, match='inputs .* samples, 3, got 2'):
        process(metric, images[:2], images)
    with pytest.raises(ValueError, match='inputs .* samples, 3, got 0'):
        metric.process(None,
                       [dict(pred_img=image, gt_label=0) for image in images])
    with pytest.raises(ValueError, match="feature network.* got 'ReLU'"):
        METRICS.build(
            dict(type='GenerationMetric', features=dict(type='ReLU')))
    with pytest.raises(ValueError, match='pred_img must be uint8'):
        process(metric, images, [image / 255 for image in images])
    with pytest.raises(ValueError, match='2 classes, and gt_label is 2'):
        process(metric, images, images, [0, 1, 2])
    with pytest.raises(ValueError, match='pred_img values that .* finite'):
        process(build_metric(float('nan')), images, images)
    metric = build_metric()
    process(metric, images[:1], images[:1])
    with pytest.raises(ValueError, match='at least 2 samples, got 1'):
        metric.evaluate(1)


def test_errors_of_reference(tmp_path):
    with pytest.raises(FileNotFoundError, match="reference .* 'no.npz'"):
        build_metric(reference='no.npz')
    path = str(tmp_path / 'reference.npz')
    np.savez(path, mu=np.zeros(4))
    with pytest.raises(ValueError, match='reference.npz.*sigma'):
        build_metric(reference=path)
    np.savez(path, mu=np.zeros(4), sigma=np.eye(3))
    with pytest.raises(ValueError, match=r'\(4,\) and \(3, 3\)'):
        build_metric(reference=path)
    np.savez(path, mu=np.zeros(4), sigma=np.eye(4) * np.nan)
    with pytest.raises(ValueError, match='must be finite'):
        build_metric(reference=path)
    np.savez(path, mu=np.zeros(4), sigma=np.eye(4))
    images = flat_images(random_colours(2))
    with pytest.raises(ValueError, match='has 4 features, the network 3'):
        process(build_metric(reference=path), images, images)
    (tmp_path / 'reference.npz').write_text('none')
    with pytest.raises(ValueError, match='reference.npz cannot be read'):
        build_metric(reference=path)


CLASSIFIER = '''
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='WeightFormer',
        arch=dict(embed_dims=16, depth=5),
        out_type='{out_type}'),
    neck={neck},
    head=dict(type='LinearClsHead', num_classes=3, in_channels=16))
data_preprocessor = dict(
    mean=[120., 110., 100.], std=[50., 60., 70.], to_rgb={to_rgb})
test_dataloader = dict(
    dataset=dict(
        pipeline=[
            dict(type='LoadImageFromFile'),
            {transforms},
            dict(type='PackInputs')
        ]))
'''
RESIZE = "dict(type='Resize', scale=(48, 32))"
EDGE = "dict(type='ResizeEdge', scale=40, edge='short')"
CROP = "dict(type='CenterCrop', crop_size=32)"


@pytest.fixture
def classifier(tmp_path):
    """Write a config and a checkpoint of random weights."""

    def write(transforms=RESIZE,
              to_rgb=True,
              out_type='avg_featmap',
              neck=None):
        config = tmp_path / 'classifier.py'
        config.write_text(
            CLASSIFIER.format(
                transforms=transforms,
                to_rgb=to_rgb,
                out_type=out_type,
                neck=neck))
        model = build_model(Config.fromfile(config), seed=1)
        checkpoint = tmp_path / 'classifier.pth'
        torch.save(dict(state_dict=model.state_dict()), checkpoint)
        features = MODELS.build(
            dict(
                type='ClassifierFeatures',
                config=str(config),
                checkpoint=str(checkpoint)))
        return features, model

    return write


def random_images(*shape):
    return torch.randint(256, shape, dtype=torch.uint8)


@pytest.mark.parametrize('to_rgb', [True, False])
def test_classifier_features(classifier, to_rgb):
    """They are what the model makes of images of the size of its test."""
    features, model = classifier(to_rgb=to_rgb)
    images = random_images(2, 3, 32, 48)
    mean, std = (
        torch.tensor(values).view(3, 1, 1)
        for values in [(120., 110., 100.), (50., 60., 70.)])
    inputs = ((images if to_rgb else images.flip(1)) - mean) / std
    actual, logits = features(images)
    assert torch.equal(actual, model.extract_feat(inputs)[0])
    assert torch.equal(logits, model(inputs))
    assert actual.shape == (2, 16) and logits.shape == (2, 3)
    assert features.predicts_labels


def test_classifier_features_on_another_device(classifier):
    """All of it moves, what the data preprocessor keeps included."""
    features, _ = classifier()
    images = random_images(2, 3, 64, 96).to('meta')
    assert all(output.is_meta for output in features(images))


def test_classifier_features_are_averaged(classifier):
    neck = dict(type='GlobalAveragePooling')
    features, model = classifier(out_type='featmap', neck=neck)
    images = random_images(2, 3, 32, 48)
    inputs = model.data_preprocessor(dict(inputs=images.flip(1)))['inputs']
    expected = model.extract_feat(inputs, stage='backbone')[0].mean((2, 3))
    torch.testing.assert_close(features(images)[0], expected)


@pytest.mark.parametrize('transforms, size, seen', [
    (RESIZE, (64, 96), (32, 48)),
    ("dict(type='Resize', scale=32)", (64, 96), (32, 32)),
    (f'{EDGE}, {CROP}', (80, 120), (32, 32)),
    (f'{EDGE}, {CROP}', (120, 80), (32, 32)),
    (EDGE, (120, 80), (60, 40)),
])
def test_resizing(classifier, transforms, size, seen):
    """Images of one colour stay such, and get the size of the test."""
    features, model = classifier(transforms)
    colours = random_colours(2)
    big, small = (
        torch.stack(flat_images(colours, shape)) for shape in [size, seen])
    inputs = model.data_preprocessor(dict(inputs=small.flip(1)))['inputs']
    expected = model.extract_feat(inputs)[0]
    torch.testing.assert_close(features(big)[0], expected)


def test_resizing_and_cropping_keep_the_place(classifier):
    """Halves of two colours, halved in size and cropped in the middle."""
    features, model = classifier(f'{EDGE}, {CROP}')
    big = torch.zeros(1, 3, 80, 80, dtype=torch.uint8)
    big[..., 60:] = 200
    inputs = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    inputs[..., 26:] = 200
    inputs = model.data_preprocessor(dict(inputs=inputs))['inputs']
    expected = model.extract_feat(inputs)[0]
    # Antialiasing blurs the one edge.
    assert torch.dist(features(big)[0], expected) < 0.1 * expected.norm()


def test_errors_of_classifier(classifier, tmp_path):
    cfg = dict(type='ClassifierFeatures', config='no.py', checkpoint='no.pth')
    with pytest.raises(FileNotFoundError, match="checkpoint .* 'no.pth'"):
        MODELS.build(cfg)
    classifier()
    cfg['checkpoint'] = checkpoint = str(tmp_path / 'classifier.pth')
    with pytest.raises(FileNotFoundError, match='no.py'):
        MODELS.build(cfg)
    with pytest.raises(TypeError, match='config must .* got 5'):
        MODELS.build(dict(cfg, config=5))
    with pytest.raises(TypeError, match='checkpoint must .* got None'):
        MODELS.build(dict(cfg, checkpoint=None))
    config = tmp_path / 'classifier.py'
    cfg['config'], text = str(config), config.read_text()
    state = torch.load(checkpoint)
    del state['state_dict']['head.fc.bias']
    torch.save(state, checkpoint)
    with pytest.raises(ValueError, match='does not fit .*head.fc.bias'):
        MODELS.build(cfg)
    for transforms in "dict(type='A')", RESIZE[:-1] + ', keep_ratio=True)':
        config.write_text(text.replace(RESIZE, transforms))
        with pytest.raises(ValueError, match='must have a Resize'):
            MODELS.build(cfg)
    config.write_text(
        text.replace(
            "head=dict(type='LinearClsHead', num_classes=3, "
            'in_channels=16)', 'head=None'))
    with pytest.raises(ValueError, match='one of a classifier'):
        MODELS.build(cfg)


@pytest.fixture(scope='module')
def inception_weights(tmp_path_factory):
    module = pytest.importorskip(
        'torch_fidelity.feature_extractor_inceptionv3')
    network = module.FeatureExtractorInceptionV3
    with pytest.MonkeyPatch.context() as patch:
        # Random weights instead of those that it would download.
        patch.setattr(module, 'load_state_dict_from_url', lambda *_, **__: {})
        patch.setattr(network, 'load_state_dict', lambda *_: None)
        network = network('inception', ['2048'])
    path = tmp_path_factory.mktemp('inception') / 'inception.pth'
    torch.save(network.state_dict(), path)
    return path


def test_inception_features(inception_weights):
    features = MODELS.build(
        dict(type='InceptionFeatures', checkpoint=str(inception_weights)))
    actual, logits = features(random_images(2, 3, 64, 64))
    state = torch.load(inception_weights)
    assert actual.shape == (2, 2048) and logits.shape == (2, 1008)
    torch.testing.assert_close(logits, actual @ state['fc.weight'].T)
    assert not features.predicts_labels


def test_errors_of_inception(tmp_path):
    pytest.importorskip('torch_fidelity')
    path = tmp_path / 'inception.pth'
    cfg = dict(type='InceptionFeatures', checkpoint=str(path))
    with pytest.raises(FileNotFoundError, match='checkpoint .*inception.pth'):
        MODELS.build(cfg)
    torch.save(dict(a=torch.zeros(1)), path)
    with pytest.raises(ValueError, match='inception.pth cannot be read'):
        MODELS.build(cfg)


def test_inception_runs_no_code(tmp_path, capsys):
    pytest.importorskip('torch_fidelity')
    path = tmp_path / 'inception.pth'
    torch.save(Malicious(), path)
    with pytest.raises(ValueError, match='inception.pth cannot be read'):
        MODELS.build(dict(type='InceptionFeatures', checkpoint=str(path)))
    assert 'unpickled' not in capsys.readouterr().out
