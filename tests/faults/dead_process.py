# Copyright (c) mmweightformer contributors. All rights reserved.
"""One of two processes that train dies: when does the other one end?

Two processes of tools/train.py are started by hand, on CPUs, as a cluster's
launcher would. They train a small classifier, validate and save checkpoints
every few iterations. At a random moment one of them, in turn the first and
the second, is killed. The other one must end within a minute, with status 1
and a message that names the process that is gone.

    python tests/faults/dead_process.py --times 10
"""
import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / 'tests'))
from helpers import free_port, run_tool  # noqa: E402

LIMIT = 60
CONFIG = """
_base_ = {base!r}
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=32, depth=5)),
    head=dict(in_channels=32))
train_cfg = dict(max_epochs=100000)
train_dataloader = dict(batch_size=4, dataset=dict(data_root={root!r}))
val_dataloader = dict(dataset=dict(data_root={root!r}))
default_hooks = dict(logger=dict(interval=1))
"""


def start(config, work_dir, rank, port):
    """One of the two processes, its output in a file."""
    env = dict(
        os.environ,
        RANK=str(rank),
        WORLD_SIZE='2',
        LOCAL_RANK=str(rank),
        MASTER_ADDR='127.0.0.1',
        MASTER_PORT=str(port),
        OMP_NUM_THREADS='1',
        CUDA_VISIBLE_DEVICES='-1')
    with open(work_dir / f'{rank}.txt', 'w') as output:
        return subprocess.Popen([
            sys.executable, ROOT / 'tools/train.py', config, '--launcher',
            'pytorch', '--work-dir', work_dir
        ],
                                env=env,
                                stdout=output,
                                stderr=output)


def kill_one(config, work_dir, rank, kind, within):
    """Kill one while they train.

    Returns:
        The seconds until the other one has ended, and what is wrong, if
        anything is.
    """
    work_dir.mkdir()
    port = free_port()
    processes = [start(config, work_dir, i, port) for i in range(2)]
    output = [work_dir / f'{i}.txt' for i in range(2)]
    try:
        began = time.monotonic()
        while 'Epoch(train)' not in output[0].read_text():
            if any(p.poll() is not None for p in processes) or \
                    time.monotonic() - began > 300:
                sys.exit('They do not train:\n' +
                         output[0].read_text()[-2000:] +
                         output[1].read_text()[-2000:])
            time.sleep(0.1)
        time.sleep(random.uniform(0, within))
        processes[rank].send_signal(kind)
        killed = time.monotonic()
        other = 1 - rank
        try:
            processes[other].wait(2 * LIMIT)
        except subprocess.TimeoutExpired:
            return 2 * LIMIT, 'it did not end'
        seconds = time.monotonic() - killed
        wrong = []
        if seconds > LIMIT:
            wrong.append(f'more than {LIMIT} seconds')
        if processes[other].returncode != 1:
            wrong.append(f'status {processes[other].returncode}')
        text = output[other].read_text()
        if f'Process {rank} of 2' not in text:
            wrong.append('no message')
        if 'Traceback' in text:
            wrong.append('a traceback')
        return seconds, ', '.join(wrong)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def parse_args():
    parser = argparse.ArgumentParser(
        description='One of two processes that train dies: when does the '
        'other one end?')
    parser.add_argument('--times', type=int, default=10)
    parser.add_argument(
        '--signal',
        choices=['KILL', 'STOP'],
        default='KILL',
        help='STOP lets it hang')
    parser.add_argument(
        '--within',
        type=float,
        default=10,
        help='seconds of training in which it is killed')
    parser.add_argument('--seed', type=int, default=0)
    return parser.parse_args()


def main():
    args = parse_args()
    random.seed(args.seed)
    times, failures = [], 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        error = run_tool(ROOT / 'tools/dataset_converters/digits.py',
                         folder / 'digits', '--size', 64, '--layouts',
                         'imagenet', '--imagenet-train', 40, '--imagenet-val',
                         40)
        if error is not None:
            sys.exit(error)
        config = folder / 'config.py'
        config.write_text(
            CONFIG.format(
                base=str(ROOT / 'configs/digits/wf_t_digits.py'),
                root=str(folder / 'digits/imagenet')))
        for i in range(args.times):
            rank = i % 2
            seconds, wrong = kill_one(config, folder / str(i), rank,
                                      signal.Signals['SIG' + args.signal],
                                      args.within)
            times.append(seconds)
            failures += bool(wrong)
            print(
                f'{i + 1}: process {rank} killed, the other one ended after '
                f'{seconds:.1f} s' + (f': {wrong}' if wrong else ''),
                flush=True)
    passed = len(times) - failures
    print(f'{passed} of {len(times)} ended as they should, after '
          f'{min(times):.1f} to {max(times):.1f} s')
    sys.exit(1 if failures else 0)


if __name__ == '__main__':
    main()
