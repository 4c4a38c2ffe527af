# Copyright (c) mmweightformer contributors. All rights reserved.
"""Compare WeightFormer-T with DeiT-T on the digits, from pre-training on.

Each backbone is pre-trained once as a classifier, at 64×64 and then at the
128×128 of the scenes, and fine-tuned in Mask R-CNN and in UperNet, both with
the same data, order of data, budget and seeds. For the first seed, both are
also trained without pre-training. What has been run stands, so a comparison
that was stopped goes on when it is called again.

    python tools/dataset_converters/digits.py data/digits
    python tools/analysis_tools/compare.py
"""
import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from mmengine.config import Config

from mmweightformer.analysis import read_training_log
from mmweightformer.analysis.comparison import BACKBONES, TASKS, write_report

ROOT = Path(__file__).resolve().parents[2]
TRAIN = str(ROOT / 'tools' / 'train.py')
CONVERT = str(ROOT / 'tools' / 'model_converters' / 'deit_to_vitsam.py')
DONE = 'result.json'
# A new head needs a higher learning rate than the backbone can bear.
FINE_TUNING = ['optim_wrapper.paramwise_cfg.custom_keys.backbone.lr_mult=0.2']


class Run(NamedTuple):
    """A training run; ``start`` names the one whose weights it starts from."""
    name: str
    backbone: str
    task: str
    seed: int
    start: Optional[str] = None


def plan(seeds: int) -> List[Run]:
    """All runs, each behind the one that it starts from."""
    runs, starts = [], {}
    for backbone in BACKBONES:
        first = f'{backbone}_pretraining_0'
        starts[backbone] = f'{backbone}_classification_0'
        runs += [
            Run(first, backbone, 'pretraining', 0),
            Run(starts[backbone], backbone, 'classification', 0, first)
        ]
    for seed in range(seeds):
        weights = dict(pretrained=starts)
        if seed == 0:
            weights['scratch'] = {}
        for name, start in weights.items():
            for task in ('detection', 'segmentation'):
                for backbone in BACKBONES:
                    runs.append(
                        Run(f'{backbone}_{task}_{name}_{seed}', backbone, task,
                            seed, start.get(backbone)))
    return runs


