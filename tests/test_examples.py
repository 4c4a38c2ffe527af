# Copyright (c) mmweightformer contributors. All rights reserved.
"""The examples in miniature."""
import importlib
import re
import sys
from pathlib import Path
from statistics import mean

import cv2
import pytest
import torch
from helpers import run_tool

EXAMPLE = 'examples/sequence_classification.py'


@pytest.fixture(scope='module')
def example():
    sys.path.insert(0, 'examples')
    yield importlib.import_module('sequence_classification')
    sys.path.remove('examples')


@pytest.fixture(scope='module')
def datasets(example):
    return example.load_digits_as_sequences()


def test_writes_results_and_figure(tmp_path):
    assert run_tool(EXAMPLE, '--epochs', 1, '--seeds', 1, '--lengths', 16, 8,
                    '--out-dir', tmp_path / 'out') is None
    text = (tmp_path / 'out' / 'results.md').read_text()
    for name in 'WeightFormer', 'Transformer':
        row, = re.findall(rf'\| {name} \| ([\d,]+) \| ([\d.]+) \(', text)
        assert int(row[0].replace(',', '')) > 0
        assert 0 < float(row[1]) < 1
    assert re.findall(r'^\| (\d+) \|', text, re.MULTILINE) == ['8', '16']
    figure = cv2.imread(str(tmp_path / 'out' / 'sequences.png'))
    assert figure.std() > 0


@pytest.mark.parametrize('option, value', [
    ('--epochs', 0),
    ('--seeds', -1),
    ('--lengths', 0),
])
def test_refuses_options(option, value, capsys):
    assert run_tool(EXAMPLE, option, value) == 2
    assert f'{option} must be positive, got' in capsys.readouterr().err


def test_refuses_a_file_as_folder(tmp_path):
    path = tmp_path / 'file'
    path.touch()
    assert 'cannot be made' in run_tool(EXAMPLE, '--out-dir', path)


def test_split(datasets):
    train, test = (dataset.tensors for dataset in datasets)
    assert len(train[0]) == 1437 and len(test[0]) == 360
    assert train[0].shape[1] == 64
    assert train[0].min() == 0 and train[0].max() == 16
    # Each digit has the same share in both.
    shares = [torch.bincount(part[1]) / len(part[1]) for part in (train, test)]
    torch.testing.assert_close(*shares, rtol=0, atol=0.003)


def test_models_have_one_size(example):
    wf, transformer = (
        sum(p.numel() for p in example.SequenceClassifier(name).parameters())
        for name in ('WeightFormer', 'Transformer'))
    assert abs(wf / transformer - 1) < 0.02


@pytest.fixture(scope='module')
def few(datasets):
    return torch.utils.data.TensorDataset(*(tensor[:32]
                                            for tensor in datasets[0].tensors))


@pytest.mark.parametrize('name', ['WeightFormer', 'Transformer'])
def test_models_learn(example, few, name):
    curve = example.train(name, 1e-2, 0, 40, few, few)
    assert len(curve) == 40
    assert curve[-1] > 0.9


def test_a_seed_gives_a_run(example, few):
    curves = [
        example.train('WeightFormer', 1e-2, seed, 3, few, few)
        for seed in (0, 0, 1)
    ]
    assert curves[0] == curves[1] != curves[2]


def test_tune_leaves_the_test_set_alone(example, datasets, capsys):
    few = torch.utils.data.TensorDataset(*(tensor[:160]
                                           for tensor in datasets[0].tensors))
    example.tune(1, few)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(example.BEST_RATES) * len(example.RATES)
    assert set(example.BEST_RATES.values()) <= set(example.RATES)


def test_costs_grow_as_the_formulas_say(example):
    from sequence_report import measure_costs
    costs = measure_costs(example.SequenceClassifier,
                          ['WeightFormer', 'Transformer'], [64, 128, 192])
    second_difference = {
        name:
        costs[0].macs[name] - 2 * costs[1].macs[name] + costs[2].macs[name]
        for name in costs[0].macs
    }
    # Scores, and what they weigh.
    attention = 2 * example.CHANNELS * example.DEPTH
    assert second_difference == {
        'WeightFormer': 0,
        'Transformer': 2 * attention * 64**2
    }
    assert mean(cost.speedup for cost in costs) > 0


def test_layers_of_the_docs():
    code, = re.findall(r'```python\n(.*?)```',
                       Path('docs/sequences.md').read_text(), re.DOTALL)
    scope = {}
    exec(code, scope)
    shapes = re.findall(r'^(\w) = .*# (.*)$', code, re.MULTILINE)
    assert [name for name, _ in shapes] == ['y', 'z']
    for name, shape in shapes:
        assert str(tuple(scope[name].shape)) == f'({shape})'
