# Copyright (c) mmweightformer contributors. All rights reserved.
"""tools/train.py and tools/test.py say what is wrong with the data."""
import json
import os
import sys

import pytest
import torch
from helpers import refusal, run_command

CONFIG = 'configs/digits/mask_rcnn_wf_t_digits.py'


def run(*command):
    return run_command(sys.executable, *command)


@pytest.fixture
def options(tmp_path):
    result = run('tools/dataset_converters/digits.py', tmp_path, '--num-train',
                 8, '--num-val', 4, '--size', 64, '--layouts', 'coco')
    assert result.returncode == 0, result.stderr
    root = tmp_path / 'coco'
    annotations = root / 'annotations' / 'instances_val2017.json'
    options = ['--work-dir', tmp_path / 'work', '--cfg-options']
    for stage in 'train', 'val', 'test':
        options += [
            f'{stage}_dataloader.dataset.data_root={root}',
            f'{stage}_dataloader.num_workers=0',
            f'{stage}_dataloader.persistent_workers=False'
        ]
    return options + [
        f'val_evaluator.ann_file={annotations}',
        f'test_evaluator.ann_file={annotations}'
    ]


def refused(*command):
    result = run(*command)
    assert result.returncode == 1
    assert 'Epoch(' not in result.stdout
    return refusal(result)


def test_train_stops_at_other_classes(options):
    options.append('train_dataloader.dataset.metainfo.classes=(cat,dog)')
    error = refused('tools/train.py', CONFIG, *options)
    assert "none of its 10 categories ('0', '1'" in error
    assert "the 2 classes ('cat', 'dog')" in error
    assert 'train_dataloader.dataset.metainfo=dict(' in error
    assert 'model.roi_head.bbox_head.num_classes: it is 10, and there are 2' \
        in error


def test_test_stops_at_a_missing_image(options, tmp_path):
    torch.save(dict(state_dict={}), tmp_path / 'empty.pth')
    os.remove(tmp_path / 'coco' / 'val2017' / '000000000002.jpg')
    error = refused('tools/test.py', CONFIG, tmp_path / 'empty.pth', *options)
    assert '(test_dataloader.dataset.ann_file)' in error
    assert error.strip().endswith('000000000002.jpg')


@pytest.mark.parametrize('sound', [True, False])
def test_check_data(options, tmp_path, sound):
    """Each file is read, and nothing trained."""
    if not sound:
        (tmp_path / 'coco' / 'train2017' / '000000000001.jpg').write_text('x')
    path = tmp_path / 'coco' / 'annotations' / 'instances_train2017.json'
    content = json.loads(path.read_text())
    content['annotations'][-1]['bbox'][2] = 0
    path.write_text(json.dumps(content))
    result = run('tools/train.py', CONFIG, '--check-data', *options)
    assert result.returncode == (0 if sound else 1), result.stderr
    assert 'Traceback' not in result.stderr
    last = content['annotations'][-1]
    assert f'{last["id"]} with {last["bbox"]}' in result.stdout
    assert ('000000000001.jpg (failed to load image)'
            in result.stdout) != sound
    assert ('Nothing was found' in result.stdout) == sound
    assert 'Epoch(' not in result.stdout
