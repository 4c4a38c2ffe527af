# Copyright (c) mmweightformer contributors. All rights reserved.
import json
import sys

import pytest
import torch
from helpers import (captured, refusal, relative_error, run_command, run_tool,
                     with_small_files)
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmweightformer.utils import save_state_dict

TOOL = 'tools/deployment/export.py'
CONFIG = '''
custom_imports = dict(imports=['mmweightformer'])
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='WeightFormer',
        arch=dict(embed_dims=16, depth=2),
        out_type='avg_featmap'),
    head=dict(type='LinearClsHead', in_channels=16, num_classes=5))
data_preprocessor = dict(mean=[1., 2., 3.], std=[4., 5., 6.], to_rgb=True)
'''


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'config.py'
    path.write_text(CONFIG)
    return path


@pytest.fixture
def trained(config, tmp_path):
    """A model and its checkpoint."""
    cfg = Config.fromfile(config)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model).eval()
    path = tmp_path / 'trained.pth'
    save_state_dict(model.state_dict(), str(path))
    return model, path


@pytest.mark.parametrize('part, name', [('model', 'logits'),
                                        ('backbone', 'feat0')])
@torch.no_grad()
def test_checkpoint(part, name, config, trained, tmp_path, capsys):
    model, checkpoint = trained
    out = tmp_path / 'new' / 'a.pt'
    assert run_tool(TOOL, config, checkpoint, '--part', part, '--out',
                    out) is None
    *shapes, last = capsys.readouterr().out.splitlines()[-6:]
    for line in shapes:
        assert ': differs from PyTorch by ' in line
    assert last.startswith(f'{out}: ')
    assert last.endswith(f'MB, {name}, {checkpoint}')

    files = {'metadata.json': ''}
    actual, = torch.jit.load(
        out, _extra_files=files)(
            image := torch.randn(2, 3, 40, 70))
    expected = model(image) if part == 'model' else model.backbone(image)[0]
    assert relative_error(actual, expected) < 1e-5
    assert json.loads(files['metadata.json']) == dict(
        config='config.py',
        part=part,
        checkpoint='trained.pth',
        mean=[1., 2., 3.],
        std=[4., 5., 6.],
        bgr_to_rgb=True,
        pad_size_divisor=1,
        least_side=17)


def test_random_weights_are_named(config, tmp_path, capsys):
    assert run_tool(TOOL, config, '--out', tmp_path / 'a.pt') is None
    assert 'random weights, as no checkpoint was given' in \
        capsys.readouterr().out


def test_backbone_of_a_detector(trained, tmp_path):
    """It takes the weights of a classifier, and leaves the heads alone."""
    out = tmp_path / 'a.pt'
    arguments = [
        TOOL, 'configs/digits/mask_rcnn_wf_t_digits.py', trained[1], '--out',
        out, '--cfg-options', 'model.backbone.arch._delete_=True',
        'model.backbone.arch.embed_dims=16', 'model.backbone.arch.depth=2',
        'model.neck.in_channels=16'
    ]
    error = run_tool(*arguments)
    assert 'trained.pth lacks ' in error and 'such as neck.levels.0' in error
    assert not out.exists()
    assert run_tool(*arguments, '--part', 'backbone') is None
    assert out.exists()


@pytest.mark.parametrize('arguments, message', [
    ([], '--out'),
    (['--out', 'a.txt'], '--out must end with one of .onnx, .pt2, .pt, got a'),
    (['--out', 'a.pt', '--part', 'head'], "--part: invalid choice: 'head'"),
])
def test_wrong_arguments(arguments, message, config, capsys):
    assert run_tool(TOOL, config, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize('options, message', [
    (['model=None'], 'has no model'),
    (['model.type=A'], 'A is not in the'),
    (['model.backbone.arch.embed_dims=15'], 'reduction'),
    (['model.head.num_classes=6'], 'size mismatch for head.fc.bias'),
    (['model.backbone.arch.depth=3'], 'lacks 8 weights of what is exported, '
     'such as backbone.layers.2.'),
])
def test_one_line_errors(options, message, config, trained, tmp_path):
    out = tmp_path / 'a.pt'
    error = run_tool(TOOL, config, trained[1], '--out', out, '--cfg-options',
                     *options)
    assert message in error and str(config) in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


def test_missing_files(config, tmp_path):
    out = tmp_path / 'a.pt'
    for arguments in [config, tmp_path / 'no.pth'], [tmp_path / 'no.py']:
        error = run_tool(TOOL, *arguments, '--out', out)
        assert str(arguments[-1]) in error and 'FileNotFoundError' in error
    config.write_text('')
    assert 'has no model' in run_tool(TOOL, config, '--out', out)
    assert not out.exists()


@pytest.mark.parametrize('suffix',
                         ['.pt', pytest.param('.pt2', marks=captured)])
def test_full_disk(suffix, config, tmp_path):
    result = run_command(
        *with_small_files(16, sys.executable, TOOL, config, '--out', tmp_path /
                          f'a{suffix}'))
    assert 'File too large' in refusal(result)
    assert list(tmp_path.iterdir()) == [config]
