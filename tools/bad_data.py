# Copyright (c) mmweightformer contributors. All rights reserved.
"""Says what is wrong with the data, before work depends on them."""
import logging
import sys
from typing import List, Sequence

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmweightformer.utils import check_data

MAX_LINES = 8


def _few(lines: List[str]) -> str:
    more = len(lines) - MAX_LINES
    tail = [f'… and {more} more; train.py --check-data names all'
            ] if more > 0 else []
    return '\n  '.join(lines[:MAX_LINES] + tail)


def stop_at_bad_data(runner: Runner, stages: Sequence[str]) -> None:
    """Stop at faults that end a run, and warn of others; takes seconds."""
    found = [None, None]
    if is_main_process():
        faults = check_data(runner.cfg, stages, runner.model)
        found = [faults.lines(stops) for stops in (True, False)]
    broadcast_object_list(found)
    stops, others = found
    if others:
        print_log(
            'What the data have, and the run goes on with:\n  ' + _few(others),
            'current', logging.WARNING)
    if stops:
        sys.exit('\nWhat the data have, and no run can go on with:\n  ' +
                 _few(stops) if is_main_process() else 1)


def check_each_file(runner: Runner, stages: Sequence[str]) -> None:
    """Read all of the data, print what is wrong, and exit."""
    faults = check_data(runner.cfg, stages, runner.model, read_files=True)
    stops, others = faults.lines(True), faults.lines(False)
    for title, lines in (('goes on with', others), ('stops at', stops)):
        if lines:
            print(f'\nWhat training {title}:\n  ' + '\n  '.join(lines))
    if not stops:
        print('\nNothing was found at which training stops.')
    sys.exit(1 if stops else 0)
