# Copyright (c) mmweightformer contributors. All rights reserved.
"""What the tools that run a config have in common."""
import argparse
import errno
import fcntl
import os
import os.path as osp
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Collection, Optional, Sequence, TextIO

from heartbeat import end_with_error
from mmengine.config import Config, DictAction
from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import RUNNERS
from mmengine.runner import CheckpointLoader, Runner
from process_group import init_process_group_on_cpu
from torch import nn

import mmweightformer  # noqa: F401
from mmweightformer.utils import find_missing_files
from mmweightformer.utils.checkpoint import (check_format, find_state_dict,
                                             load_checkpoint)


def add_cfg_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='override settings of the config by pairs xxx=yyy. A list is '
        'written as key="[a,b]" or key=a,b, also nested, as in '
        'key="[(a,b),(c,d)]", in quotation marks and without white space.')


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """For tools that load a config and build no runner of it."""
    parser.add_argument('config', help='config file path')
    add_cfg_options(parser)
    # What load_config reads of a runner's tool.
    parser.set_defaults(launcher='none', local_rank=0, work_dir=None)


def add_runner_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--work-dir', help='the folder of logs, checkpoints and metrics')
    add_cfg_options(parser)
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='job launcher')
    # torch.distributed.launch passes it in either spelling.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)


# Of figures, with text and lines.
FIGURE_SUFFIXES = ('.png', '.pdf', '.svg')


def check_suffix(parser: argparse.ArgumentParser, out: str,
                 suffixes: Collection[str]) -> None:
    """Stop unless the file to write has one of the suffixes."""
    if osp.splitext(out)[1] not in suffixes:
        parser.error(f'--out must end with one of {", ".join(suffixes)}, got '
                     f'{out}')


def check_at_least(parser: argparse.ArgumentParser, args: argparse.Namespace,
                   **least: int) -> None:
    """Stop unless each of the arguments that are given is large enough."""
    for name, low in least.items():
        value = getattr(args, name)
        if value is not None and value < low:
            parser.error(f'--{name.replace("_", "-")} must be at least {low}, '
                         f'got {value}')


# What each launcher sets for its processes.
LAUNCHER_VARIABLES = dict(
    pytorch='RANK', slurm='SLURM_PROCID', mpi='OMPI_COMM_WORLD_LOCAL_RANK')

# The default hooks that mmengine itself lets be None, to be without them.
MMENGINE_HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger',
                  'param_scheduler', 'checkpoint')


def load_config(args: argparse.Namespace) -> Config:
    variable = LAUNCHER_VARIABLES.get(args.launcher)
    if variable is not None and variable not in os.environ:
        sys.exit(f'--launcher {args.launcher} is for processes that it has '
                 f'started, and {variable} is not set: call tools/dist_*.sh, '
                 'tools/slurm_*.sh or mpirun')
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    try:
        cfg = Config.fromfile(args.config)
        hooks = [*MMENGINE_HOOKS, *(cfg.get('default_hooks') or {})]
        if args.cfg_options is not None:
            cfg.merge_from_dict(args.cfg_options)
            if 'pretrained' in args.cfg_options:
                set_pretrained(cfg)
    except Exception as error:
        # What a config raises is up to the code in it.
        sys.exit(f'{args.config} cannot be loaded: '
                 f'{type(error).__name__}: {error}')
    cfg.launcher = args.launcher
    for name, hook in list((cfg.get('default_hooks') or {}).items()):
        if hook is None and name not in hooks:
            sys.exit(f'default_hooks.{name} is None, and there is no such '
                     f'hook: {", ".join(dict.fromkeys(hooks))}')
        if hook is None and name not in MMENGINE_HOOKS:
            del cfg.default_hooks[name]
    # In this order: command line, config, name of the config.
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        name = osp.splitext(osp.basename(args.config))[0]
        cfg.work_dir = osp.join('./work_dirs', name)
    return cfg


def set_pretrained(cfg: Config) -> None:
    """Hand the config's variable on: a config is read before its options."""
    backbone = (cfg.get('model') or {}).get('backbone')
    if backbone is None:
        raise ValueError('pretrained is for a model with a backbone, and '
                         'there is none')
    backbone.init_cfg = None if cfg.pretrained is None else dict(
        type='Pretrained', checkpoint=cfg.pretrained, prefix='backbone.')


def require_fields(cfg: Config, config: str, *fields: str) -> None:
    lacking = [field for field in fields if cfg.get(field) is None]
    if lacking:
        sys.exit(f'{config} has no {", ".join(lacking)}')


def check_checkpoint(path: str) -> None:
    """Stop at a file that is damaged or none of PyTorch's."""
    if '://' in path or not osp.exists(path):
        return  # left to its reader, or named among the missing files
    if not osp.isfile(path):
        sys.exit(f'{path} is not a file: a checkpoint is')
    try:
        check_format(path)
    except ValueError as error:
        sys.exit(f'{path} is not a checkpoint of PyTorch, or damaged: {error}')


@CheckpointLoader.register_scheme(prefixes='', force=True)
def load_from_local(filename: str, map_location: Any) -> Any:
    """In place of mmengine's, which runs code that is in a file."""
    path = osp.expanduser(filename)
    try:
        checkpoint = load_checkpoint(path, map_location)
        find_state_dict(checkpoint, path, 'state_dict')
    except ValueError as error:
        sys.exit(f'\n{error}')
    return checkpoint


