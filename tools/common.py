# Copyright (c) mmweightformer contributors. All rights reserved.
"""What the tools that run a config have in common."""
import argparse
import os
import os.path as osp
import sys
from contextlib import contextmanager
from typing import Sequence

from mmengine.config import Config, DictAction
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

import mmweightformer  # noqa: F401
from mmweightformer.utils import find_missing_files


def add_runner_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--work-dir', help='the folder of logs, checkpoints and metrics')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='override settings of the config by pairs xxx=yyy. A list is '
        'written as key="[a,b]" or key=a,b, also nested, as in '
        'key="[(a,b),(c,d)]", in quotation marks and without white space.')
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='job launcher')
    # torch.distributed.launch passes it in either spelling.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)


def load_config(args: argparse.Namespace) -> Config:
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    cfg = Config.fromfile(args.config)
    cfg.launcher = args.launcher
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    # In this order: command line, config, name of the config.
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        name = osp.splitext(osp.basename(args.config))[0]
        cfg.work_dir = osp.join('./work_dirs', name)
    return cfg


def build_runner(cfg: Config, stages: Sequence[str]) -> Runner:
    """Build the runner and the model, and stop if files are missing."""
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else \
        Runner.from_cfg(cfg)
    missing = find_missing_files(cfg, stages)
    if missing:
        sys.exit('\nMissing, as looked for from '
                 f'{os.getcwd()}:\n  ' + '\n  '.join(missing) +
                 '\nPut the data there, or link them; "Data and checkpoints" '
                 'in README.md has the layout. Other places are named by '
                 'the config, or by --cfg-options FIELD=PATH.')
    return runner


@contextmanager
def plain_file_errors():
    """Turn a missing file into one message instead of a traceback."""
    try:
        yield
    except FileNotFoundError as error:
        # A worker of a data loader sends its whole traceback along.
        sys.exit(f'\n{str(error).strip().splitlines()[-1]}')
