# Copyright (c) mmweightformer contributors. All rights reserved.
"""tools/analysis_tools/compare.py, on a plan of a few small runs."""
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import pytest
from helpers import run_tool
from mmengine.config import Config

from mmweightformer.analysis import TrainingLog, comparison
from mmweightformer.analysis.comparison import BACKBONES, TASKS


@pytest.fixture(scope='module')
def compare():
    sys.path.insert(0, 'tools/analysis_tools')
    yield importlib.import_module('compare')
    sys.path.pop(0)


def test_plan_is_the_same_for_both_backbones(compare):
    runs = compare.plan(2)
    assert len({run.name for run in runs}) == len(runs)
    plans = {
        backbone: [(run.task, run.seed, run.start is None) for run in runs
                   if run.backbone == backbone]
        for backbone in BACKBONES
    }
    assert plans['wf'] == plans['deit']
    for task in 'detection', 'segmentation':
        assert plans['wf'].count((task, 0, True)) == 1
        for seed in 0, 1:
            assert (task, seed, False) in plans['wf']
    # Whatever a run starts from stands before it.
    names = [run.name for run in runs]
    for index, run in enumerate(runs):
        assert run.start is None or run.start in names[:index]


@pytest.mark.parametrize('backbone', BACKBONES)
@pytest.mark.parametrize('task', TASKS)
def test_configs_differ_in_the_backbone_alone(task, backbone):
    cfg, wf = (
        Config.fromfile(TASKS[task].config.format(name))
        for name in (backbone, 'wf'))
    for name in 'backbone', 'init_cfg':
        cfg.model.pop(name, None)
        wf.model.pop(name, None)
    for name in 'custom_imports', 'filename':
        cfg.pop(name, None)
        wf.pop(name, None)
    assert cfg.to_dict() == wf.to_dict()


TINY = """
_base_ = '{base}'
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=32, depth=2)),
    {part}=dict(in_channels={channels}))
data_root = '{data_root}'
loader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(data_root=data_root))
train_dataloader = dict(batch_size=5, **loader)
val_dataloader = loader
test_dataloader = loader
train_cfg = dict(max_epochs=1, val_interval=1)
default_hooks = dict(logger=dict(interval=1))
"""


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """The tasks with tiny models, two iterations each."""
    data = tmp_path / 'digits'
    assert run_tool('tools/dataset_converters/digits.py', data, '--num-train',
                    10, '--num-val', 2, '--imagenet-train', 10,
                    '--imagenet-val', 10, '--layouts', 'coco',
                    'imagenet') is None
    tiny = {}
    for task, layout, part in [('pretraining', 'imagenet', 'head'),
                               ('detection', 'coco', 'neck')]:
        text = TINY.format(
            base=os.path.abspath(TASKS[task].config.format('wf')),
            part=part,
            channels=32,
            data_root=f'{data / layout}/')
        if task == 'detection':
            text += """
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val2017.json')
"""
        (tmp_path / f'{task}_wf.py').write_text(text)
        tiny[task] = TASKS[task]._replace(
            config=str(tmp_path / task) + '_{}.py', options=[])
    for name, task in tiny.items():
        monkeypatch.setitem(TASKS, name, task)
    return TASKS


def call(compare, work_dir, monkeypatch, *arguments):
    monkeypatch.setattr(sys, 'argv', [
        'compare.py', '--work-dir',
        str(work_dir), '--out',
        str(work_dir / 'report'), *arguments
    ])
    compare.main()


def test_runs_once_and_goes_on(compare, tasks, tmp_path, monkeypatch, capsys):
    runs = [
        compare.Run('first', 'wf', 'pretraining', 0),
        compare.Run('second', 'wf', 'detection', 0, 'first')
    ]
    reports = []
    monkeypatch.setattr(compare, 'plan', lambda seeds: runs)
    monkeypatch.setattr(compare, 'write_report',
                        lambda *arguments: reports.append(arguments))
    work_dir = tmp_path / 'runs'

    config = Path(tasks['detection'].config.format('wf'))
    text = config.read_text()

    # What came before a failure stands.
    config.write_text(text.replace('/coco/', '/nowhere/'))
    with pytest.raises(SystemExit, match='(?s)second: it failed.*nowhere'):
        call(compare, work_dir, monkeypatch)
    first = json.loads((work_dir / 'first' / 'result.json').read_text())
    assert 0 <= first['metrics']['accuracy/top1'] <= 100
    assert not reports

    config.write_text(text)
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, 'Popen',
        lambda command, *rest, **options: started.append(command) or popen(
            command, *rest, **options))
    call(compare, work_dir, monkeypatch)
    command, = started
    assert f"pretrained={work_dir / 'first' / 'weights.pth'}" in command
    loaded = (work_dir / 'second' / 'output.log').read_text()
    assert f"from path: {work_dir / 'first' / 'weights.pth'}" in loaded
    second = json.loads((work_dir / 'second' / 'result.json').read_text())
    assert {'coco/bbox_mAP', 'coco/segm_mAP'} == set(second['metrics'])

    call(compare, work_dir, monkeypatch)
    assert len(started) == 1
    assert len(reports) == 2
    assert '2 of 2 runs done' in capsys.readouterr().out


def test_refuses_a_foreign_folder(compare, tmp_path, monkeypatch):
    (tmp_path / 'wf_pretraining_0').mkdir()
    (tmp_path / 'wf_pretraining_0' / 'notes').write_text('mine')
    with pytest.raises(SystemExit, match='was not made by this tool'):
        call(compare, tmp_path, monkeypatch)


def test_report(compare, tmp_path, monkeypatch):
    runs = compare.plan(2)
    values = {'wf': 0.25, 'deit': 0.5}
    logs = {}
    for run in runs:
        value = (values[run.backbone] + 0.125 * run.seed) / \
            TASKS[run.task].scale
        metrics = dict.fromkeys(TASKS[run.task].metrics, value)
        logs[run.name] = TrainingLog([(1, 2.0), (2, 1.0)], [(1, metrics),
                                                            (2, metrics)])
    monkeypatch.setattr(comparison, 'read_training_log',
                        lambda folder, metrics: logs[Path(folder).name])
    monkeypatch.setattr(comparison, 'cost_table', lambda: [['cost'], ['1 G']])
    monkeypatch.setattr(comparison, 'detail_table',
                        lambda pretrained: [['detail'], ['0.5']])
    comparison.write_report(tmp_path, runs, tmp_path)
    text = (tmp_path / 'comparison.md').read_text()
    assert ('| WeightFormer-T | pre-trained here | 0.250 | 0.250 |' +
            ' 0.312 (0.250–0.375) |' * 3) in text
    assert '| DeiT-T | from scratch |  |  |' + ' 0.500 |' * 3 in text
    assert '| cost |\n| --- |\n| 1 G |' in text
    for name in 'comparison.png', 'learning_curves.png':
        assert cv2.imread(str(tmp_path / name)).std() > 0


@pytest.mark.parametrize('arguments', [['--seeds', '0'], ['--jobs', 'two']])
def test_refuses_wrong_arguments(compare, tmp_path, monkeypatch, arguments,
                                 capsys):
    with pytest.raises(SystemExit):
        call(compare, tmp_path, monkeypatch, *arguments)
    assert f"'{arguments[1]}' is not a positive number" in \
        capsys.readouterr().err
