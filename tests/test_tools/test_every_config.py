# Copyright (c) mmweightformer contributors. All rights reserved.
"""tools/train.py and tools/test.py run every config on miniature digits."""
import json
import math
from pathlib import Path

import pytest
import torch
from helpers import build_backbone, run_tool
from miniature import (WIDTH, forbid_unused_parameters, make_digits,
                       small_options)

# Those of generation have a test of their own.
CONFIGS = sorted(
    path for path in Path('configs').glob('*.py')
    if not path.stem.startswith('dit_'))
# By what stands last in a config's name.
METRICS = dict(coco='coco/segm_mAP', ade20k='mIoU', in1k='accuracy/top1')
DOWNSTREAM = Path('configs/mask_rcnn_wf_t_coco.py')


def task_of(path):
    task, = METRICS.keys() & path.stem.split('_')
    return task


FIRST = {task_of(path): path for path in reversed(CONFIGS)}.values()


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    return make_digits(tmp_path_factory.mktemp('digits'))


@pytest.fixture
def options(digits, tmp_path):
    """A function that returns the arguments for a config."""

    def arguments(path):
        return [
            '--work-dir', tmp_path, '--cfg-options',
            *small_options(path, digits)
        ]

    return arguments


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    monkeypatch.syspath_prepend('tools')
    forbid_unused_parameters(monkeypatch)


def scalars(work_dir):
    """What the last run has logged: steps of training, and the last line."""
    path = max(work_dir.glob('*/vis_data/*.json'))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if 'loss' in line], lines[-1]


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_trains_and_evaluates(path, options, tmp_path):
    metric, arguments = METRICS[task_of(path)], options(path)
    assert run_tool('tools/train.py', path, *arguments) is None
    steps, result = scalars(tmp_path)
    assert len(steps) == 2
    assert all(math.isfinite(step['loss']) for step in steps)
    assert math.isfinite(result[metric])
    checkpoint = (tmp_path / 'last_checkpoint').read_text()
    assert Path(checkpoint).exists()
    if path in FIRST:  # of each task
        assert run_tool('tools/test.py', path, checkpoint, *arguments) is None
        assert scalars(tmp_path)[1][metric] == result[metric]


@pytest.mark.parametrize(
    'path',
    sorted(Path('configs/digits').glob('upernet_*')),
    ids=lambda path: path.stem)
def test_digits_of_any_size_are_segmented(path, options, tmp_path):
    """No pixel is filled up: mmseg 1.2.2 has no class weight for those."""
    assert run_tool('tools/train.py', path, *options(path)) is None
    assert math.isfinite(scalars(tmp_path)[1]['mIoU'])


def test_pretrained_weights_reach_the_backbone(options, tmp_path):
    state = build_backbone(dict(embed_dims=WIDTH, depth=17)).state_dict()
    weights = tmp_path / 'classifier.pth'
    torch.save({f'backbone.{name}': p for name, p in state.items()}, weights)
    assert run_tool('tools/train.py', DOWNSTREAM, *options(DOWNSTREAM),
                    f'pretrained={weights}',
                    'optim_wrapper.optimizer.lr=0') is None
    checkpoint = torch.load(
        (tmp_path / 'last_checkpoint').read_text(), weights_only=False)
    trained = {
        name[len('backbone.'):]: value
        for name, value in checkpoint['state_dict'].items()
        if name.startswith('backbone.')
    }
    # Without the final norm, which is not built there.
    assert state.keys() - trained.keys() == {'norm.weight', 'norm.bias'}
    for name, value in trained.items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


def test_missing_pretrained_weights_are_named(options):
    error = run_tool('tools/train.py', DOWNSTREAM, *options(DOWNSTREAM),
                     'pretrained=no.pth')
    assert 'no.pth  (model.backbone.init_cfg.checkpoint)' in error
    assert 'pretrained=None' in error
