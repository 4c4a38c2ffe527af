# Copyright (c) mmweightformer contributors. All rights reserved.
import json

from mmweightformer.analysis import read_training_log


def write_log(folder, records, end='\n'):
    path = folder / 'vis_data' / 'scalars.json'
    path.parent.mkdir(parents=True)
    path.write_text('\n'.join(map(json.dumps, records)) + end)


def test_training_log(tmp_path):
    """A run that was stopped behind iteration 4 and resumed from 2."""
    write_log(tmp_path / '20260101_000000', [
        dict(iter=2, loss=3.0, lr=1.0),
        dict(mIoU=10.0, aAcc=50.0, step=2),
        dict(iter=4, loss=2.5),
    ], '\n{"iter": 6, "lo')
    write_log(tmp_path / '20260101_000001', [
        dict(iter=4, loss=2.0),
        dict(time=1.0, step=4),
        dict(mIoU=30.0, aAcc=60.0, step=4),
    ])
    log = read_training_log(tmp_path, ['mIoU'])
    assert log.losses == [(2, 3.0), (4, 2.0)]
    assert log.metrics == [(2, dict(mIoU=10.0)), (4, dict(mIoU=30.0))]
