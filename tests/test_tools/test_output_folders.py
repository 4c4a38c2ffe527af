# Copyright (c) mmweightformer contributors. All rights reserved.
"""No name in data leads a tool to write outside its output folder."""
import json
import os
import shutil

import cv2
import numpy as np
import pytest
import torch
from helpers import run_tool
from miniature import make_digits, small_options

from mmweightformer.utils import load_state_dict, save_state_dict

CONFIG = 'configs/digits/mask_rcnn_wf_t_digits.py'


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    monkeypatch.syspath_prepend('tools')


def files(folder, but):
    """All files and links in a folder, with sizes and times of change."""
    return {
        path: path.lstat()[6:9:2]
        for path in folder.rglob('*')
        if but not in (path, *path.parents) and not path.is_dir()
    }


def test_drawn_predictions(tmp_path):
    """Of images whose names in the annotations lead elsewhere."""
    digits, out = make_digits(tmp_path / 'digits'), tmp_path / 'out'
    folder = digits / 'coco' / 'val2017'
    annotations = digits / 'coco' / 'annotations' / 'instances_val2017.json'
    content = json.loads(annotations.read_text())
    outside = digits / 'elsewhere'
    outside.mkdir()
    names = ['../../elsewhere/0.jpg', str(outside / '1.jpg')]
    for i, (image, name) in enumerate(zip(content['images'], names)):
        shutil.move(folder / image['file_name'], outside / f'{i}.jpg')
        image['file_name'] = name
    annotations.write_text(json.dumps(content))
    arguments = [
        '--work-dir', out, '--cfg-options', *small_options(CONFIG, digits)
    ]
    assert run_tool('tools/train.py', CONFIG, *arguments) is None
    before = files(tmp_path, out)
    assert run_tool('tools/test.py', CONFIG, out / 'epoch_1.pth', '--show-dir',
                    'drawn', '--out', out / 'out.pkl', *arguments) is None
    assert files(tmp_path, out) == before
    drawn = [path.name for path in out.glob('*/drawn/*')]
    assert sorted(drawn) == ['0.jpg', '1.jpg']


def test_latents(tmp_path):
    """Images that are links, in folders with odd names."""
    diffusers = pytest.importorskip('diffusers')
    diffusers.AutoencoderKL(
        block_out_channels=(4, ),
        norm_num_groups=2).save_pretrained(tmp_path / 'autoencoder')
    src, out = tmp_path / 'src', tmp_path / 'out'
    outside = tmp_path / 'elsewhere' / 'image.png'
    for folder in src / '..a', src / '~', outside.parent:
        folder.mkdir(parents=True)
        cv2.imwrite(str(folder / 'image.png'), np.zeros((8, 8, 3), np.uint8))
    (src / 'link.png').symlink_to(outside)
    (src / 'folder').symlink_to(outside.parent)
    before = files(tmp_path, out)
    assert run_tool('tools/dataset_converters/imagenet_latents.py',
                    tmp_path / 'autoencoder', src, out, '--size', 8,
                    '--num-workers', 0) is None
    assert files(tmp_path, out) == before
    assert {'..a/image.png.npy', '~/image.png.npy', 'link.png.npy'
            } <= {str(path.relative_to(out))
                  for path in out.rglob('*.npy')}


def test_converted_checkpoints(tmp_path):
    """What is being written has a name that a link may have taken."""
    precious, out = tmp_path / 'precious', tmp_path / 'out' / 'a.pth'
    precious.write_text('precious')
    out.parent.mkdir()
    for name in 'a.pth', 'a.pth.part':
        os.symlink(precious, out.parent / name)
    save_state_dict({'x': torch.ones(1)}, str(out))
    assert precious.read_text() == 'precious'
    assert list(out.parent.iterdir()) == [out] and not out.is_symlink()
    assert load_state_dict(str(out))['x'] == 1
