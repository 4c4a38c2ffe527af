# Copyright (c) mmweightformer contributors. All rights reserved.
import re
import shutil
from unittest import mock

import cv2
import numpy as np
import pytest
import torch
from helpers import randomize, run_tool
from mmengine.config import Config
from mmengine.registry import MODELS

pytest.importorskip('diffusers')

TOOL = 'tools/visualization/sample.py'
CONFIG = '''
default_scope = 'mmpretrain'
model = dict(
    type='ClassConditionalDiffusion',
    denoiser=dict(
        type='WeightFormerDiT',
        arch=dict(embed_dims=16, depth=2, patch_size=2),
        in_channels=3,
        num_classes=3),
    input_size=(6, 8),
    test_cfg=dict(sampler='ddpm', num_steps=2, guidance_scale=1., seed=0))
test_dataloader = dict(
    dataset=dict(
        type='ImageNet',
        data_root='missing',
        metainfo=dict(classes=['one, a synonym', 'two', 'three']),
        pipeline=[]))
'''


@pytest.fixture
def folder(tmp_path):
    """A config and a checkpoint."""
    config = tmp_path / 'tiny.py'
    config.write_text(CONFIG)
    model = randomize(MODELS.build(Config.fromfile(config).model))
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'tiny.pth')
    return tmp_path


def run(folder, *options):
    return run_tool(TOOL, folder / 'tiny.py', folder / 'tiny.pth', *options)


@pytest.fixture
def drawn():
    """What is drawn: the sheets, the tick labels and the titles."""
    from matplotlib.axes import Axes
    with mock.patch.object(Axes, 'imshow', autospec=True) as imshow, \
            mock.patch.object(Axes, 'set_yticks') as ticks, \
            mock.patch.object(Axes, 'set_title') as title:
        yield lambda: (imshow.call_args.args[1], ticks.call_args.args[1], title
                       .call_args.args[0])


def cells(sheet, rows, columns):
    """The samples of a sheet with 2 white pixels between them."""
    assert sheet.shape == (rows * 8 - 2, columns * 10 - 2, 3)
    assert (sheet[6:8] == 255).all() and (sheet[:, 8:10] == 255).all()
    return [[sheet[y:y + 6, x:x + 8] for x in range(0, columns * 10, 10)]
            for y in range(0, rows * 8, 8)]


def test_writes_a_figure(folder, capsys):
    out = folder / 'new' / 'samples.png'
    assert run(folder, '--out', out, '--num-per-class', 2) is None
    assert min(cv2.imread(str(out)).shape[:2]) > 250
    title = 'tiny: seed 0, guidance 1, 2 steps of DDPM'
    assert f'{out}: {title}' in capsys.readouterr().out
    assert title.encode() in out.read_bytes()
    assert run(folder, '--out', out.with_suffix('.pdf')) is None
    assert run(folder, '--out', out.with_suffix('.svg')) is None


def test_samples_are_those_of_the_model(folder, drawn):
    options = [
        '--out', folder / 'a.png', '--num-per-class', 3, '--seed', 7,
        '--guidance', 2.5, '--steps', 4, '--sampler', 'ddim', '--batch-size', 4
    ]
    with mock.patch('mmengine.utils.ProgressBar') as bar:
        assert run(folder, *options, '--classes', 2, 0) is None
    # Two batches of four steps.
    bar.assert_called_once_with(8)
    assert bar.return_value.update.call_count == 8
    sheet, names, title = drawn()
    assert names == ['three', 'one']
    title = ' '.join(title.split())
    assert title == 'tiny: seed 7, guidance 2.5, 4 steps of DDIM'
    model = MODELS.build(Config.fromfile(folder / 'tiny.py').model).eval()
    model.load_state_dict(torch.load(folder / 'tiny.pth')['state_dict'])
    images = cells(sheet, 2, 3)
    for row, label in zip(images, [2, 0]):
        for column, image in enumerate(row):
            sequence = np.random.SeedSequence([7, label, column])
            expected, = model.sample(
                torch.tensor([label]), [int(sequence.generate_state(1)[0])],
                guidance_scale=2.5,
                num_steps=4,
                sampler='ddim')
            difference = image.transpose(2, 0,
                                         1) - expected.numpy().astype(int)
            assert np.abs(difference).max() <= 1  # of rounding
    assert np.ptp(images[0][0]) > 50
    assert (images[0][0] != images[0][1]).any()


def test_names_are_indices_without_a_dataset(folder, drawn):
    assert run(folder, '--out', folder / 'a.png', '--num-per-class', 2,
               '--cfg-options', 'test_dataloader=None') is None
    assert drawn()[1] == ['0', '1', '2']


@pytest.mark.parametrize('options, message', [
    (['--classes', 1, 3], '--classes must be from 0 to 2, .* got 3'),
    (['--classes', -1], '--classes must be from 0 to 2, .* got -1'),
    (['--guidance', -2], 'guidance_scale must be 0 or more .* got -2'),
    (['--guidance', 'nan'], 'guidance_scale must be 0 or more .* got nan'),
    (['--steps', 1001], 'num_steps must be from 1 to 1000, got 1001'),
    (['--steps', 0], 'num_steps must be from 1 to 1000, got 0'),
    (['--device', 'none'], '--device none cannot be used'),
    (['--cfg-options', 'model.autoencoder=no/where'], 'missing: no/where'),
    (['--cfg-options', 'model.input_size=0'], 'the model cannot be built'),
    (['--cfg-options', 'model.denoiser.num_classes=4'
      ], r'does not fit the model .* size mismatch'),
    (['--cfg-options', 'model.denoiser.arch.depth=3'
      ], r'does not fit the model .* Missing key'),
])
def test_refuses(folder, options, message):
    error = run(folder, '--out', folder / 'a.png', *options)
    assert re.search(message, error), error
    assert not (folder / 'a.png').exists()


def test_refuses_arguments(folder, capsys):
    for options, message in [
        (['--num-per-class', 0], '--num-per-class must be at least 1, got 0'),
        (['--batch-size', 0], '--batch-size must be at least 1, got 0'),
        (['--seed', -1], '--seed must be at least 0, got -1'),
        (['--out', 'a.jpg'], '--out must end with one of .png, .pdf, .svg'),
    ]:
        assert run(folder, *options) == 2
        assert message in capsys.readouterr().err


def test_refuses_other_files(folder):
    out = ['--out', folder / 'a.png']
    config = folder / 'tiny.py'
    assert 'no such file' in run_tool(TOOL, config, folder / 'no.pth', *out)
    shutil.copy(config, folder / 'bad.pth')
    assert 'not a checkpoint' in run_tool(TOOL, config, folder / 'bad.pth',
                                          *out)
    error = run_tool(TOOL, 'configs/wf_t_in1k.py', folder / 'tiny.pth', *out)
    assert 'ImageClassifier generates no images' in error
