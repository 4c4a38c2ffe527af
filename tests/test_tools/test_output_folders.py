# Copyright (c) mmweightformer contributors. All rights reserved.
"""No name in data leads a tool to write outside its output folder."""
import json
import os
import re
import shutil

import cv2
import numpy as np
import pytest
import torch
from helpers import run_tool
from miniature import make_digits, small_options

from mmweightformer.utils import load_state_dict, save_state_dict


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


def coco(digits, outside):
    """Let the annotations name images that are elsewhere."""
    folder = digits / 'coco' / 'val2017'
    annotations = digits / 'coco' / 'annotations' / 'instances_val2017.json'
    content = json.loads(annotations.read_text())
    names = ['../../elsewhere/0.jpg', str(outside / '1.jpg')]
    for i, (image, name) in enumerate(zip(content['images'], names)):
        shutil.move(folder / image['file_name'], outside / f'{i}.jpg')
        image['file_name'] = name
    annotations.write_text(json.dumps(content))
    return []


def listed(digits, text):
    """The --cfg-options by which a file names the images."""
    names = digits / 'names.txt'
    names.write_text(text)
    return [f'{stage}_dataloader.dataset.ann_file={names}'
            for stage in ('val', 'test')]  # yapf: disable


def ade(digits, outside):
    for kind, suffix in ('images', '.jpg'), ('annotations', '.png'):
        folder = digits / 'ade' / kind / 'validation'
        for i, path in enumerate(sorted(folder.iterdir())):
            shutil.move(path, outside / f'{i}{suffix}')
    return listed(digits, f'../../../elsewhere/0\n{outside / "1"}\n')


def imagenet(digits, outside):
    folder = digits / 'imagenet' / 'val'
    for i, path in enumerate(sorted(folder.rglob('*.jpg'))[:2]):
        shutil.move(path, outside / f'{i}.jpg')
    return listed(digits, f'../../elsewhere/0.jpg 0\n{outside / "1.jpg"} 1\n')


@pytest.mark.parametrize('name, lead_out, drawn', [
    ('mask_rcnn_wf_t_digits', coco, ['0.jpg', '1.jpg']),
    ('upernet_wf_t_digits', ade, ['test_0.jpg', 'test_1.jpg']),
    ('wf_t_digits', imagenet, ['0.jpg', '1.jpg']),
])
def test_drawn_predictions(tmp_path, name, lead_out, drawn):
    """Of images whose names lead elsewhere."""
    config = f'configs/digits/{name}.py'
    digits, out = make_digits(tmp_path / 'digits'), tmp_path / 'out'
    outside = digits / 'elsewhere'
    outside.mkdir()
    arguments = [
        '--work-dir', out, '--cfg-options', *small_options(config, digits),
        *lead_out(digits, outside), 'default_hooks.visualization.interval=1'
    ]
    assert run_tool('tools/train.py', config, *arguments) is None
    checkpoint = (out / 'last_checkpoint').read_text()
    before = files(tmp_path, out)
    for dumped in ['out.pkl'] + (['labels'] if lead_out is ade else []):
        assert run_tool('tools/test.py', config, checkpoint, '--show-dir',
                        out / 'drawn', '--out', out / dumped,
                        *arguments) is None
    assert files(tmp_path, out) == before
    names = [path.name for path in out.rglob('drawn/**/*.*g')]
    # A step behind the name is counted otherwise in each release.
    assert sorted(re.sub(r'_\d\.png$', '', name) for name in names) == drawn


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
