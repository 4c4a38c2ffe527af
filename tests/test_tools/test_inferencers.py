# Copyright (c) mmweightformer contributors. All rights reserved.
"""The inferencers, as README.md shows them, on small checkpoints."""
import os
import re
import subprocess
import sys
from pathlib import Path

import cv2
import pytest
from helpers import run_tool
from miniature import SIDE, make_digits, small_options
from mmengine.config import Config

SNIPPETS = re.findall(r'```python\n(.*?)```',
                      Path('README.md').read_text(), re.DOTALL)


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    """Where the snippets expect them, if run in the folder above."""
    return make_digits(tmp_path_factory.mktemp('root') / 'data' / 'digits')


def only(pattern, text):
    found, = re.findall(pattern, text)
    return found


@pytest.mark.parametrize('word, pictures', [
    ('DetInferencer', 'vis/{}.jpg'),
    ('MMSegInferencer', 'vis/{}.jpg'),
    ('ImageClassificationInferencer', '{}.png'),
])
def test_inferencer(word, pictures, digits, tmp_path, monkeypatch):
    snippet, = (text for text in SNIPPETS if f'{word}(' in text)
    config = Path(only(r"'(configs/\S+\.py)'", snippet))
    checkpoint = Path(only(r"'(work_dirs/\S+\.pth)'", snippet))
    images = Path(only(r"'(data/\S+)'", snippet))
    out = Path(only(r"_dir='(\S+)'", snippet))
    root = digits.parents[1]

    # What training a small variant leaves, under the names in the snippet.
    monkeypatch.syspath_prepend('tools')
    assert run_tool('tools/train.py', config, '--work-dir', tmp_path,
                    '--cfg-options', *small_options(config, digits)) is None
    for path in config, checkpoint:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / config.name).rename(root / config)
    trained = Path((tmp_path / 'last_checkpoint').read_text())
    trained.rename(root / checkpoint)
    length = Config.fromfile(config).train_cfg
    assert checkpoint.stem in (f'epoch_{length.get("max_epochs")}',
                               f'iter_{length.get("max_iters")}')

    # In a process that knows no plugin yet.
    result = subprocess.run(
        [sys.executable, '-c', snippet + 'print(inferencer.model.backbone)'],
        cwd=root,
        env={
            **os.environ, 'PYTHONPATH':
            os.pathsep.join([os.getcwd(),
                             os.environ.get('PYTHONPATH', '')])
        },
        capture_output=True,
        text=True)
    assert result.returncode == 0, result.stderr
    assert 'WeightFormer(' in result.stdout
    inputs = list((root / images).iterdir())
    assert inputs
    for path in inputs:
        picture = cv2.imread(str(root / out / pictures.format(path.stem)))
        assert min(picture.shape[:2]) >= SIDE
