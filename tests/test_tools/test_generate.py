# Copyright (c) mmweightformer contributors. All rights reserved.
"""tools/analysis_tools/generate.py, on small networks and a few images."""
import importlib
import json
import sys
from pathlib import Path

import cv2
import pytest
import torch
from helpers import run_tool
from mmengine.config import Config

from mmweightformer.analysis import TrainingLog, generation
from mmweightformer.analysis.generation import DENOISERS, GUIDANCE, METRICS

pytest.importorskip('diffusers')
pytest.importorskip('torchmetrics')


@pytest.fixture(scope='module')
def generate():
    sys.path.insert(0, 'tools/analysis_tools')
    yield importlib.import_module('generate')
    sys.path.pop(0)


def test_every_denoiser_has_every_score(generate):
    runs = generate.plan(3)
    assert len({run.name for run in runs}) == len(runs)
    assert {(run.start, run.guidance, run.seed)
            for run in runs if run.start} == {(name, guidance, seed)
                                              for name in DENOISERS
                                              for guidance in GUIDANCE
                                              for seed in range(3)}


def test_the_budget_is_equal():
    """The configs differ in the denoiser alone."""
    configs = []
    for denoiser in DENOISERS.values():
        cfg = Config.fromfile(denoiser.config)
        cfg.model.denoiser.pop('arch')
        cfg.model.denoiser.pop('type')
        cfg.pop('filename', None)
        configs.append(cfg.to_dict())
    assert configs[0] == configs[1]


def test_the_guided_score_is_that_of_the_config():
    cfg = Config.fromfile(DENOISERS['dit_wf'].config)
    assert GUIDANCE == (1, cfg.model.test_cfg.guidance_scale)


def test_report(generate, tmp_path, monkeypatch):
    runs = generate.plan(2)
    for run in runs:
        (tmp_path / run.name).mkdir()
        metrics = {
            name:
            10 * i + (run.guidance or 0) + run.seed + (run.start == 'dit') / 2
            for i, name in enumerate(METRICS)
        }
        if run.name == 'classifier':
            metrics = {'accuracy/top1': 91.2}
        (tmp_path / run.name / 'result.json').write_text(
            json.dumps(dict(metrics=metrics, seconds=1.)))
    monkeypatch.setattr(generation, 'read_training_log',
                        lambda *_: TrainingLog([(1, 2.), (2, 0.5)], []))
    generation.write_report(tmp_path, runs, tmp_path / 'out')
    text = (tmp_path / 'out' / 'generation.md').read_text()
    assert 'has an accuracy of 0.912' in text
    rows = [[cell.strip() for cell in line.split('|')[1:-1]]
            for line in text.splitlines() if line.startswith('|')][2:]
    assert [row[:2] for row in rows] == [[d.title, f'{guidance:g}']
                                         for guidance in GUIDANCE
                                         for d in DENOISERS.values()]
    # Unguided, of WeightFormerDiT and DiT.
    assert rows[0][2] == '1.500 (1.000–2.000)'
    assert rows[1][3] == '12.000 (11.500–12.500)'
    assert rows[0][4] == '0.215 (0.210–0.220)'
    assert rows[0][5:] == rows[2][5:] != rows[1][5:]
    assert cv2.imread(str(tmp_path / 'out' / 'loss.png')).std() > 0


def test_trains_and_scores(generate, tmp_path, monkeypatch, capsys):
    data = tmp_path / 'digits'
    assert run_tool('tools/dataset_converters/digits.py', data, '--layouts',
                    'imagenet', '--size', 32, '--imagenet-train', 10,
                    '--imagenet-val', 10) is None
    monkeypatch.setattr(generate, 'GUIDANCE', (4., ))
    reports = []
    monkeypatch.setattr(generate, 'write_report',
                        lambda *arguments: reports.append(arguments))
    loaders = [
        f'{stage}_dataloader.{key}={value}' for stage in ('train', 'test')
        for key, value in {
            'dataset.data_root': data / 'imagenet',
            'batch_size': 5,
            'num_workers': 0,
            'persistent_workers': False
        }.items()
    ]
    classifier = tmp_path / 'classifier.py'
    base = Path(generate.CLASSIFIER_CONFIG).absolute()
    classifier.write_text(f'''
_base_ = {str(base)!r}
model = dict(backbone=dict(arch=dict(_delete_=True, embed_dims=16, depth=2)),
             head=dict(in_channels=16))
train_cfg = dict(max_epochs=1)
loader = dict(batch_size=5, num_workers=0, persistent_workers=False,
              dataset=dict(data_root={str(data / 'imagenet')!r}))
train_dataloader = loader
val_dataloader = loader
test_dataloader = loader
''')
    monkeypatch.setattr(generate, 'CLASSIFIER_CONFIG', classifier)
    monkeypatch.setattr(sys, 'argv', [
        'generate.py', '--work-dir',
        str(tmp_path / 'runs'), '--seeds', '1', '--cfg-options',
        'model.denoiser.arch.embed_dims=16', 'model.denoiser.arch.depth=2',
        'model.test_cfg.num_steps=2', 'train_cfg.max_iters=2',
        'param_scheduler.1.end=200', 'default_hooks.logger.interval=1',
        'default_hooks.checkpoint.interval=2',
        'test_dataloader.dataset.indices=10',
        f'test_evaluator.features.config={classifier}', *loaders
    ])
    generate.main()
    # What stands is not run again.
    (tmp_path / 'runs' / 'dit_guidance_4_0' / 'result.json').unlink()
    generate.main()
    assert '5 of 5 runs done' in capsys.readouterr().out
    assert len(reports) == 2
    for name in DENOISERS:
        folder = tmp_path / 'runs' / f'{name}_guidance_4_0'
        found = json.loads((folder / 'result.json').read_text())['metrics']
        assert list(found) == METRICS
        assert found['generation/FID'] > 0
        assert 0 <= found['generation/accuracy'] <= 100
        saved = torch.load(
            tmp_path / 'runs' / name / 'iter_2.pth', weights_only=False)
        assert 'ema_state_dict' in saved
