# Copyright (c) mmweightformer contributors. All rights reserved.
import argparse
import csv
import json
import re
import tempfile
from pathlib import Path

import pytest
import torch
from helpers import run_tool
from miniature import SIDE, make_digits, small_options
from mmengine.config import Config, DictAction
from mmengine.registry import MODELS, DefaultScope

from mmweightformer.analysis.stages import STAGES, drop_pretrained

TOOL = 'tools/analysis_tools/benchmark_test_loop.py'
DETECTOR = 'configs/mask_rcnn_wf_t_coco.py'
CLASSIFIER = 'configs/wf_t_in1k.py'
QUICK = '--num-images', 2, '--rounds', 1, '--warmup', 0


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    return make_digits(tmp_path_factory.mktemp('digits'))


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, in which none is left."""
    folder = tmp_path / 'temporary'
    folder.mkdir()
    monkeypatch.setattr(tempfile, 'tempdir', str(folder))
    yield
    # Python's own stands until the process ends.
    assert not [p for p in folder.iterdir() if not p.match('pymp-*')]


def run(digits, configs, *arguments, options=()):
    return run_tool(TOOL, *configs, *QUICK, *arguments, '--cfg-options',
                    *small_options(configs[0], digits), *options)


def table(text):
    return [[cell.strip() for cell in line.strip('|').split('|')]
            for line in text.splitlines() if line.startswith('|')]


@pytest.mark.parametrize('config, without', [
    ('configs/cascade_mask_rcnn_wf_t_vitdet_coco.py', []),
    ('configs/upernet_wf_t_ade20k.py', []),
    (CLASSIFIER, ['neck', 'post-processing']),
])
def test_every_task(config, without, digits, tmp_path):
    out = tmp_path / 'new' / 'speed.json'
    assert run(digits, [config], '--out', out) is None
    row, = json.loads(out.read_text())['rows']
    assert row['config'] == config and row['weights'] == 'random'
    assert row['input'] == f'{SIDE}×{SIDE}'
    assert row['images_per_second'] == row['slowest'] == row['fastest'] > 0
    shares = {stage: row[stage] for stage in STAGES}
    assert sum(shares.values()) == pytest.approx(1)
    assert [stage for stage, share in shares.items() if not share] == without
    assert shares['backbone'] > 0.01
    assert (row['detections'] or 0) > 0 if 'rcnn' in config else \
        row['detections'] is None


@pytest.fixture(scope='module')
def checkpoint(digits, tmp_path_factory):
    """Of the detector, which with it takes everything for background."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--options', nargs='+', action=DictAction)
    args = parser.parse_args(['--options', *small_options(DETECTOR, digits)])
    cfg = Config.fromfile(DETECTOR)
    cfg.merge_from_dict(args.options)
    drop_pretrained(cfg)
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.model)
    torch.nn.init.zeros_(model.roi_head.bbox_head.fc_cls.weight)
    model.roi_head.bbox_head.fc_cls.bias.data[-1] = 99
    path = tmp_path_factory.mktemp('weights') / 'a.pth'
    torch.save(dict(state_dict=model.state_dict()), path)
    return path


def test_table(digits, checkpoint, tmp_path, capsys):
    """Of one config, with other weights."""
    out = tmp_path / 'speed.md'
    assert run(digits, [DETECTOR] * 2, '--checkpoints', 'random', checkpoint,
               '--size', 40, 64, '--out', out) is None
    text = capsys.readouterr().out
    assert text == out.read_text()
    header, _, *rows = table(text)
    assert header == ['config', 'input', 'images/s (range)', 'ratio', *STAGES]
    for row in rows:
        assert row[:2] == ['mask_rcnn_wf_t_coco', '64×64']
        assert re.fullmatch(r'\S+ \(\S+–\S+\)', row[2])
        shares = [float(cell.rstrip('%')) for cell in row[4:]]
        assert sum(shares) == pytest.approx(100, abs=0.5)
    assert rows[0][3] == '1.00'
    assert f'weights: random, {checkpoint}.' in text
    found, none = re.search(r'Detections an image: (\S+), (\S+)\.\n',
                            text).groups()
    assert float(found) > float(none) == 0
    assert 'Random weights detect more or less' in text


