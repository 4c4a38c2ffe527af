# Copyright (c) mmweightformer contributors. All rights reserved.
import hashlib
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers import refusal, run_command, with_small_files
from pycocotools import coco as coco_api

TOOL = Path(__file__).parents[2] / 'tools/dataset_converters/digits.py'
spec = importlib.util.spec_from_file_location('digits', TOOL)
digits = importlib.util.module_from_spec(spec)
spec.loader.exec_module(digits)

FEW = ['--num-train', '6', '--num-val', '4', '--imagenet-train', '12']
FEW += ['--imagenet-val', '10', '--size', '64', '96']


def hashes(root):
    """Returns the digest of every file by its relative path."""
    return {
        str(path.relative_to(root)):
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob('*') if path.is_file()
    }


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp('digits') / 'new' / 'digits'
    digits.main([str(root), *FEW])
    return root


@pytest.fixture
def no_sheet(monkeypatch):
    """The contact sheet takes most of the time of so few images."""
    monkeypatch.setattr(
        digits, 'draw_contact_sheet',
        lambda path, *_: path.write_bytes(b'Software\0digits.py'))


def test_files(made):
    assert sorted(p.name for p in made.iterdir()) == [
        'ade', 'coco', 'contact_sheet.png', 'imagenet'
    ]
    assert cv2.imread(str(made / 'contact_sheet.png')) is not None
    for split, name, count, crops in (('train', 'training', 6, 12),
                                      ('val', 'validation', 4, 10)):
        names = [f'{i + 1:012d}' for i in range(count)]
        scenes = sorted((made / f'coco/{split}2017').iterdir())
        assert [p.name for p in scenes] == [f'{n}.jpg' for n in names]
        for scene in scenes:
            assert cv2.imread(str(scene)).shape == (64, 96, 3)
            same = made / 'ade/images' / name / scene.name
            assert same.read_bytes() == scene.read_bytes()
        maps = sorted((made / 'ade/annotations' / name).iterdir())
        assert [p.name for p in maps] == [f'{n}.png' for n in names]
        folders = sorted((made / 'imagenet' / split).iterdir())
        assert [p.name for p in folders] == list('0123456789')
        images = [p for folder in folders for p in folder.iterdir()]
        assert len(images) == crops
        assert all(cv2.imread(str(p)).shape == (64, 96, 3) for p in images)
        assert min(len(list(p.iterdir())) for p in folders) == 1


@pytest.mark.parametrize('split, name', [('train', 'training'),
                                         ('val', 'validation')])
def test_annotations(made, split, name):
    coco = coco_api.COCO(
        str(made / f'coco/annotations/instances_{split}2017.json'))
    assert [c['name']
            for c in coco.loadCats(range(1, 11))] == list('0123456789')
    for image_id, info in coco.imgs.items():
        assert (info['height'], info['width']) == (64, 96)
        labels = np.ones((64, 96), np.uint8)
        anns = coco.loadAnns(coco.getAnnIds(image_id))
        assert 1 <= len(anns) <= 5
        for ann in anns:
            mask = coco.annToMask(ann).astype(bool)
            ys, xs = np.nonzero(mask)
            assert ann['area'] == mask.sum() > 30
            assert ann['bbox'] == [
                xs.min(), ys.min(),
                np.ptp(xs) + 1,
                np.ptp(ys) + 1
            ]
            assert ann['iscrowd'] == 0
            assert (labels[mask] == 1).all(), 'two digits share a pixel'
            labels[mask] = ann['category_id'] + 1
        path = made / 'ade/annotations' / name / info['file_name']
        found = cv2.imread(str(path.with_suffix('.png')), cv2.IMREAD_UNCHANGED)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, labels)


def test_mask_is_what_is_painted(monkeypatch):
    """Where the mask is, the image shows a digit, and nowhere else."""
    args = digits.parse_args(['unused', '--max-objects', '1'])
    sources = digits.load_sources(0)
    monkeypatch.setattr(digits, 'choose_colour',
                        lambda *_: np.float32([255, 0, 255]))
    for index in range(5):
        image, (obj, ) = digits.make_scene(sources, 'train', index, args)
        gap = np.abs(image.astype(int) - [255, 0, 255]).max(-1)
        inner = cv2.erode(obj['mask'].astype(np.uint8), np.ones((3, 3))) > 0
        outer = cv2.dilate(obj['mask'].astype(np.uint8), np.ones((5, 5))) > 0
        assert gap[inner].mean() < 20 < 60 < gap[~outer].mean()


def test_digits_stay_visible():
    args = digits.parse_args(['unused', '--max-objects', '20'])
    sources = digits.load_sources(0)
    most = 0
    for index in range(10):
        image, objects = digits.make_scene(sources, 'val', index, args)
        assert image.shape == (128, 128, 3)
        for obj in objects:
            assert obj['mask'].sum() >= 0.7 * obj['ink'].sum()
        most = max(most, len(objects))
    assert 5 < most < 20  # there is an end when no place is left


def test_same_arguments_give_the_same_files(made, tmp_path):
    digits.main([str(tmp_path), *FEW])
    assert hashes(tmp_path) == hashes(made)


def test_other_arguments(made, tmp_path, no_sheet):
    first = hashes(made)
    digits.main([str(tmp_path / 'seed'), *FEW, '--seed', '1'])
    other = hashes(tmp_path / 'seed')
    assert other.keys() == first.keys()
    assert not set(other.values()) & {
        digest
        for name, digest in first.items() if name.endswith('.jpg')
    }

    # A larger count keeps the first images; a layout alone stays the same.
    digits.main([
        str(tmp_path / 'more'), *FEW, '--num-train', '8', '--layouts', 'coco'
    ])
    more = hashes(tmp_path / 'more')
    assert len(list((tmp_path / 'more/coco/train2017').iterdir())) == 8
    assert not (tmp_path / 'more/ade').exists()
    images = [n for n in first if n.startswith('coco') and n.endswith('.jpg')]
    assert {n: more[n] for n in images} == {n: first[n] for n in images}


