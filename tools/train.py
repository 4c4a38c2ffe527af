# Copyright (c) mmweightformer contributors. All rights reserved.
"""Train a model of any task."""
import argparse
import os
from contextlib import nullcontext
from pathlib import Path
from typing import ContextManager

from bad_data import check_each_file, stop_at_bad_data
from common import (add_runner_arguments, build_runner, load_config,
                    lock_folder, plain_errors, require_fields)
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import is_main_process
from mmengine.runner import Runner


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Train a model')
    parser.add_argument('config', help='train config file path')
    add_runner_arguments(parser)
    parser.add_argument(
        '--amp',
        action='store_true',
        help='enable automatic mixed precision training')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate by the actual over the base batch size')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        help='resume from this checkpoint, or without one from the latest '
        'checkpoint in the work directory')
    parser.add_argument(
        '--check-data',
        action='store_true',
        help='read each file of the data instead of training, say what is '
        'wrong, and exit with 1 if training would stop at it')
    args = parser.parse_args()
    if args.check_data and args.launcher != 'none':
        parser.error('--check-data is for one process, without --launcher')
    if args.amp and get_device() in ('cpu', 'mps'):
        parser.error('--amp needs a GPU or another accelerator that '
                     f"mmengine's AmpOptimWrapper knows; found {get_device()}")
    return args


def merge_args(cfg: Config, args: argparse.Namespace) -> None:
    if args.amp:
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if args.auto_scale_lr:
        if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
            raise SystemExit('--auto-scale-lr needs '
                             'auto_scale_lr.base_batch_size in the config')
        cfg.auto_scale_lr.enable = True
    if args.resume is not None:
        cfg.resume = True
        cfg.load_from = None if args.resume == 'auto' else args.resume


def lock_work_dir(runner: Runner) -> ContextManager:
    """Two trainings in one folder would overwrite each other's checkpoints."""
    if not is_main_process():
        return nullcontext()
    lock = lock_folder(Path(runner.work_dir))
    # Or a worker of a data loader holds it until it sees that we are gone.
    os.register_at_fork(after_in_child=lock.close)
    return lock


def main() -> None:
    args = parse_args()
    with plain_errors():
        cfg = load_config(args)
        require_fields(cfg, args.config, 'model', 'train_dataloader',
                       'train_cfg', 'optim_wrapper')
        merge_args(cfg, args)
        stages = ['train'] + (['val'] if cfg.get('val_cfg') else [])
        runner = build_runner(cfg, stages)
        if args.check_data:
            check_each_file(runner, stages)
        stop_at_bad_data(runner, stages)
        with lock_work_dir(runner):
            runner.train()


if __name__ == '__main__':
    main()