class Comparison:
    """Runs a plan, ``jobs`` runs at a time, with a thread of torch each."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        args.work_dir.mkdir(parents=True, exist_ok=True)
        # The runs inherit it, so that it is held while any of them lives.
        self.guard = open(args.work_dir / 'lock', 'w')
        try:
            fcntl.flock(self.guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f'Another comparison is at work in {args.work_dir}')
        self.runs = plan(args.seeds)
        self.lock = threading.Condition()
        self.waiting = list(self.runs)
        self.active: Dict[str, subprocess.Popen] = {}
        self.seconds: Dict[str, float] = {}  # of the runs that are done
        self.failure: Optional[str] = None
        self.digests: Dict[str, str] = {}

    def folder(self, name: str) -> Path:
        return self.args.work_dir / name

    def options(self, run: Run) -> List[str]:
        options = [f'randomness.seed={run.seed}', *TASKS[run.task].options]
        if run.start is not None:
            options.append(f'pretrained={self.weights(run)}')
        if run.start is not None and run.task != 'classification':
            options += FINE_TUNING
        return options + self.args.cfg_options

    def config(self, run: Run) -> Path:
        return ROOT / TASKS[run.task].config.format(run.backbone)

    def weights(self, run: Run) -> Path:
        vitsam = run.backbone == 'deit' and run.task == 'detection'
        name = 'vitsam.pth' if vitsam else 'weights.pth'
        return self.folder(run.start) / name

    def digest(self, run: Run) -> str:
        """Stands for all that a run's result depends on."""
        parts = [Config.fromfile(self.config(run)).pretty_text]
        parts += self.options(run)
        if run.start is not None:
            parts.append(self.digests[run.start])
        self.digests[run.name] = hashlib.sha256(
            '\0'.join(parts).encode()).hexdigest()
        return self.digests[run.name]

    def prepare(self) -> None:
        """Keep what stands, and remove what other settings have left."""
        for run in self.runs:
            digest, folder = self.digest(run), self.folder(run.name)
            stamp = folder / 'settings.sha256'
            if folder.exists() and not (stamp.is_file()
                                        and stamp.read_text() == digest):
                if not stamp.is_file() and any(folder.iterdir()):
                    sys.exit(f'{folder} was not made by this tool: move it '
                             'away, or choose another --work-dir')
                shutil.rmtree(folder)
            folder.mkdir(parents=True, exist_ok=True)
            stamp.write_text(digest)
            if (folder / DONE).exists():
                self.done(run)

    def done(self, run: Run) -> None:
        result = json.loads((self.folder(run.name) / DONE).read_text())
        self.seconds[run.name] = result['seconds']
        self.waiting.remove(run)

    def next_run(self) -> Optional[Run]:
        for run in self.waiting:
            if run.name not in self.active and run.start in (None,
                                                             *self.seconds):
                return run
        return None

    def work(self) -> None:
        while True:
            with self.lock:
                while not self.failure and self.waiting:
                    run = self.next_run()
                    if run is not None:
                        break
                    self.lock.wait()
                else:
                    return
                self.active[run.name] = None
            try:
                self.train(run)
            except Exception as error:
                with self.lock:
                    self.failure = self.failure or f'{run.name}: {error}'
            with self.lock:
                del self.active[run.name]
                self.lock.notify_all()

    def call(self, run: Run, command: List[str]) -> None:
        log = self.folder(run.name) / 'output.log'
        with open(log, 'a') as file:
            process = subprocess.Popen([sys.executable, *command],
                                       stdout=file,
                                       stderr=subprocess.STDOUT,
                                       cwd=ROOT,
                                       env=dict(
                                           os.environ, OMP_NUM_THREADS='1'))
            self.active[run.name] = process
            if process.wait() != 0 and self.failure is None:
                end = ''.join(log.open().readlines()[-8:])
                raise RuntimeError(f'it failed; {log} ends in\n{end}')

    def train(self, run: Run) -> None:
        folder, start = self.folder(run.name), time.monotonic()
        self.call(run, [
            TRAIN,
            str(self.config(run)), '--work-dir',
            str(folder), '--resume', '--cfg-options', *self.options(run)
        ])
        if self.failure is not None:
            return
        checkpoint = (folder / 'last_checkpoint').read_text()
        if run.task in ('pretraining', 'classification'):
            shutil.copy(checkpoint, folder / 'weights.pth')
            if run.backbone == 'deit':
                self.call(run, [
                    CONVERT,
                    str(folder / 'weights.pth'),
                    str(folder / 'vitsam.pth')
                ])
        log = read_training_log(folder, TASKS[run.task].metrics)
        result = dict(
            metrics=log.metrics[-1][1],
            seconds=round(time.monotonic() - start, 1))
        temporary = folder / 'result.tmp'
        temporary.write_text(json.dumps(result, indent=1))
        os.replace(temporary, folder / DONE)
        with self.lock:
            self.done(run)

    def remaining(self) -> float:
        """Seconds to go, by the runs that are done or else the plan's."""
        expected = sum(60 * TASKS[run.task].minutes[run.backbone]
                       for run in self.runs if run.name in self.seconds)
        speed = sum(self.seconds.values()) / expected if expected else 1.
        rest = sum(60 * TASKS[run.task].minutes[run.backbone]
                   for run in self.waiting)
        return speed * rest / self.args.jobs

    def report_progress(self) -> None:
        with self.lock:
            names = sorted(self.active)
            text = f'{len(self.seconds)} of {len(self.runs)} runs done'
            if names:
                text += (f', up to {self.remaining() / 60:.0f} min to go; '
                         f'running: {", ".join(names)}')
        print(time.strftime('%H:%M:%S'), text, flush=True)

    def run(self) -> None:
        self.prepare()
        workers = [
            threading.Thread(target=self.work) for _ in range(self.args.jobs)
        ]
        for worker in workers:
            worker.start()
        try:
            while any(worker.is_alive() for worker in workers):
                self.report_progress()
                for worker in workers:
                    worker.join(60 / len(workers))
        except BaseException:
            self.failure = 'stopped'
            for process in list(self.active.values()):
                if process is not None:
                    process.terminate()
            raise
        self.report_progress()
        if self.failure:
            sys.exit(f'\n{self.failure}\nCall it again to go on.')


def positive(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f'{text!r} is not a positive number')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--work-dir',
        type=Path,
        default=Path('work_dirs/compare'),
        help='where the runs go (default: %(default)s)')
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/compare/report'),
        help='where tables and plots go (default: %(default)s)')
    parser.add_argument(
        '--seeds',
        type=positive,
        default=1,
        help='how many, from 0 (default: %(default)s)')
    parser.add_argument(
        '--jobs',
        type=positive,
        default=os.cpu_count(),
        help='how many runs at a time, each on one core (default: all cores)')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        default=[],
        help='further settings of all runs, as of tools/train.py')
    args = parser.parse_args()
    args.work_dir = args.work_dir.absolute()
    return args


def interrupt(*_) -> None:
    raise KeyboardInterrupt


def main() -> None:
    args = parse_args()
    # As Ctrl-C does, end the runs as well.
    signal.signal(signal.SIGTERM, interrupt)
    comparison = Comparison(args)
    try:
        comparison.run()
    except KeyboardInterrupt:
        sys.exit('\nStopped. Call it again to go on.')
    write_report(args.work_dir, comparison.runs, args.out)
    print(f'Tables and plots: {args.out}')


if __name__ == '__main__':
    main()
