# Copyright (c) mmweightformer contributors. All rights reserved.
"""Kill trainings at random moments, resume them and compare their losses.

A training of WeightFormer on digits is killed with SIGKILL in an iteration, in
a validation or while a checkpoint is written, and resumed, again and again.
Nothing is lost if it goes on from the last checkpoint that was whole, and if
its losses are those of a training that was never killed.
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Dict, Optional

ROOT = Path(__file__).resolve().parents[2]
MOMENTS = ('iteration', 'validation', 'checkpoint')
EPOCHS, ITERATIONS = 6, 5
TOLERANCE = 1e-6

# Small, with chance in the data and in the model, and a single checkpoint.
CONFIG = f"""
_base_ = '{ROOT}/configs/digits/wf_t_digits.py'
custom_imports = dict(imports=['mmweightformer', 'wait'])
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=32, depth=5),
        drop_rate=0.1,
        drop_path_rate=0.1),
    head=dict(in_channels=32))
train_dataloader = dict(
    batch_size={{batch_size}},
    num_workers=2,
    persistent_workers=True,
    dataset=dict(data_root='{{data}}/imagenet'))
val_dataloader = dict(
    num_workers=0, dataset=dict(data_root='{{data}}/imagenet'))
train_cfg = dict(max_epochs={EPOCHS})
default_hooks = dict(logger=dict(interval=1))
randomness = dict(seed=0)
"""
# It says where the training is and waits there, to be killed.
WAIT = """
import os
import time

from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class Wait(Hook):

    def __init__(self, log):
        self.log, fsync = log, os.fsync

        def wait_and_fsync(file):
            self.wait('checkpoint')
            fsync(file)

        os.fsync = wait_and_fsync

    def wait(self, moment):
        with open(self.log, 'a') as file:
            file.write(moment + '\\n')
        time.sleep(0.2)

    def before_train_iter(self, *args, **kwargs):
        self.wait('iteration')

    def before_val_iter(self, *args, **kwargs):
        self.wait('validation')
"""


def start(folder: Path, work_dir: Path, wait: bool) -> subprocess.Popen:
    """Begin a training or go on with it."""
    log = work_dir / 'moments'
    work_dir.mkdir(exist_ok=True)
    config = (folder / 'base.py').read_text()
    if wait:
        config += f"custom_hooks = [dict(type='Wait', log='{log}')]\n"
    path = folder / f'{work_dir.name}.py'
    path.write_text(config)
    log.write_text('')
    with open(work_dir / 'output', 'w') as output:
        return subprocess.Popen([
            sys.executable, 'tools/train.py', path, '--work-dir', work_dir,
            '--resume'
        ],
                                cwd=ROOT,
                                stdout=output,
                                stderr=subprocess.STDOUT,
                                env={
                                    **os.environ, 'PYTHONPATH': str(folder),
                                    'OMP_NUM_THREADS': '1'
                                },
                                start_new_session=True)


def kill(process: subprocess.Popen, log: Path, moment: str, count: int,
         delay: float) -> bool:
    """Kill it and its workers at a moment, unless it ends before."""
    while process.poll() is None:
        if log.read_text().split().count(moment) >= count:
            time.sleep(delay)
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait() == -signal.SIGKILL
        time.sleep(0.01)
    return False


def finish(process: subprocess.Popen, work_dir: Path) -> None:
    if process.wait() != 0:
        output = (work_dir / 'output').read_text()
        raise SystemExit(f'{output[-2000:]}\nA training failed')


def losses(work_dir: Path) -> Dict[int, list]:
    """All losses that were logged of each iteration, by all runs."""
    logged: Dict[int, list] = {}
    for path in sorted(work_dir.glob('*/vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            # The last line may be cut off.
            scalars = json.loads(line) if line.endswith('}') else {}
            if 'loss' in scalars:
                logged.setdefault(scalars['step'], []).append(scalars['loss'])
    return logged


def last_whole(work_dir: Path) -> int:
    """The iterations that the last whole checkpoint has."""
    epochs = [
        int(path.stem.split('_')[1]) for path in work_dir.glob('epoch_*.pth')
        if zipfile.is_zipfile(path)
    ]
    return max(epochs, default=0) * ITERATIONS


def first_step(work_dir: Path) -> Optional[int]:
    """Where the last run began."""
    # Not of the run before, if this one was killed before an iteration.
    folder = max(work_dir.glob('[0-9]*_*/'), default=work_dir)
    path = folder / 'vis_data' / 'scalars.json'
    if not path.exists():
        return None
    for line in path.read_text().splitlines():
        if '"loss"' in line and line.endswith('}'):
            return json.loads(line)['step']
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--times', type=int, default=20, help='how many kills')
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    draw, kills, lost = random.Random(args.seed), Counter(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([
            sys.executable, 'tools/dataset_converters/digits.py',
            folder / 'data', '--size', '64', '--layouts', 'imagenet',
            '--imagenet-train', '40', '--imagenet-val', '20'
        ],
                       cwd=ROOT,
                       check=True,
                       stdout=subprocess.DEVNULL)
        (folder / 'wait.py').write_text(WAIT)
        (folder / 'base.py').write_text(
            CONFIG.format(data=folder / 'data', batch_size=40 // ITERATIONS))
        whole = folder / 'whole'
        finish(start(folder, whole, wait=False), whole)
        expected = {step: values[0] for step, values in losses(whole).items()}
        assert sorted(expected) == list(range(1, EPOCHS * ITERATIONS + 1))

        largest, trainings = 0., 0
        while sum(kills.values()) < args.times:
            trainings += 1
            work_dir = folder / f'killed_{trainings}'
            work_dir.mkdir()
            while sum(kills.values()) < args.times:
                before = last_whole(work_dir)
                process = start(folder, work_dir, wait=True)
                moment = draw.choice(MOMENTS)
                count = draw.randint(1, 7 if moment == 'iteration' else 3)
                killed = kill(process, work_dir / 'moments', moment, count,
                              draw.uniform(0, 0.25))
                first = first_step(work_dir)
                if first is not None and first != before + 1:
                    lost.append(f'training {trainings} began at iteration '
                                f'{first}, not at {before + 1}')
                if not killed:
                    break
                kills[moment] += 1
                print(
                    f'kill {sum(kills.values())} of {args.times}: in '
                    f'{moment} {count}; whole: iteration '
                    f'{last_whole(work_dir)}',
                    flush=True)
            finish(start(folder, work_dir, wait=False), work_dir)
            found = losses(work_dir)
            if found.keys() != expected.keys():
                lost.append(f'training {trainings} has other iterations')
            for step in found.keys() & expected.keys():
                difference = max(
                    abs(loss - expected[step]) for loss in found[step])
                largest = max(largest, difference)
                if not difference <= TOLERANCE:
                    lost.append(f'training {trainings}, iteration {step}: '
                                f'loss {found[step]}, not {expected[step]}')
    print(f'{trainings} trainings of {EPOCHS * ITERATIONS} iterations, killed '
          f'{sum(kills.values())} times: ' +
          ', '.join(f'{kills[moment]} in {moment}' for moment in MOMENTS))
    print(f'Largest difference of a loss: {largest:.1e} (at most {TOLERANCE})')
    if lost:
        sys.exit('Lost:\n' + '\n'.join(lost))
    print('Nothing was lost')


if __name__ == '__main__':
    main()
