# Copyright (c) mmweightformer contributors. All rights reserved.
"""Many training runs, of which some start from others, one after another."""
import argparse
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
from typing import Dict, List, NamedTuple, Optional, Sequence

from common import lock_folder
from mmengine.config import Config

from mmweightformer.analysis import read_training_log

ROOT = Path(__file__).resolve().parents[1]
TRAIN = str(ROOT / 'tools' / 'train.py')
DONE = 'result.json'


class Job(NamedTuple):
    """What a run is.

    Attributes:
        config (Path): Its config.
        options (list[str]): Settings other than the config's.
        metrics (list[str]): Metrics of mmengine's log that it is judged by.
        minutes (float): About how long it takes on one core.
    """
    config: Path
    options: List[str]
    metrics: List[str]
    minutes: float


class RunPlan:
    """Trains a plan, ``jobs`` runs at a time, with a thread of torch each.

    What has been run stands, so a plan that was stopped goes on when it is
    run again. A run has a ``name``, that of its folder, and ``start``, the
    name of the run from whose weights it starts, or None.

    Args:
        runs (Sequence): The runs, each behind the one that it starts from.
        work_dir (Path): Holds a folder for each run.
        jobs (int): How many runs are trained at a time.
    """

    def __init__(self, runs: Sequence, work_dir: Path, jobs: int) -> None:
        self.work_dir = work_dir
        self.jobs = jobs
        # The runs inherit it, so that it is held while any of them lives.
        self.guard = lock_folder(work_dir)
        self.runs = list(runs)
        self.lock = threading.Condition()
        self.waiting = list(self.runs)
        self.active: Dict[str, subprocess.Popen] = {}
        self.seconds: Dict[str, float] = {}  # of the runs that are done
        self.failure: Optional[str] = None
        self.digests: Dict[str, str] = {}

    def job(self, run) -> Job:
        """What to train."""
        raise NotImplementedError

    def needs(self, run) -> List[str]:
        """Names of the runs that a run waits for."""
        return [] if run.start is None else [run.start]

    def command(self, run) -> List[str]:
        """What is run, in Python."""
        job = self.job(run)
        return [
            TRAIN,
            str(job.config), '--work-dir',
            str(self.folder(run.name)), '--resume', '--cfg-options',
            *job.options
        ]

    def after_training(self, run, checkpoint: str) -> None:
        """What to do with the last checkpoint of a run."""

    def metrics(self, run) -> Dict[str, float]:
        """What came out of a run that was run to its end."""
        folder = self.folder(run.name)
        self.after_training(run, (folder / 'last_checkpoint').read_text())
        log = read_training_log(folder, self.job(run).metrics)
        return log.metrics[-1][1]

    def folder(self, name: str) -> Path:
        return self.work_dir / name

    def digest(self, run) -> str:
        """Stands for all that a run's result depends on."""
        job = self.job(run)
        parts = [Config.fromfile(job.config).pretty_text, *job.options]
        parts += [self.digests[name] for name in self.needs(run)]
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
            self.done(run)

    def done(self, run) -> bool:
        """Count a run as done if there is a result of it."""
        try:
            text = (self.folder(run.name) / DONE).read_text()
            self.seconds[run.name] = float(json.loads(text)['seconds'])
        except (OSError, ValueError, TypeError, KeyError):
            return False  # none, or a damaged one
        self.waiting.remove(run)
        return True

    def next_run(self):
        for run in self.waiting:
            ready = all(name in self.seconds for name in self.needs(run))
            if ready and run.name not in self.active:
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

    def call(self, run, command: List[str]) -> None:
        log = self.folder(run.name) / 'output.log'
        with open(log, 'a') as file:
            process = subprocess.Popen([sys.executable, *command],
                                       stdout=file,
                                       stderr=subprocess.STDOUT,
                                       cwd=ROOT,
                                       pass_fds=[self.guard.fileno()],
                                       env=dict(
                                           os.environ, OMP_NUM_THREADS='1'))
            self.active[run.name] = process
            if process.wait() != 0 and self.failure is None:
                end = ''.join(log.open().readlines()[-8:])
                raise RuntimeError(f'it failed; {log} ends in\n{end}')

    def train(self, run) -> None:
        folder, start = self.folder(run.name), time.monotonic()
        self.call(run, self.command(run))
        if self.failure is not None:
            return
        result = dict(
            metrics=self.metrics(run),
            seconds=round(time.monotonic() - start, 1))
        temporary = folder / 'result.tmp'
        temporary.write_text(json.dumps(result, indent=1))
        os.replace(temporary, folder / DONE)
        with self.lock:
            self.done(run)

    def remaining(self) -> float:
        """Seconds to go, by the runs that are done or else the plan's."""

        def expected(runs):
            return sum(60 * self.job(run).minutes for run in runs)

        done = expected(run for run in self.runs if run.name in self.seconds)
        speed = sum(self.seconds.values()) / done if done else 1.
        return speed * expected(self.waiting) / self.jobs

    def report_progress(self) -> None:
        with self.lock:
            names = sorted(self.active)
            text = f'{len(self.seconds)} of {len(self.runs)} runs done'
            if names:
                text += (f', up to {self.remaining() / 60:.0f} min to go; '
                         f'running: {", ".join(names)}')
        print(time.strftime('%H:%M:%S'), text, flush=True)

    def run(self) -> None:
        """Train what does not stand, and say how far it is."""
        # As Ctrl-C does, end the runs as well.
        signal.signal(signal.SIGTERM, _interrupt)
        self.prepare()
        workers = [
            threading.Thread(target=self.work) for _ in range(self.jobs)
        ]
        for worker in workers:
            worker.start()
        try:
            while any(worker.is_alive() for worker in workers):
                self.report_progress()
                for worker in workers:
                    worker.join(60 / len(workers))
        except BaseException as error:
            self.failure = 'stopped'
            for process in list(self.active.values()):
                if process is not None:
                    process.terminate()
            if isinstance(error, KeyboardInterrupt):
                sys.exit('\nStopped. Call it again to go on.')
            raise
        self.report_progress()
        if self.failure:
            sys.exit(f'\n{self.failure}\nCall it again to go on.')


def _interrupt(*_) -> None:
    raise KeyboardInterrupt


def parse_plan_args(description: str, work_dir: str,
                    seeds: int) -> argparse.Namespace:
    """Arguments of the tools that train a plan, with their defaults."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--work-dir',
        type=_absolute,
        default=_absolute(work_dir),
        help=f'where the runs go (default: {work_dir})')
    parser.add_argument(
        '--out',
        type=Path,
        help='where tables and plots go (default: report in --work-dir)')
    parser.add_argument(
        '--seeds',
        type=_positive,
        default=seeds,
        help='how many, from 0 (default: %(default)s)')
    parser.add_argument(
        '--jobs',
        type=_positive,
        default=os.cpu_count(),
        help='how many runs at a time, each on one core (default: all cores)')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        default=[],
        help='further settings of all runs, as of tools/train.py')
    args = parser.parse_args()
    args.out = args.out or args.work_dir / 'report'
    return args


def _absolute(text: str) -> Path:
    return Path(text).absolute()


def _positive(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f'{text!r} is not a positive number')
