# Copyright (c) mmweightformer contributors. All rights reserved.
"""long_run.py for 60 iterations, on which it also has something to find."""
import itertools
import math

import long_run
import pytest

ITERATIONS = 60


@pytest.mark.parametrize('dtype, leak', [('bfloat16', False),
                                         ('float32', True)])
def test_only_a_leak_is_found(dtype, leak, tmp_path, monkeypatch):
    calls = itertools.count()

    def read_memory():
        # So few iterations say nothing of the real one.
        return 100. * (1 + 0.01 * leak * next(calls)), 300., 80.

    monkeypatch.setattr(long_run, 'read_memory', read_memory)
    losses, memory = long_run.train('classifier', dtype, ITERATIONS, tmp_path)
    assert len(losses) == len(memory) == ITERATIONS
    assert all(map(math.isfinite, losses))
    wrong = ' '.join(long_run.judge(losses, memory))
    assert ('resident memory grew' in wrong) == leak
    assert leak or not wrong


def test_judges():
    flat = [(100., 300., 80.)] * 20
    assert long_run.judge([1.] * 20, flat) == []
    assert long_run.judge([1.] * 9 + [math.nan] * 11,
                          flat) == ['the loss of iteration 10 is nan']
    # Growth in the first epoch is allowed.
    grown = [(50., 150., 40.)] * 2 + [(100., 300. + i, 80.) for i in range(18)]
    wrong, = long_run.judge([1.] * 20, grown)
    assert 'resident memory with workers grew by 5.3%' in wrong
