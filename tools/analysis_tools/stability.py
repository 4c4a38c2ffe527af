# Copyright (c) mmweightformer contributors. All rights reserved.
"""Train every strategy of the dynamic layers at a high learning rate."""
import argparse
import itertools
import math
import os.path as osp
import sys
import time
from pathlib import Path
from typing import List, Optional

import torch

from mmweightformer.analysis.stability import (DTYPES, NETWORKS, NORMALIZE,
                                               Record, Records, Run,
                                               load_digits, train_all)
from mmweightformer.analysis.stability_report import describe, write_report

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
from common import lock_folder, plain_errors  # noqa: E402

NAMES = {f'{linear}+{conv}': (linear, conv) for linear, conv in NETWORKS}


def number(text: str) -> float:
    """A positive number."""
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


def count(text: str) -> int:
    """A whole number from 0."""
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def clip(text: str) -> Optional[float]:
    """A positive number, or 'none'."""
    return None if text == 'none' else number(text)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Train small WeightFormers with every strategy of the '
        "dynamic layers on scikit-learn's digits at a multiple of the "
        'published learning rate, and report which diverge. Each combination '
        'of the options is a training. What the folder has a record of is not '
        'trained again, so a call that was stopped goes on when it is '
        'repeated. The report is of all records in the folder.')
    parser.add_argument(
        '--networks',
        nargs='+',
        choices=NAMES,
        default=list(NAMES),
        metavar='LINEAR+CONV',
        help='strategies of the linear and the convolutional layer. Defaults '
        'to all: %(default)s')
    parser.add_argument(
        '--normalize',
        nargs='+',
        choices=NORMALIZE,
        default=['both', 'none'],
        help='the dynamic layers whose delta is divided by its norm plus one. '
        'Defaults to: %(default)s')
    parser.add_argument(
        '--clip',
        type=clip,
        nargs='+',
        default=[5., None],
        help="largest norms of the gradient, or 'none'. Defaults to: 5 none")
    parser.add_argument(
        '--dtype',
        nargs='+',
        choices=DTYPES,
        default=list(DTYPES),
        help='bfloat16 is that of autocast. Defaults to: %(default)s')
    parser.add_argument(
        '--lr-factor',
        type=number,
        nargs='+',
        default=[4.],
        help='peak learning rates over the published one. Defaults to: 4')
    parser.add_argument(
        '--warmup',
        type=count,
        nargs='+',
        default=[10],
        help='steps of linear warm-up. Defaults to: 10')
    parser.add_argument(
        '--seeds',
        type=count,
        nargs='+',
        default=[0],
        help='seeds. Defaults to: 0')
    parser.add_argument(
        '--steps',
        type=count,
        default=200,
        help='steps of a training. Defaults to %(default)s')
    parser.add_argument(
        '--out-dir',
        type=Path,
        default=Path('work_dirs/stability'),
        help='folder of records and report. Defaults to %(default)s')
    args = parser.parse_args()
    if args.steps == 0:
        parser.error('--steps must be at least 1')
    return args


def plan(args: argparse.Namespace) -> List[Run]:
    """A run for each combination, those of one condition together."""
    runs = []
    for seed, factor, warmup, clip, dtype, normalize, name in \
            itertools.product(args.seeds, args.lr_factor, args.warmup,
                              args.clip, args.dtype, args.normalize,
                              args.networks):
        if name == 'static+static':
            normalize = 'both'  # of no layer: one run stands for all
        runs.append(
            Run(*NAMES[name],
                normalize=normalize,
                clip=clip,
                dtype=dtype,
                lr_factor=factor,
                warmup=warmup,
                seed=seed,
                steps=args.steps))
    return list(dict.fromkeys(runs))


def main() -> None:
    args = parse_args()
    with plain_errors(), lock_folder(args.out_dir):
        try:
            records = Records(args.out_dir / 'records.jsonl')
        except ValueError as error:
            sys.exit(str(error))
        runs, start, trained = plan(args), time.monotonic(), 0

        def report(left: int, record: Record) -> None:
            nonlocal trained
            trained += 1
            rest = (time.monotonic() - start) / trained * left / 60
            print(
                f'{describe(record)}; {left} left, about {rest:.0f} min',
                flush=True)

        train_all(runs, load_digits(), records, report)
        write_report(records.all, args.out_dir)
    print(f'{args.out_dir}: stability.md, stability.csv and plots')


if __name__ == '__main__':
    torch.set_num_threads(1)
    main()