def unwrap(model: nn.Module) -> nn.Module:
    """The model whose names those of a checkpoint are."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def describe_other(keys: Collection[str], own: Collection[str]) -> str:
    return (f'is one of another model: it has none of the {len(own)} entries '
            f'of this one, such as {min(own)}, but {len(keys)} others, such '
            f'as {min(keys)}' if keys else 'is empty')


class CheckpointFits(Hook):
    """Stops at a checkpoint of another model, at which mmengine only warns.

    Args:
        name (str): What the user calls it.
        resume (bool): Whether it has to be of a training that goes on.
        strict (bool): Whether it has to have no parameter of another size,
            as one from which training starts may have.
    """

    priority = 'VERY_HIGH'  # before an average takes its place

    def __init__(self, name: str, resume: bool, strict: bool) -> None:
        self.name, self.resume, self.strict = name, resume, strict

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if self.resume:
            needed = {'meta', 'message_hub', 'optimizer', 'param_schedulers'}
            if needed - checkpoint.keys():
                sys.exit(f'\n{self.name} is not one to resume from: it lacks '
                         f'{", ".join(sorted(needed - checkpoint.keys()))}. '
                         'To start from its weights: --cfg-options '
                         f'load_from={self.name}')
        state = checkpoint.get('state_dict', checkpoint)
        state = {re.sub('^module.', '', k): v for k, v in state.items()}
        model = unwrap(runner.model)
        try:
            lacking = model.load_state_dict(state, strict=False).missing_keys
        except RuntimeError as error:
            if not self.strict:
                return  # mmengine names all of them
            # The first line is a heading.
            first, *more = str(error).splitlines()[1:]
            others = f' ({len(more)} more like it)' if more else ''
            sys.exit(f'\n{self.name} is one of another model: '
                     f'{first.strip()}{others}')
        own = model.state_dict().keys()
        if len(lacking) == len(own):
            sys.exit(f'\n{self.name} {describe_other(state.keys(), own)}')
        if lacking:
            runner.logger.warning(
                f'{self.name} lacks {len(lacking)} of the {len(own)} entries '
                f'of the model, such as {lacking[0]}')


def check_pretrained(model: nn.Module) -> None:
    """Stop at pre-trained weights of which none is one of the model's."""
    for module in model.modules():
        init = getattr(module, 'init_cfg', None) or {}
        for cfg in init if isinstance(init, (list, tuple)) else [init]:
            if cfg.get('type') != 'Pretrained' or '://' in cfg['checkpoint']:
                continue
            state = load_from_local(cfg['checkpoint'], 'cpu')
            state, prefix = state.get('state_dict', state), cfg.get('prefix')
            prefix = prefix.rstrip('.') + '.' if prefix else ''
            own = {prefix + key for key in module.state_dict()}
            if not own & state.keys():
                sys.exit(f'\n{cfg["checkpoint"]} '
                         f'{describe_other(state.keys(), own)}')


def build_runner(cfg: Config, stages: Sequence[str]) -> Runner:
    """Build the runner and the model, and stop if files are missing."""
    if cfg.get('load_from'):
        check_checkpoint(cfg.load_from)
    init_process_group_on_cpu(cfg)
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else \
        Runner.from_cfg(cfg)
    missing = find_missing_files(cfg, stages)
    if missing:
        pretrained = any('init_cfg.checkpoint)' in line for line in missing)
        sys.exit(
            '\nMissing, as looked for from '
            f'{os.getcwd()}:\n  ' + '\n  '.join(missing) +
            '\nPut the data there, or link them; "Data and checkpoints" '
            'in README.md has the layout. Other places are named by '
            'the config, or by --cfg-options FIELD=PATH.' +
            ('\nOther pre-trained weights: --cfg-options pretrained=FILE. '
             'From scratch: pretrained=None.' if pretrained else ''))
    if 'train' in stages:
        check_pretrained(unwrap(runner.model))
    resume = bool(cfg.get('resume'))
    name = cfg.get('load_from') or f'The last checkpoint in {cfg.work_dir}'
    runner.register_hook(
        CheckpointFits(name, resume, resume or 'train' not in stages))
    return runner


def lock_folder(folder: Path) -> TextIO:
    """Make and hold a folder until the returned file and its copies close."""
    folder.mkdir(parents=True, exist_ok=True)
    file = open(folder / 'lock', 'w')
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f'Another run of this tool is at work in {folder}')
    except OSError:
        pass  # a file system without locks
    return file


# What makes torch.load, by anyone, load no code.
FORCE = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD'

FILE_ERRORS = (FileNotFoundError, FileExistsError, NotADirectoryError,
               IsADirectoryError, PermissionError)
# Of a disk: full, by quota or by a limit, broken, or mounted to be read.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


def describe_error(error: BaseException) -> Optional[str]:
    """The message of an error that is none of the code's."""
    if isinstance(error, UnpicklingError):
        return f'A checkpoint was not loaded: {error}'
    if isinstance(error, FILE_ERRORS):
        # A worker of a data loader sends its whole traceback along.
        return str(error).strip().splitlines()[-1]
    of_disk = isinstance(error, OSError) and error.errno in DISK_ERRORS
    if of_disk or isinstance(error, FloatingPointError):
        return str(error)
    return None


@contextmanager
def plain_errors():
    """Turn what files, disks or numbers do into one message, no traceback.

    Within, no code in a checkpoint is run, whoever loads it.
    """
    before = os.environ.get(FORCE)
    os.environ[FORCE] = '1'
    try:
        yield
    except SystemExit as error:
        if error.code:
            end_with_error()
        raise
    except Exception as error:
        message = describe_error(error)
        if message is None:
            raise
        end_with_error()
        sys.exit(f'\n{message}')
    finally:
        if before is None:
            del os.environ[FORCE]
        else:
            os.environ[FORCE] = before
