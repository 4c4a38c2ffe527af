# Copyright (c) mmweightformer contributors. All rights reserved.
import json
import re
import shutil

import cv2
import numpy as np
import pytest
import torch
from helpers import randomize, run_tool
from mmengine.config import Config

from mmweightformer.analysis.receptive_field import build_for_field

TOOL = 'tools/visualization/vis_erf.py'
WEIGHTFORMER = '''
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='WeightFormer',
        arch=dict(embed_dims=16, depth=2),
        patch_size=4,
        out_type='avg_featmap'),
    head=dict(type='LinearClsHead', in_channels=16, num_classes=2))
data_preprocessor = dict(mean=[100.] * 3, std=[50.] * 3, to_rgb=True)
test_dataloader = dict(
    batch_size=1,
    dataset=dict(
        type='CustomDataset',
        data_prefix='DATA',
        pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')]))
'''
VIT = '''
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='VisionTransformer',
        arch=dict(
            embed_dims=16, num_layers=1, num_heads=2, feedforward_channels=16),
        img_size=32,
        patch_size=8),
    head=dict(type='VisionTransformerClsHead', in_channels=16, num_classes=2))
data_preprocessor = dict(mean=[100.] * 3, std=[50.] * 3, to_rgb=True)
'''


@pytest.fixture
def folder(tmp_path):
    """Two configs, a checkpoint of the first, its work directory, data."""
    data = tmp_path / 'data' / 'a'
    data.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for i in range(3):
        picture = generator.integers(0, 255, (20, 30, 3), np.uint8)
        cv2.imwrite(str(data / f'{i}.png'), picture)
    wf = tmp_path / 'wf.py'
    wf.write_text(WEIGHTFORMER.replace('DATA', str(data.parent)))
    (tmp_path / 'vit.py').write_text(VIT)
    model = randomize(build_for_field(Config.fromfile(wf)))
    state = dict(state_dict=model.state_dict())
    torch.save(state, tmp_path / 'wf.pth')
    work_dir = tmp_path / 'run'
    work_dir.mkdir()
    shutil.copy(wf, work_dir)
    torch.save(state, work_dir / 'epoch_1.pth')
    # Of a directory that was moved since.
    (work_dir / 'last_checkpoint').write_text('/nowhere/epoch_1.pth')
    return tmp_path


def test_figure_json_and_table(folder, capsys):
    out = folder / 'new' / 'erf.png'
    wf, vit = folder / 'wf.py', folder / 'vit.py'
    assert run_tool(TOOL, f"{wf}:{folder / 'wf.pth'}", vit, folder / 'run',
                    '--labels', 'WF', 'ViT', 'moved', '--size', 48,
                    '--num-images', 2, '--out', out) is None
    assert cv2.imread(str(out)).shape[1] > 800
    data = json.loads(out.with_suffix('.json').read_text())
    assert data['images'] == f'test images of {wf}'
    rows = {(row['label'], row['weights']): row for row in data['models']}
    assert list(rows) == [('WF', 'random'), ('WF', 'trained'),
                          ('ViT', 'random'), ('moved', 'random'),
                          ('moved', 'trained')]
    for row in rows.values():
        assert row['num_images'] == 2 and row['size'] == [48, 48]
        # Two convolutions at patches of 4, for all.
        assert row['cone']['side_pixels'] == 16 + row['stride']
        assert 0 < row['share_outside_cone'] < 1
        assert row['share_within_tokens'][-1] == pytest.approx(1)
    figures = [[
        rows[label, weights]['share_within_tokens'] for label in labels
    ] for weights, labels in [('random',
                               ('WF', 'moved')), ('trained', ('WF', 'moved'))]]
    for one, two in figures:
        assert one == two
    assert figures[0] != figures[1]
    assert rows['WF', 'random']['checkpoint'] is None
    assert rows['WF', 'trained']['checkpoint'] == str(folder / 'wf.pth')
    assert rows['moved',
                'trained']['checkpoint'] == str(folder / 'run' / 'epoch_1.pth')
    output = capsys.readouterr().out
    share = rows['WF', 'trained']['share_outside_cone']
    assert re.search(rf'\| WF \| trained \|.*\| {100 * share:.2f} % \|\n',
                     output)


