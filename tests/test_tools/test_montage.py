# Copyright (c) mmweightformer contributors. All rights reserved.
import sys

import cv2
import numpy as np
from helpers import refusal, run_command, run_tool, with_small_files

TOOL = 'tools/visualization/montage.py'


def test_montage(tmp_path):
    folder = tmp_path / 'in' / 'nested'
    folder.mkdir(parents=True)
    for i, value in enumerate([50, 100, 150]):
        cv2.imwrite(str(folder / f'{i}.png'), np.full((8, 16), value))
    out = tmp_path / 'out' / 'sheet.png'
    assert run_tool(TOOL, tmp_path / 'in', out, '--columns', 2, '--height',
                    20) is None
    sheet = cv2.imread(str(out))
    assert sheet.shape == (44, 84, 3)
    assert [
        sheet[9, 9, 0], sheet[9, 60, 0], sheet[33, 9, 0], sheet[33, 60, 0]
    ] == [50, 100, 150, 255]


def test_refuses(tmp_path, capsys):
    assert 'holds no' in run_tool(TOOL, tmp_path, tmp_path / 'a.jpg')
    assert run_tool(TOOL, tmp_path, 'a.jpg', '--rows', 0) == 2
    assert '--rows must be positive, got 0' in capsys.readouterr().err


def test_cannot_write(tmp_path):
    cv2.imwrite(str(tmp_path / 'a.png'), np.zeros((8, 8)))
    folder = tmp_path / 'folder.png'
    folder.mkdir()
    assert run_tool(TOOL, tmp_path,
                    folder) == (f'{folder} cannot be written: Is a directory')
    cv2.imwrite(str(tmp_path / 'a.png'), np.zeros((1, 70000)))
    message = run_tool(TOOL, tmp_path, tmp_path / 'b.jpg', '--height', 1)
    assert 'cannot hold a sheet of 70004×5 pixels' in message
    assert 'must end with' in run_tool(TOOL, tmp_path, tmp_path / '.jpg')


def test_full_disk(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3))
    cv2.imwrite(str(tmp_path / 'a.png'), noise)
    out = tmp_path / 'out' / 'sheet.png'
    out.parent.mkdir()
    out.write_text('former')
    error = refusal(
        run_command(
            *with_small_files(16, sys.executable, TOOL, tmp_path, out)))
    assert 'File too large' in error
    assert out.read_text() == 'former'
    assert list(out.parent.iterdir()) == [out]
