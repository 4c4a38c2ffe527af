# Copyright (c) mmweightformer contributors. All rights reserved.
import cv2
import numpy as np
from helpers import run_tool

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
    out = tmp_path / 'folder.png'
    out.mkdir()
    assert run_tool(TOOL, tmp_path,
                    out) == (f'{out} cannot be written: Is a directory')
