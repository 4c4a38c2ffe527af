# Copyright (c) mmweightformer contributors. All rights reserved.
"""Look for inputs and options with which the models go wrong."""
import argparse
import multiprocessing
import os
import pprint
import random
import sys
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import NamedTuple, Optional

import cases
import torch
from mmengine.utils import ProgressBar

MAX_FAULTS = 10


class Result(NamedTuple):
    """What came of a case."""
    number: int
    kind: str
    precision: str
    checked: Counter
    batch_error: float
    fault: Optional[str]


def draw(seed: int, number: int) -> cases.Case:
    return cases.draw(random.Random(f'{seed}-{number}'))


def run(seed: int, number: int) -> Result:
    case = draw(seed, number)
    try:
        checker = cases.check(case)
    except Exception:
        return Result(number, case['kind'], '', Counter(), 0.,
                      traceback.format_exc())
    return Result(number, case['kind'], checker.precision, checker.checked,
                  checker.batch_error, None)


def use_one_thread() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')


def print_fault(seed: int, result: Result) -> None:
    print(f'\n\nCase {result.number} of seed {seed}:')
    pprint.pprint(draw(seed, result.number))
    print(result.fault)
    print(f'Again: python tests/fuzz/fuzz.py --seed {seed} --case '
          f'{result.number}\n')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--cases', type=int, default=10000, help='how many')
    parser.add_argument('--seed', type=int, default=0, help='which ones')
    parser.add_argument('--case', type=int, help='the number of the only one')
    parser.add_argument(
        '--jobs',
        type=int,
        default=min(2,
                    os.cpu_count() or 1),
        help='processes, of one thread each')
    args = parser.parse_args()
    for name, least in dict(cases=1, case=0, jobs=1).items():
        value = getattr(args, name)
        if value is not None and value < least:
            parser.error(f'--{name} must be at least {least}, got {value}')
    return args


def main() -> None:
    args = parse_args()
    use_one_thread()
    if args.case is not None:
        result = run(args.seed, args.case)
        if result.fault:
            print_fault(args.seed, result)
            sys.exit(1)
        pprint.pprint(draw(args.seed, args.case))
        print(f'No fault; {sum(result.checked.values())} checks, '
              f'largest batch error {result.batch_error:.2g}')
        return
    bar = ProgressBar(args.cases)
    kinds, checked, worst, faults, done = Counter(), Counter(), {}, 0, 0
    # Not forked: torch has threads by now.
    context = multiprocessing.get_context('spawn')
    try:
        with ProcessPoolExecutor(args.jobs, context, use_one_thread) as pool:
            for result in pool.map(partial(run, args.seed), range(args.cases)):
                bar.update()
                done += 1
                if result.fault:
                    print_fault(args.seed, result)
                    faults += 1
                    if faults == MAX_FAULTS:
                        sys.exit(f'{faults} faults, enough')
                    continue
                kinds[result.kind] += 1
                checked += result.checked
                worst[result.precision] = max(
                    worst.get(result.precision, 0.), result.batch_error)
    except BrokenProcessPool:
        sys.exit(f'\nA process died at case {done} or soon after it: try '
                 f'--seed {args.seed} --case {done}')
    if faults:
        sys.exit(f'\n{faults} of {args.cases} cases went wrong')
    print(f'\n\n{args.cases} cases of seed {args.seed}, no fault')
    print('Cases:', ', '.join(f'{k} {v}' for k, v in kinds.most_common()))
    print('Checks:')
    for invariant, times in sorted(checked.items()):
        print(f'  {times:8d}  {invariant}')
    print('Largest relative difference between a sample in its batch and '
          'alone:')
    for precision, error in sorted(worst.items()):
        print(f'  {error:8.2g}  {precision}')


if __name__ == '__main__':
    main()
