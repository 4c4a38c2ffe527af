# Copyright (c) mmweightformer contributors. All rights reserved.
"""tools/analysis_tools/ablate.py, on two variants and a few images."""
import importlib
import json
import sys
from pathlib import Path

import cv2
import pytest
from helpers import run_tool
from mmengine.config import Config

from mmweightformer.analysis import TrainingLog, ablation
from mmweightformer.analysis.ablation import CONFIG, DEIT, METRIC, VARIANTS


@pytest.fixture(scope='module')
def ablate():
    sys.path.insert(0, 'tools/analysis_tools')
    yield importlib.import_module('ablate')
    sys.path.pop(0)


def test_every_variant_has_every_seed(ablate):
    runs = ablate.plan(3)
    assert len({run.name for run in runs}) == len(runs) == 3 * len(VARIANTS)
    assert {(run.variant.name, run.seed)
            for run in runs} == {(variant.name, seed)
                                 for variant in VARIANTS
                                 for seed in range(3)}


def test_the_budget_is_equal():
    """The configs differ in the backbone alone, and options touch nothing."""
    cfg, deit = (Config.fromfile(path) for path in (CONFIG, DEIT))
    for variant in VARIANTS:
        assert variant.config in (CONFIG, DEIT)
        assert all(o.startswith('model.backbone.') for o in variant.options)
    for config in cfg, deit:
        config.model.pop('backbone')
        config.pop('filename', None)
    assert cfg.to_dict() == deit.to_dict()


def write_report(runs, tmp_path, monkeypatch, score):
    logs = {
        run.name:
        TrainingLog([(1, 2.), (2, 0.5 + run.seed)], [(1, {
            METRIC: 1.
        }), (2, {
            METRIC: score(run)
        })])
        for run in runs
    }
    monkeypatch.setattr(ablation, 'read_training_log',
                        lambda folder, metrics: logs[Path(folder).name])
    ablation.write_report(tmp_path, runs, tmp_path)
    return (tmp_path / 'ablation.md').read_text()


def test_report(ablate, tmp_path, monkeypatch):
    runs = ablate.plan(2)
    text = write_report(
        runs, tmp_path, monkeypatch,
        lambda run: 40 + VARIANTS.index(run.variant) + 10 * run.seed)
    assert 'mean and range over 2 seeds' in text
    for i, variant in enumerate(VARIANTS):
        low, high = 0.4 + i / 100, 0.5 + i / 100
        assert (f'| {variant.group} | {variant.label} | {(low + high) / 2:.3f}'
                f' ({low:.3f}–{high:.3f}) | 1.000 (0.500–1.500) | ') in text
    assert cv2.imread(str(tmp_path / 'ablation.png')).std() > 0


def test_costs_are_those_of_the_variant(ablate, tmp_path, monkeypatch):
    text = write_report(ablate.plan(1), tmp_path, monkeypatch, lambda run: 50.)
    cost = {}
    for line in text.splitlines()[4:]:
        *_, group, label, _, _, params, macs, _ = line.split('|')
        cost[group.strip(), label.strip()] = int(params), float(macs)
    placement = [cost['placement', f'every {n}']
                 for n in (1, 2, 4, 6)] + [cost['placement', 'none']]
    assert placement == sorted(placement, reverse=True)
    assert cost['placement', 'none'][1] == cost['both', 'both static'][1]
    published = cost['published', 'every 3, bilateral, adaptive']
    assert cost['dynamic linear', 'linear'] == published
    assert cost['dynamic linear', 'deep'] > published
    assert cost['dynamic convolution', 'static'] < published


def test_trains_and_goes_on(ablate, tmp_path, monkeypatch, capsys):
    data = tmp_path / 'digits'
    assert run_tool('tools/dataset_converters/digits.py', data, '--layouts',
                    'imagenet', '--imagenet-train', 10, '--imagenet-val',
                    10) is None
    few = [v for v in VARIANTS if v.name in ('none', 'linear_gap')]
    reports = []
    monkeypatch.setattr(ablate, 'VARIANTS', few)
    monkeypatch.setattr(ablate, 'write_report',
                        lambda *arguments: reports.append(arguments))
    root = data / 'imagenet'
    monkeypatch.setattr(sys, 'argv', [
        'ablate.py', '--work-dir',
        str(tmp_path / 'runs'), '--seeds', '1', '--cfg-options',
        'model.backbone.arch.depth=5', 'train_cfg.max_epochs=1',
        'train_dataloader.batch_size=5', 'default_hooks.logger.interval=1',
        *(f'{split}_dataloader.dataset.data_root={root}'
          for split in ('train', 'val', 'test')),
        *(f'{split}_dataloader.num_workers=0'
          for split in ('train', 'val', 'test')),
        *(f'{split}_dataloader.persistent_workers=False'
          for split in ('train', 'val', 'test'))
    ])
    ablate.main()
    # A damaged result is none: its run is called again, and finds its end.
    (tmp_path / 'runs' / f'{few[0].name}_0' / 'result.json').write_text('{"a')
    ablate.main()
    assert '2 of 2 runs done' in capsys.readouterr().out
    assert len(reports) == 2
    for variant in few:
        folder = tmp_path / 'runs' / f'{variant.name}_0'
        result = json.loads((folder / 'result.json').read_text())
        assert 0 <= result['metrics'][METRIC] <= 100
        backbone = Config.fromfile(folder / Path(CONFIG).name).model.backbone
        assert backbone.get('dynamic_linear') == ('gap' if variant.name
                                                  == 'linear_gap' else None)