def test_splits_are_disjoint():
    from sklearn.datasets import load_digits
    data = load_digits()
    split = digits.split_digits(data.target, 0)
    samples = {
        name: {data.images[i].tobytes()
               for i in indices}
        for name, indices in split.items()
    }
    assert len(samples['train']) + len(samples['val']) == 1797
    assert not samples['train'] & samples['val']
    assert np.bincount(data.target[split['val']]).min() > 30
    assert set(split['val']) != set(digits.split_digits(data.target, 1)['val'])

    columns = digits.split_columns(640)
    used = {name: set(range(640)[part]) for name, part in columns.items()}
    assert not used['train'] & used['val']
    assert len(used['train'] | used['val']) == 640

    sources = digits.load_sources(0)
    for name, source in sources.items():
        assert {(16 * d).astype(float).tobytes()
                for d in source.digits} == samples[name]
        assert [p.shape[1] for p in source.photos] == [len(used[name])] * 2


def test_second_call(tmp_path, capsys, no_sheet):
    root = tmp_path / 'digits'
    few = ['--num-train', '2', '--num-val', '2', '--layouts', 'coco']
    digits.main([str(root), *few])
    (root / 'mine.txt').write_text('mine')
    image = root / 'coco/train2017/000000000001.jpg'
    image.write_bytes(b'touched')
    capsys.readouterr()
    digits.main([str(root), *few])
    assert 'up to date' in capsys.readouterr().out
    assert image.read_bytes() == b'touched'

    digits.main([str(root), *few, '--seed', '1'])
    assert 'up to date' not in capsys.readouterr().out
    assert image.read_bytes() != b'touched'
    assert (root / 'mine.txt').read_text() == 'mine'
    assert sorted(p.name for p in root.iterdir()) == [
        'coco', 'contact_sheet.png', 'mine.txt'
    ]


@pytest.mark.parametrize('name', ['coco', 'contact_sheet.png'])
@pytest.mark.parametrize('meta', [None, '{}', '[]', '{"tool": "other"}'])
def test_foreign_files_are_refused(tmp_path, name, meta):
    path = tmp_path / name
    if path.suffix:
        path.write_text(str(meta))
    else:
        path.mkdir()
        (path / 'mine.txt').write_text('mine')
        if meta:
            (path / 'digits.json').write_text(meta)
    before = hashes(tmp_path)
    with pytest.raises(SystemExit, match=f'{name} was not made by'):
        digits.main([str(tmp_path), *FEW])
    assert hashes(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_broken_run_leaves_nothing(tmp_path, monkeypatch, no_sheet):
    few = ['--num-train', '2', '--num-val', '2', '--layouts', 'coco', 'ade']
    digits.main([str(tmp_path), *few])
    before = hashes(tmp_path)

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setitem(digits.WRITERS, 'ade', stop)
    with pytest.raises(KeyboardInterrupt):
        digits.main([str(tmp_path), *few, '--seed', '1'])
    assert hashes(tmp_path) == before
    assert json.loads((tmp_path / 'coco/digits.json').read_text())['seed'] == 0


def test_full_disk(tmp_path):
    result = run_command(*with_small_files(16, sys.executable, TOOL, tmp_path /
                                           'out', *FEW))
    assert 'Error' not in refusal(result)
    assert not list(tmp_path.glob('out/*'))


def test_killed_run_leaves_nothing_that_looks_complete(tmp_path):
    command = [sys.executable, str(TOOL), str(tmp_path)]
    process = subprocess.Popen(command + ['--num-train', '999999'])
    try:
        end = time.time() + 60
        while not list(tmp_path.glob('.digits-*/coco/train2017/*2.jpg')):
            assert process.poll() is None and time.time() < end
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    assert [p.name[:8] for p in tmp_path.iterdir()] == ['.digits-']

    output = subprocess.run(
        command + [*FEW, '--layouts', 'imagenet'],
        check=True,
        capture_output=True,
        text=True).stdout
    assert f'{tmp_path / "imagenet"}: 12 training and 10' in output
    assert (tmp_path / 'imagenet/train/0/00000001.jpg').exists()


@pytest.mark.parametrize('argv, message', [
    (['--size', '31'], "--size: '31' is not a whole number from 32 to 1024"),
    (['--size', '64', '64', '64'], '--size'),
    (['--size', 'big'], "--size: 'big'"),
    (['--num-train', '-1'], "--num-train: '-1'"),
    (['--num-val', '0'], "--num-val: '0'"),
    (['--imagenet-val', '9'], "--imagenet-val: '9'"),
    (['--max-objects', '0'], "--max-objects: '0'"),
    (['--seed', '1.5'], "--seed: '1.5'"),
    (['--layouts', 'voc'], "--layouts: invalid choice: 'voc'"),
])
def test_bad_arguments(tmp_path, capsys, argv, message):
    with pytest.raises(SystemExit) as error:
        digits.main([str(tmp_path / 'out'), *argv])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'out').exists()


def test_out_dir_is_a_file(tmp_path, capsys):
    (tmp_path / 'file').write_text('mine')
    with pytest.raises(SystemExit) as error:
        digits.main([str(tmp_path / 'file')])
    assert error.value.code == 2
    assert 'OUT_DIR' in capsys.readouterr().err
