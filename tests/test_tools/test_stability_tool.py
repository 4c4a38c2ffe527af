# Copyright (c) mmweightformer contributors. All rights reserved.
import csv
import re

import pytest
from helpers import run_tool

TOOL = 'tools/analysis_tools/stability.py'
SHORT = ['--steps', 1, '--dtype', 'float32', '--clip', 5]


def test_report(tmp_path, capsys):
    out = tmp_path / 'new' / 'report'
    networks = ['--networks', 'bilateral+adaptive', 'static+static']
    options = [*networks, *SHORT, '--out-dir', out]
    assert run_tool(TOOL, *options) is None
    lines = capsys.readouterr().out.splitlines()
    # Of the static network, one stands for scaled and not.
    assert len(lines) == 4
    assert lines[0].startswith('bilateral + adaptive, both scaled, clip 5, '
                               'float32, 4× lr, warm-up 10, seed 0: stuck')
    assert '2 left, about' in lines[0]
    # Nothing is trained again, but a new condition joins the report.
    assert run_tool(TOOL, *options) is None
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert run_tool(TOOL, *options, '--lr-factor', 1e30, '--warmup', 0,
                    '--steps', 3) is None
    capsys.readouterr()
    with open(out / 'stability.csv') as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert [row['lr_factor'] for row in rows] == ['4.0'] * 3 + ['1e+30'] * 3
    assert {row['outcome'] for row in rows[:3]} == {'stuck'}
    assert {row['outcome'] for row in rows[3:]} == {'diverged'}
    assert rows[0]['max_linear_delta_norm'] and rows[0]['end_loss']
    assert not rows[1]['max_linear_delta_norm']
    assert rows[3]['first_step_not_finite'] in '12'
    text = (out / 'stability.md').read_text()
    assert re.search(r'\| static \+ static \| 2\.\d\d, \*\*stuck\*\* \|  \|',
                     text)
    assert re.search(r'not finite at [12], \*\*diverged\*\*', text)
    assert {path.name for path in out.glob('*.png')} == {
        'outcomes.png', 'curves_4x_warmup10_steps1.png',
        'curves_1e+30x_warmup0_steps3.png'
    }  # yapf: disable


@pytest.mark.parametrize('arguments, message', [
    (['--networks', 'gap'], "--networks: invalid choice: 'gap'"),
    (['--clip', 0], "--clip: invalid clip value: '0'"),
    (['--clip', 'nan'], "--clip: invalid clip value: 'nan'"),
    (['--lr-factor', 'inf'], "--lr-factor: invalid number value: 'inf'"),
    (['--warmup', -1], "--warmup: invalid count value: '-1'"),
    (['--steps', 0], '--steps must be at least 1'),
])
def test_wrong_arguments(arguments, message, tmp_path, capsys):
    out = tmp_path / 'out'
    assert run_tool(TOOL, '--out-dir', out, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_damaged_records(tmp_path):
    (tmp_path / 'records.jsonl').write_text('no record\n')
    error = run_tool(TOOL, *SHORT, '--out-dir', tmp_path)
    assert 'records.jsonl, line 1 is not a record' in error
    file = tmp_path / 'file'
    file.write_text('')
    assert 'exists' in run_tool(TOOL, *SHORT, '--out-dir', file)
