# Copyright (c) mmweightformer contributors. All rights reserved.
"""tools/visualization/vis_dynamic_weights.py on miniature digits."""
import json
import shutil

import cv2
import pytest
import torch
from helpers import build_backbone, randomize, run_tool
from miniature import WIDTH, make_digits, small_options

from mmweightformer.analysis.dynamic_weights import dynamic_weights

TOOL = 'tools/visualization/vis_dynamic_weights.py'
CLASSIFIER = 'configs/digits/wf_t_digits.py'
ARCH = dict(embed_dims=WIDTH, depth=17)
LAYERS = [
    f'layers.{i}.{name}' for i in range(1, 17, 3) for name in ('dwconv', 'fc1')
]
MEANS = ['mean of linear', 'mean of conv', 'mean of all']


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    return make_digits(tmp_path_factory.mktemp('digits'))


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    monkeypatch.syspath_prepend('tools')


@pytest.fixture
def call(digits, tmp_path):
    """A function that runs the tool and returns its error or its results."""

    def run(config, *arguments, options=()):
        error = run_tool(TOOL, config, *arguments, '--out-dir',
                         tmp_path / 'out', '--cfg-options',
                         *small_options(config, digits), *options)
        if error is not None:
            return error
        return json.loads((tmp_path / 'out/dynamic_weights.json').read_text())

    return run


def figures(tmp_path):
    return {path.name
            for path in (tmp_path / 'out').iterdir()
            } - {'dynamic_weights.json'}


def save(backbone, path):
    state = backbone.state_dict().items()
    torch.save({f'backbone.{name}': value for name, value in state}, path)
    return path


def load_image(path):
    """As the classifier's pipeline and preprocessor do."""
    pixels = torch.from_numpy(cv2.imread(str(path))[..., ::-1].copy()).float()
    mean = torch.tensor([123.675, 116.28, 103.53])
    std = torch.tensor([58.395, 57.12, 57.375])
    return ((pixels - mean) / std).permute(2, 0, 1)[None]


def test_classifier(call, digits, tmp_path):
    """Of each picture there are two, in classes of their own."""
    root = tmp_path / 'imagenet'
    shutil.copytree(digits / 'imagenet', root)
    for path in list(root.glob('val/*/*')):
        shutil.copy(path, path.with_stem(path.stem + '_copy'))
    backbone = randomize(build_backbone(ARCH)).eval()
    results = call(
        CLASSIFIER,
        save(backbone, tmp_path / 'c.pth'),
        '--num-images',
        8,
        '--num-classes',
        4,
        options=[f'test_dataloader.dataset.data_root={root}'])
    assert figures(tmp_path) == {
        f'{name}.png'
        for name in ('kernels', 'kernels_by_image', 'ratios', 'similarity',
                     'classes')
    }
    assert [image['label'] for image in results['images']
            ] == [label for label in (0, 2, 5, 7) for _ in range(2)]
    images = [load_image(image['path']) for image in results['images']]
    expected = dynamic_weights(backbone, images)
    assert list(results['ratios']) == LAYERS
    assert list(results['similarity']) == LAYERS + MEANS
    for layer in expected:
        assert results['ratios'][layer.name]['images'] == pytest.approx(
            layer.ratios.tolist(), rel=1e-4)
        similarity = results['similarity'][layer.name]
        for form, matrix in similarity['matrix'].items():
            torch.testing.assert_close(
                torch.tensor(matrix, dtype=torch.float64),
                layer.similarity(form == 'centred'),
                rtol=0,
                atol=1e-4)
            off_diagonal = (torch.tensor(matrix).sum() - 8) / 56
            assert similarity['mean'][form] == pytest.approx(
                off_diagonal.item(), abs=1e-4)
        classes = similarity['classes']['centred']
        assert classes['within'] == pytest.approx(1)
        # One of 105 ways to pair eight images is the true one.
        assert classes['p_value'] < 0.02
    kinds = dict(linear='fc1', conv='dwconv', all='')
    for mean, end in zip(MEANS, kinds.values()):
        matrices = torch.stack([
            layer.similarity(False) for layer in expected
            if layer.name.endswith(end)
        ])
        torch.testing.assert_close(
            torch.tensor(
                results['similarity'][mean]['matrix']['raw']).double(),
            matrices.mean(0),
            rtol=0,
            atol=1e-4)


@pytest.mark.parametrize(
    'config',
    ['configs/mask_rcnn_wf_t_coco.py', 'configs/upernet_wf_t_ade20k.py'],
    ids=['detection', 'segmentation'])
def test_other_tasks(config, call, tmp_path):
    """A test image, and the same as a file, which has no annotations."""
    results = call(config, '--num-images', 1)
    assert list(results['ratios']) == LAYERS
    image, = results['images']
    assert image['label'] is None and results['similarity'] == {}
    of_file = call(config, '--img', image['path'], '--format', 'pdf')
    assert of_file == results
    assert figures(tmp_path) == {
        f'{name}.{suffix}'
        for name in ('kernels', 'ratios')
        for suffix in ('png', 'pdf')
    }


def test_mistakes_are_named(call, tmp_path):
    picture, damaged, other = (
        tmp_path / name for name in ('a.jpg', 'damaged.pth', 'other.pth'))
    picture.write_text('none')
    damaged.write_bytes(b'PK half')
    save(build_backbone(dict(ARCH, embed_dims=16)), other)
    assert 'VisionTransformer must have layers whose weights are predicted' \
        in call('configs/digits/deit_t_digits.py')
    assert 'damaged.pth is not a checkpoint' in call(CLASSIFIER, damaged)
    assert 'other.pth does not fit the backbone' in call(CLASSIFIER, other)
    assert 'no.pth' in call(CLASSIFIER, 'no.pth')
    assert 'a.jpg cannot be loaded' in call(CLASSIFIER, '--img', picture)
    error = call(
        CLASSIFIER, options=['test_dataloader.dataset.data_root=nowhere'])
    assert 'nowhere' in error and 'data_root=FOLDER' in error
    assert not figures(tmp_path)


@pytest.mark.parametrize('arguments, message', [
    (['--img', 'no.png'], 'no.png: there is no such file'),
    (['--num-images', 0], '--num-images must be positive'),
    (['--format', 'bmp'], 'invalid choice'),
])
def test_wrong_arguments(arguments, message, capsys):
    assert run_tool(TOOL, CLASSIFIER, *arguments) == 2
    assert message in capsys.readouterr().err