def test_noise_and_a_cone_that_covers_the_image(folder, capsys):
    """Without data, as a drawing of vectors."""
    shutil.rmtree(folder / 'data')
    out = folder / 'erf.svg'
    assert run_tool(TOOL, folder / 'wf.py', folder / 'vit.py', '--noise',
                    '--size', 16, '--num-images', 3, '--out', out) is None
    assert out.read_text().startswith('<?xml')
    data = json.loads(out.with_suffix('.json').read_text())
    assert data['images'] == 'white noise'
    assert [row['share_outside_cone'] for row in data['models']] == [None] * 2
    output = capsys.readouterr().out
    assert ('\nThe local cone covers the image, so that no share is outside '
            'of it, of wf, vit: take --size 32 or larger.\n') in output
    assert '| wf | random |' in output and '|  |\n' in output
    # The size that it says.
    assert run_tool(TOOL, folder / 'wf.py', folder / 'vit.py', '--noise',
                    '--size', 32, '--num-images', 1, '--out', out) is None
    data = json.loads(out.with_suffix('.json').read_text())
    assert all(row['share_outside_cone'] > 0 for row in data['models'])
    assert 'The local cone' not in capsys.readouterr().out


def test_cone_of_a_backbone_without(folder, capsys):
    arguments = (folder / 'vit.py', '--noise', '--size', 32, '--num-images', 1,
                 '--out', folder / 'erf.png')
    assert run_tool(TOOL, *arguments) is None
    assert 'No local cone is known of vit: ' in capsys.readouterr().out
    assert run_tool(TOOL, *arguments, '--cone', 1) is None
    row, = json.loads((folder / 'erf.json').read_text())['models']
    assert row['cone'] == dict(side_tokens=3, side_pixels=24)
    assert row['share_outside_cone'] == row['share_outside_3x3_tokens'] > 0


@pytest.mark.parametrize('arguments, message', [
    ([], 'MODEL'),
    (['a.py', '--size', 0], '--size must be positive, got 0'),
    (['a.py', '--num-images', -1], '--num-images must be positive, got -1'),
    (['a.py', '--cone', -1], '--cone must be at least 0, got -1'),
    (['a.py', '--out', 'a.txt'], '--out must end with one of .*, got a.txt'),
    (['a.py', '--labels', 'a', 'b'], 'one for each of 1 models, got 2'),
    (['a.py', 'b/a.py'], r"names of models repeat, got \['a', 'a'\]"),
])
def test_wrong_arguments(arguments, message, capsys):
    assert run_tool(TOOL, *arguments) == 2
    assert re.search(message, capsys.readouterr().err)


def test_wrong_models(folder):
    """Before any image is measured."""
    wf, vit = folder / 'wf.py', folder / 'vit.py'
    (folder / 'empty').mkdir()
    (folder / 'no_model.py').write_text('default_scope = "mmpretrain"')
    (folder / 'damaged.pth').write_bytes(b'PK')
    for arguments, message in [
        (['no.py'], 'no.py cannot be loaded'),
        ([folder / 'empty'], 'empty must hold the config of one training'),
        ([folder / 'no_model.py', '--noise'], 'has no model.backbone'),
        ([f'{wf}:no.pth'], 'no.pth'),
        ([f"{wf}:{folder / 'damaged.pth'}"], 'damaged.pth is not a check'),
        ([vit], 'ValueError: the config has no test_dataloader'),
        ([wf, f"{vit}:{folder / 'wf.pth'}", '--size',
          32], 'does not fit the backbone: size mismatch'),
        ([wf, '--size', 30], 'must be a multiple of the stride, got 30×30'),
        ([wf, vit, '--size', 36], 'vit.py cannot be used at 36×36: ValueErr'),
        ([wf, '--cfg-options',
          'model.backbone.arch.depth=a'], 'cannot be used at'),
        ([wf, '--cfg-options', 'test_dataloader.dataset.data_prefix=none'],
         'images: FileNotFoundError: the test data are missing: none'),
    ]:
        out = folder / 'erf.png'
        error = run_tool(TOOL, *arguments, '--out', out)
        assert message in error, (arguments, error)
        assert not out.exists()
    assert 'File exists' in run_tool(TOOL, wf, '--noise', '--out',
                                     wf / 'a.png')
    (folder / 'run' / 'last_checkpoint').unlink()
    assert 'no last_checkpoint' in run_tool(TOOL, folder / 'run')