def test_csv_of_configs_that_differ(digits, tmp_path, capsys):
    out = tmp_path / 'speed.csv'
    other = tmp_path / 'other.py'
    other.write_text(f"_base_ = '{Path(CLASSIFIER).absolute()}'")
    assert run(digits, [CLASSIFIER, other], '--out', out) is None
    assert 'Detections' not in capsys.readouterr().out
    with open(out, newline='') as file:
        rows = list(csv.DictReader(file))
    assert [row['config'] for row in rows] == [CLASSIFIER, str(other)]
    assert all(float(row['images_per_second']) > 0 for row in rows)
    assert {row['weights'] for row in rows} == {'random'}
    assert {row['detections'] for row in rows} == {''}


def test_checkpoints_that_do_not_fit(digits, checkpoint, tmp_path):
    arguments = [CLASSIFIER], '--checkpoints'
    error = run(digits, *arguments, checkpoint)
    assert f'{checkpoint} does not fit {CLASSIFIER}: ' in error
    assert 'missing keys in source state_dict: backbone.norm' in error
    assert len(error.splitlines()) < 10 and len(error) < 3000
    error = run(digits, *arguments, tmp_path / 'no.pth')
    assert f'{tmp_path}/no.pth  (load_from)' in error


PIPELINE = 'test_dataloader.dataset.pipeline'


@pytest.mark.parametrize('arguments, options, message', [
    (['--num-images', 11], [], '--num-images must be at most .*, got 11'),
    (['--size', 64], [], 'cannot be built: ValueError: .* got ResizeEdge'),
    ([], ['model.type=A'], 'cannot be built: KeyError'),
    ([], [f'{PIPELINE}.2.crop_size=8', 'model.backbone.pad=None'
          ], 'cannot be tested: ValueError: an image must be at least 16'),
    ([], ['test_dataloader.dataset.split=no'], 'cannot be built: '),
    ([], ['test_cfg=None'], 'has no test_cfg'),
])
def test_wrong_configs(arguments, options, message, digits):
    error = run(digits, [CLASSIFIER], *arguments, options=options)
    assert CLASSIFIER in error and re.search(message, error)
    assert len(error.splitlines()) < 10


def test_missing_data(digits):
    error = run(
        digits, [DETECTOR], options=['test_dataloader.dataset.ann_file=no'])
    assert 'coco/no  (test_dataloader.dataset.ann_file)' in error


def test_missing_image(digits, tmp_path):
    """As a worker of the loader tells it."""
    error = run(
        digits, [DETECTOR],
        options=[
            f'test_dataloader.dataset.data_prefix.img={tmp_path}',
            'test_dataloader.num_workers=1'
        ])
    assert error.startswith(f'{DETECTOR} cannot be tested: FileNotFoundError')
    assert f'{tmp_path}/000000000001.jpg' in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize('arguments, message', [
    ([], 'required: CONFIG'),
    (['a.py', '--checkpoints', 'a', 'b'], '--checkpoints must be 1, .*got 2'),
    (['a.py', '--num-images', 0], "--num-images: '0' is not a whole number"),
    (['a.py', '--rounds', 'a'], "--rounds: 'a' is not a whole .* least 1"),
    (['a.py', '--warmup', -1], "--warmup: '-1' is not a whole number"),
    (['a.py', '--size', 1, 2, 3], '--size must be .* got 1 2 3'),
    (['a.py', '--out', 'a.txt'], '--out must end with .*, got a.txt'),
])
def test_wrong_arguments(arguments, message, capsys):
    assert run_tool(TOOL, *arguments) == 2
    assert re.search(message, capsys.readouterr().err)


def test_unwritable_out(tmp_path, capsys):
    """It is told before the work."""
    file, folder = tmp_path / 'file', tmp_path / 'a.json'
    file.touch()
    folder.mkdir()
    assert 'file' in run_tool(TOOL, 'a.py', '--out', file / 'a' / 'b.json')
    assert run_tool(TOOL, 'a.py', '--out', folder) == 2
    assert f'got the folder {folder}' in capsys.readouterr().err
