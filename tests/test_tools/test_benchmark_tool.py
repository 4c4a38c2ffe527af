# Copyright (c) mmweightformer contributors. All rights reserved.
import csv
import re
from unittest import mock

import pytest
from helpers import run_tool

from mmweightformer.analysis.benchmark import Result

TOOL = 'tools/analysis_tools/benchmark.py'
CONFIG = '''
custom_imports = dict(imports=['mmweightformer.analysis.transcription'])
model = dict(backbone=dict(type='{}', arch=dict(embed_dims=16, depth=2)))
'''


def write_config(folder, name):
    path = folder / f'{name}.py'
    path.write_text(CONFIG.format(name))
    return str(path)


@pytest.fixture(autouse=True)
def quick_peak():
    with mock.patch(
            'mmweightformer.analysis.benchmark.matmul_peak', return_value=1e9):
        yield


def test_report(tmp_path, capsys):
    models = [
        write_config(tmp_path, name)
        for name in ('WeightFormer', 'LiteralWeightFormer')
    ]
    out = tmp_path / 'new' / 'folder'
    assert run_tool(TOOL, *models, '--sizes', 32, 48, 72, '--mode', 'train',
                    '--baseline', models[1], '--threads', 1, '--budget', 0.1,
                    '--profile', 48, '--title', 'A title', '--out-dir', out,
                    '--format', 'svg') is None
    output = capsys.readouterr()
    text = (out / 'benchmark.md').read_text()
    assert output.out.startswith(text)
    assert output.err.rstrip().rpartition('\r')[2].startswith('100%')
    assert text.startswith('# A title\n\n1 of ')
    assert f'`python {TOOL} {models[0]} ' in text
    assert '## train, batch 1, float32' in text
    assert 'Where time goes: train, batch 1, float32, 48²' in text
    assert text.count(f'- {models[1]} at 72²: ValueError: the height') == 1
    plot = (out / 'benchmark.svg').read_text()
    assert '<svg' in plot
    with open(out / 'benchmark.csv') as file:
        rows = list(csv.DictReader(file))
    assert [(row['size'], row['model']) for row in rows] == [
        (size, model) for size in ('32', '48', '72') for model in models
    ]
    for row in rows:
        if row['left_out']:
            assert row['seconds'] == ''
            continue
        assert int(row['rounds']) >= 1
        assert (0 < float(row['seconds_low']) <= float(row['seconds']) <=
                float(row['seconds_high']))
        assert float(row['memory_mib']) >= 0
        if row['size'] != '72':
            assert (float(row['speed_ratio']) == 1) == (
                row['model'] == models[1])


def test_nothing_runs_or_it_is_stopped(tmp_path, capsys):
    model = write_config(tmp_path, 'WeightFormer')

    def fail(names, sizes, setting, *args):
        yield Result(model, setting, 40, left_out='too odd')
        raise KeyboardInterrupt

    with mock.patch('mmweightformer.analysis.benchmark.benchmark', fail):
        error = run_tool(TOOL, model, '--out-dir', tmp_path)
    assert error == f'Nothing was measured\n{model} at 40²: too odd'
    assert 'Stopped' in capsys.readouterr().out


@pytest.mark.parametrize('arguments, message', [
    (['wf_x'], 'wf_x cannot be built: ValueError: .* neither one of'),
    (['wf_t', 'wf_t'], 'models must not repeat'),
    (['--sizes', 64, 64], r'sizes must not repeat, got \[64, 64\]'),
    (['--sizes', 0], r'--sizes must be positive, got \[0\]'),
    (['--batch', -1], r'--batch must be positive, got \[-1\]'),
    (['--threads', 0], '--threads must be positive, got 0'),
    (['--budget', 'nan'], '--budget must be positive, got nan'),
    (['--dtype', 'int8'], "--dtype: invalid choice: 'int8'"),
    (['--device', 'meta'], '--device meta cannot be used: .* neither CPU nor'),
    (['--device', 'x'], '--device x cannot be used'),
    (['--baseline', 'wf_s'], r"--baseline must be one of \['wf_t'.* got wf_s"),
    (['--profile', 100], '--profile must be one of the sizes .* got 100'),
    (['--profile', 224, '--compile'], 'leave out --compile'),
    (['--format', 'gif'], "--format: invalid choice: 'gif'"),
])
def test_wrong_arguments(arguments, message, capsys, tmp_path):
    assert run_tool(TOOL, *arguments, '--out-dir', tmp_path) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_out_dir_is_a_file(tmp_path):
    path = tmp_path / 'file'
    path.touch()
    assert 'file' in run_tool(TOOL, 'wf_t', '--sizes', 32, '--out-dir', path)
