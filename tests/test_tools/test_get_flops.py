# Copyright (c) mmweightformer contributors. All rights reserved.
import json
import re

import pytest
from helpers import run_tool

TOOL = 'tools/analysis_tools/get_flops.py'
CONFIG = '''
custom_imports = dict(imports=['mmweightformer'])
default_scope = 'mmpretrain'
pretrained = 'no.pth'
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='WeightFormer',
        arch=dict(embed_dims=256, depth=1),
        out_type='avg_featmap',
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)),
    head=dict(type='LinearClsHead', in_channels=256, num_classes=40000))
'''


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'config.py'
    path.write_text(CONFIG)
    return path


def table(text):
    return [[cell.strip() for cell in line.strip('|').split('|')]
            for line in text.splitlines() if line.startswith('|')]


def test_table_and_json(config, tmp_path, capsys):
    out = tmp_path / 'new' / 'costs.json'
    assert run_tool(TOOL, config, '--shape', 512, 256, '--out', out) is None
    output = capsys.readouterr().out
    assert f'{config}, 512×256\n' in output
    # A static block, and 32×16 patches.
    backbone = 32 * 16 * 256 * (3 * 16**2 + 3**2 + 8 * 256)
    head = 256 * 40000
    header, _, *rows = table(output)
    assert header == ['part', 'parameters (M)', 'MACs (G)']
    assert rows == [['backbone', '0.73', f'{backbone / 1e9:.2f}'],
                    ['head', '10.28', '0.01'], ['total', '11.01', '0.38']]
    data = json.loads(out.read_text())
    assert data['config'] == str(config) and data['shape'] == [512, 256]
    assert [row['name'] for row in data['rows']] == [row[0] for row in rows]
    assert [row['macs']
            for row in data['rows']] == [backbone, head, backbone + head]
    assert data['rows'][1]['params'] == 256 * 40000 + 40000


@pytest.mark.parametrize('shape, printed, depth, columns', [
    ((), '224×224', 1, 3),
    ((), '224×224', 2, 4),
    (('--shape', 512), '512×512', 2, 4),
])
def test_column_of_the_published_order(config, shape, printed, depth, columns,
                                       capsys):
    """Where it differs: with a dynamic block, the second."""
    assert run_tool(TOOL, config, *shape, '--cfg-options',
                    f'model.backbone.arch.depth={depth}') is None
    output = capsys.readouterr().out
    assert f'{config}, {printed}\n' in output
    for row in table(output):
        assert len(row) == columns
    if shape:
        total = row
        assert total[0] == 'total' and float(total[3]) > float(total[2])


def test_notes(tmp_path, capsys):
    config = tmp_path / 'upernet.py'
    config.write_text('''
default_scope = 'mmseg'
head = dict(in_channels=8, channels=8, num_classes=3)
model = dict(
    type='EncoderDecoder',
    backbone=dict(
        type='mmpretrain.ResNet', depth=18, base_channels=1, stem_channels=1),
    decode_head=dict(type='FCNHead', in_index=0, **head),
    auxiliary_head=dict(type='FCNHead', in_index=0, **head))
''')
    assert run_tool(TOOL, config) is None
    output = capsys.readouterr().out
    assert f'{config}, 512×512\n' in output
    assert output.endswith('\n\nauxiliary_head: for training alone\n')
    rows = {name: cells for name, *cells in table(output)}
    assert rows['auxiliary_head'] == ['0.00', '0.00']


@pytest.mark.parametrize('size, arguments, printed', [
    ('', (), '32×32'),
    ('input_size=8', (), '8×8'),
    ('input_size=(4, 6)', (), '4×6'),
    ('input_size=8', ('--shape', 6, 4), '6×4'),
])
def test_denoiser_at_its_own_size(size, arguments, printed, tmp_path, capsys):
    config = tmp_path / 'diffusion.py'
    config.write_text(f'''
default_scope = 'mmpretrain'
model = dict(
    type='ClassConditionalDiffusion',
    denoiser=dict(
        type='WeightFormerDiT',
        arch=dict(embed_dims=32, depth=2, patch_size=2)),
    {size})
''')
    assert run_tool(TOOL, config, *arguments) is None
    output = capsys.readouterr().out
    assert f'{config}, {printed}\n' in output
    assert output.endswith('\n\ndenoiser: one step without guidance, which '
                           'doubles it\n')
    assert [row[0] for row in table(output)[2:]] == ['denoiser', 'total']


@pytest.mark.parametrize('size, message', [
    ('None', 'at None×None: TypeError: shape must be an int'),
    ('[8]', 'at 8: ValueError: shape must be a height and a width'),
    ('7', "at 7×7: ValueError: .*the denoiser's patch_size, 2, got 7"),
])
def test_denoiser_of_a_wrong_size(size, message, tmp_path):
    config = tmp_path / 'diffusion.py'
    config.write_text(f'''
model = dict(
    type='ClassConditionalDiffusion',
    denoiser=dict(type='WeightFormerDiT', arch='s/2'),
    input_size={size})
''')
    assert re.search(message, run_tool(TOOL, config))


@pytest.mark.parametrize('arguments, message', [
    (['--shape', 0], '--shape must be one or two positive numbers, got 0'),
    (['--shape', 64, -1], '--shape must be .* got 64 -1'),
    (['--shape', 1, 2, 3], '--shape must be .* got 1 2 3'),
    (['--shape', 'a'], "--shape: invalid int value: 'a'"),
    (['--shape'], '--shape: expected at least one argument'),
    (['--out', 'a.txt'], '--out must end with .json, got a.txt'),
])
def test_wrong_arguments(config, arguments, message, capsys):
    assert run_tool(TOOL, config, *arguments) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize('text, arguments, message', [
    ('default_scope = "mmdet"', [], 'has no model'),
    ('model = dict(', [], 'cannot be loaded: '),
    ('model = dict(type="A")', [], "--shape is needed: .*'mmpretrain'"),
    ('model = dict(type="A")', ['--shape', 8], 'at 8×8: KeyError: .*A is not'),
    (CONFIG, ['--shape', 8, '--cfg-options', 'model.backbone.pad=None'],
     'cannot be counted at 8×8: ValueError: an image must be at least 16×16'),
])
def test_wrong_configs(config, text, arguments, message):
    config.write_text(text)
    error = run_tool(TOOL, config, *arguments)
    assert re.search(message, error) and str(config) in error


def test_missing_config_and_unwritable_out(config):
    assert run_tool(TOOL, 'no.py').startswith('no.py cannot be loaded')
    assert 'directory' in run_tool(TOOL, config, '--out',
                                   f'{config}/folder/out.json')
