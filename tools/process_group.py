# Copyright (c) mmweightformer contributors. All rights reserved.
"""Processes without an accelerator, which mmengine's launchers require."""
import atexit
import os
import sys
from datetime import timedelta

from heartbeat import TIMEOUT, watch_processes
from mmengine.config import Config
from mmengine.device import get_device
from torch import distributed

# Rank and number of the processes, in what each launcher sets.
RANK_AND_WORLD_SIZE = dict(
    pytorch=('RANK', 'WORLD_SIZE'),
    slurm=('SLURM_PROCID', 'SLURM_NTASKS'),
    mpi=('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE'))


def init_process_group_on_cpu(cfg: Config) -> None:
    """Connect the processes where there is no accelerator.

    mmengine binds each process to a GPU, unless a process group is there
    already. With a launcher and on a CPU, one is made here, the backend
    ``nccl`` replaced by ``gloo``, and the model's wrapper told that there is
    no device to bind. The processes end together, see :mod:`heartbeat`: with
    one that is gone at once, and with one that hangs after ``timeout`` of
    ``env_cfg.dist_cfg``, in seconds, or 45 where it is not set.

    Args:
        cfg (Config): Config of a runner; its ``model_wrapper_cfg`` is set.
    """
    if cfg.get('launcher', 'none') == 'none' or get_device() != 'cpu':
        return
    rank, world_size = (
        int(os.environ[name]) for name in RANK_AND_WORLD_SIZE[cfg.launcher])
    if 'MASTER_ADDR' not in os.environ:
        sys.exit(f'--launcher {cfg.launcher} without an accelerator needs '
                 'MASTER_ADDR, the host name of the first process')
    os.environ.setdefault('MASTER_PORT', '29500')
    options = dict((cfg.get('env_cfg') or {}).get('dist_cfg') or {})
    backend = options.get('backend', 'nccl')
    backend = 'gloo' if backend == 'nccl' else backend
    timeout = options.get('timeout')  # in seconds
    distributed.init_process_group(
        backend,
        rank=rank,
        world_size=world_size,
        timeout=None if timeout is None else timedelta(seconds=timeout))
    atexit.register(distributed.destroy_process_group)
    watch_processes(rank, world_size, timeout or TIMEOUT)
    if rank == 0:
        print(f'No accelerator: {world_size} processes on CPUs, by {backend}')
    wrapper = cfg.get('model_wrapper_cfg') or dict(
        # What mmengine wraps a model in, without its device_ids.
        type='MMDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False))
    cfg.model_wrapper_cfg = dict(wrapper, device_ids=None)
