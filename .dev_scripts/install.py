# Copyright (c) mmweightformer contributors. All rights reserved.
"""Make the environment of a checkout; ``make install`` calls this.

It has two layers. The dependencies take minutes to make (mmcv is compiled) and
gigabytes to keep, so they are made once, in the user's cache, for all
checkouts with the same requirement files. Over them lies a thin virtual
environment of the checkout's own, in which this package is installed editable.

Nothing but the standard library is used, and no syntax that an older Python
could not read, so that it can say that it is too old.
"""
import argparse
import ctypes
import errno
import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STACKS = ('maintained', 'original')
CHECK = 'import torch, mmcv.ops, mmdet, mmseg, mmpretrain'
# The file that tells our environments from others. What it says is written
# last, so an environment that was not finished is never taken for a whole one.
MARK = '.mmweightformer'
PYTHON = '%d.%d' % sys.version_info[:2]

HINTS = (
    (r'No space left on device',
     'The disk is full: about 12 GB are needed, mostly for torch.'),
    (r'name resolution|NewConnection|ConnectTimeout|timed out|Max retries',
     'The package index was not reached: is there a network, and does pip '
     'know its proxy or mirror (pip config)?'),
    (r'No matching distribution|ResolutionImpossible|different Python',
     'Some release may not exist for Python ' + PYTHON + ' on this machine. '
     'Name another Python: make PYTHON=python3.11'),
    (r'out of memory|Killed signal|MemoryError',
     'Out of memory: compile with fewer jobs, as in MAX_JOBS=1 make'),
    (r'CUDA_HOME|CUDA version', 'FORCE_CUDA=0 compiles mmcv without CUDA.'),
)


def say(text):
    print(text, flush=True)


def fail(text):
    sys.exit('install: ' + text)


def clock(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f'{minutes} min {seconds:02d} s' if minutes else f'{seconds} s'


def digest(*parts):
    return hashlib.sha256('\0'.join(parts).encode()).hexdigest()[:12]


def pins(stack):
    """The lines of the stack's requirement file, by name."""
    text = (ROOT / 'requirements' / f'{stack}.txt').read_text()
    lines = [line for line in text.splitlines() if line[:1] not in ('', '#')]
    return {re.match(r'[\w.-]+', line).group(): line for line in lines}


def with_cuda():
    """Whether mmcv gets its CUDA operators: a GPU and a compiler for it."""
    force = os.environ.get('FORCE_CUDA')
    if force in ('0', '1'):
        return force == '1'
    home = os.environ.get('CUDA_HOME', '/usr/local/cuda')
    return os.path.exists('/dev/nvidiactl') and bool(
        shutil.which('nvcc') or shutil.which(home + '/bin/nvcc'))


def jobs():
    """As many compilers as there are cores, with 2 GiB of memory for each."""
    if os.environ.get('MAX_JOBS', '').isdigit():
        return int(os.environ['MAX_JOBS'])
    cores = (
        len(os.sched_getaffinity(0))
        if hasattr(os, 'sched_getaffinity') else os.cpu_count())
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    limit = Path('/sys/fs/cgroup/memory.max')  # of a container
    if limit.exists() and limit.read_text().strip().isdigit():
        memory = min(memory, int(limit.read_text()))
    return max(1, min(cores, memory // 2**31))


def check_machine(cache, compiles):
    """Say all that would stop a long install, before it starts."""
    lacks = []
    if not (find_spec('venv') and find_spec('ensurepip')):
        lacks.append('Python\'s venv module: apt-get install python3-venv, '
                     'or name another Python, as in make PYTHON=python3.11')
    if compiles:
        compiler = shlex.split(os.environ.get('CXX', 'c++'))[0]
        if not shutil.which(compiler):
            lacks.append(f'a C++ compiler ({compiler}), since mmcv has to be '
                         'compiled: apt-get install g++')
        header = Path(sysconfig.get_path('include')) / 'Python.h'
        if not header.exists():
            lacks.append(f'{header}, since mmcv has to be compiled: '
                         'apt-get install python3-dev')
    if sys.platform == 'linux':
        try:
            for library in ('libGL.so.1', 'libgthread-2.0.so.0'):
                ctypes.CDLL(library)
        except OSError as error:
            lacks.append(f'a library that opencv-python loads ({error}): '
                         'apt-get install libgl1 libglib2.0-0')
    # torch for Linux on x86_64 brings CUDA along.
    cuda = (sys.platform, platform.machine()) == ('linux', 'x86_64')
    need, free = 12 if cuda else 5, shutil.disk_usage(cache).free / 1e9
    if free < need:
        lacks.append(f'disk space: {cache} has {free:.1f} GB free of the '
                     f'{need} GB needed; XDG_CACHE_HOME names another place')
    if lacks:
        fail('this machine lacks\n  - ' + '\n  - '.join(lacks))


class Steps:
    """Commands run one after the other, with a line or two about each.

    Their full output goes to a log. They inherit the lock, so that it is held
    until the last of them ends even if this process is killed.
    """

    def __init__(self, log, lock, **environ):
        self.log, self.lock = log, lock
        self.environ = dict(os.environ, **environ)
        self.environ.pop('PYTHONPATH', None)

    def run(self, title, command, **environ):
        say(f'- {title}')
        self.log.write('\n$ ' + ' '.join(map(str, command)) + '\n')
        lines, start = [], time.monotonic()
        process = subprocess.Popen(
            list(map(str, command)),
            env=dict(self.environ, **environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            errors='replace',
            start_new_session=True,
            pass_fds=[self.lock.fileno()])
        try:
            reader = threading.Thread(
                target=self._read, args=(process.stdout, lines), daemon=True)
            reader.start()
            self._watch(reader, lines, start)
            code = process.wait()
        except BaseException:
            self._stop(process)
            raise
        if code:
            text = ''.join(lines)
            if shutil.disk_usage(self.environ['TMPDIR']).free < 5e8:
                text += os.strerror(errno.ENOSPC)  # not all programs say so
            # The first only: no network also reads as a missing release.
            hints = [
                hint for pattern, hint in HINTS if re.search(pattern, text)
            ]
            errors = [line for line in lines[:-15] if 'error: ' in line]
            text = ''.join(errors[:3] + lines[-15:]).rstrip()
            fail(f'this step failed after {clock(time.monotonic() - start)}; '
                 f'its first errors and last lines:\n{text}\n'
                 f'All of its output: {self.log.name}\n' + ''.join(hints[:1]))
        say(f'  done in {clock(time.monotonic() - start)}')

    def _read(self, stream, lines):
        for line in stream:
            lines.append(line)
            self.log.write(line)
            self.log.flush()

    def _watch(self, reader, lines, start):
        """Show the time and, of a compilation, the steps done."""
        seen, shown, shown_at, done = 0, 0, start, ''
        while reader.is_alive():
            reader.join(1)
            count = len(lines)
            for line in lines[seen:count]:
                match = re.match(r'\s*\[(\d+)/\d+\] ', line)
                done = match.group().lstrip() if match else done
                number = int(match.group(1)) if match else 0
            seen, now = count, time.monotonic()
            text = f'  {done}{clock(now - start)}'
            if sys.stdout.isatty():
                print(f'\r{text}\033[K', end='\r', flush=True)
            elif now - shown_at >= 60 or done and number >= shown + 10:
                shown, shown_at = number if done else 0, now
                say(text)
        if sys.stdout.isatty():
            print('\033[K', end='', flush=True)

    @staticmethod
    def _stop(process):
        for number, wait in ((signal.SIGTERM, 10), (signal.SIGKILL, None)):
            try:
                os.killpg(process.pid, number)
                process.wait(wait)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass


def whole(env, content):
    """Whether an environment was finished, and for this content."""
    mark = env / MARK
    return ((env / 'bin' / 'python').exists() and mark.is_file()
            and mark.read_text() == content)


def lock_path(stack):
    name = f'{stack}-py{PYTHON.replace(".", "")}.txt'
    return ROOT / 'requirements' / 'locked' / name


def split_lock(locked, tmp):
    """A lock file as pip's arguments for build tools, mmcv and all others."""
    parts = {'build': '', 'mmcv': '', 'others': ''}
    # An entry goes on in indented lines.
    for entry in re.findall(r'^[^\s#].*\n(?:\s.*\n)*', locked.read_text(),
                            re.M):
        name = re.match(r'[\w.-]+', entry).group()
        part = ('mmcv' if name.endswith('mmcv') else
                'build' if name in pins('build') else 'others')
        parts[part] += entry
    for part, entries in parts.items():
        (tmp / f'{part}.txt').write_text(entries)
        parts[part] = [
            '--no-deps', '--require-hashes', '-r', tmp / f'{part}.txt'
        ]
    return parts['build'], parts['others'], parts['mmcv']


def make_dependencies(env, stack, locked, wheels, steps, tmp):
    requirements = ROOT / 'requirements'
    pinned, pip = pins(stack), [env / 'bin/python', '-I', '-m', 'pip']
    pinning = ['-c', requirements / f'{stack}.txt']
    mmcv = next(line for name, line in pinned.items() if name.endswith('mmcv'))
    title = f'{pinned["torch"]}, usually 2 to 5 minutes (a large download)'
    if locked is None:
        build = ['-r', requirements / 'build.txt'] + pinning
        first = [pinned['torch'], pinned['torchvision']] + pinning
        source, others = ['--no-deps', mmcv], []
        for name in (stack, 'optional', 'tests'):
            others += ['-r', requirements / f'{name}.txt']
    else:
        build, first, source = split_lock(locked, tmp)
        others = ['--no-deps']
        title = f'all of {locked.name} but mmcv, usually 3 to 7 minutes'

    if env.exists():
        say('  (an unfinished one is there: it is made anew)')
        shutil.rmtree(env)
    steps.run('virtual environment, a few seconds',
              [sys.executable, '-m', 'venv', env])
    steps.run('build tools, usually under a minute', pip + ['install'] + build)
    steps.run(title, pip + ['install', '--no-build-isolation'] + first)
    if not wheels.exists():
        # pip's own cache would offer this wheel to any other torch as well.
        # Without a CUDA compiler, a visible GPU would break the build.
        cuda, number = with_cuda(), jobs()
        hide = {} if cuda else {'CUDA_VISIBLE_DEVICES': '', 'FORCE_CUDA': '0'}
        about = (f'{"for CUDA, " if cuda else ""}{number} compilers at once, '
                 f'usually {(60 if cuda else 18) // number + 1} minutes')
        steps.run(
            f'compiling {mmcv}, {about}',
            pip + [
                'wheel', '-v', '--no-cache-dir', '--no-build-isolation', '-w',
                tmp / 'wheel'
            ] + source,
            MMCV_WITH_OPS='1',
            MAX_JOBS=str(number),
            **hide)
        wheels.parent.mkdir(exist_ok=True)
        os.replace(tmp / 'wheel', wheels)
    packages = list(wheels.glob('*.whl')) + others
    steps.run(
        'the other packages, usually 1 to 2 minutes'
        if locked is None else 'mmcv, a few seconds',
        pip + ['install', '--no-build-isolation'] + packages)
    steps.run('checking that they work together, usually 10 to 30 seconds',
              [env / 'bin/python', '-I', '-c', CHECK])
    (env / MARK).write_text(env.name)


def make_checkout(venv, env, content, steps):
    venv.mkdir(parents=True, exist_ok=True)
    (venv / MARK).write_text('')  # ours, and not finished
    for path in venv.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARK:
            path.unlink()
    steps.run('virtual environment of this checkout, a few seconds',
              [env / 'bin/python', '-I', '-m', 'venv', '--without-pip', venv])
    site = Path('lib') / f'python{PYTHON}' / 'site-packages'
    # Unlike a plain path, this also follows the .pth files that lie there.
    layer = f'import site; site.addsitedir({str(env / site)!a})\n'
    (venv / site / 'mmweightformer_dependencies.pth').write_text(layer)
    # -I keeps pip from taking the checkout's egg-info for an installation.
    steps.run('this package, editable, a few seconds', [
        venv / 'bin/python', '-I', '-m', 'pip', 'install', '--no-deps',
        '--no-build-isolation', '-e', ROOT
    ])
    (venv / MARK).write_text(content)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--venv', default='.venv')
    parser.add_argument('--stack', default='maintained')
    parser.add_argument(
        '--locked',
        action='store_true',
        help='the very releases that were tested, checked by their hashes')
    args = parser.parse_args()
    if sys.version_info < (3, 10):
        fail(f'{sys.executable} is Python {PYTHON}; 3.10 or newer is needed. '
             'Name one: make PYTHON=python3.11')
    if args.stack not in STACKS:
        fail(f'STACK={args.stack} is not known; it is one of: '
             f'{", ".join(STACKS)}')
    locked = lock_path(args.stack) if args.locked else None
    if locked is not None and not locked.is_file():
        tested = sorted(path.stem for path in locked.parent.glob('*.txt'))
        fail(f'LOCKED=1 needs {locked.relative_to(ROOT)}, which was not '
             f'tested; there are {", ".join(tested)}')

    cache = Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache').expanduser()
    cache = cache.absolute() / 'mmweightformer'
    abi = [sysconfig.get_config_var('SOABI') or PYTHON, platform.machine()]
    abi.append('cuda' if with_cuda() else 'cpu')
    names = ('build', args.stack, 'optional', 'tests')
    texts = [(ROOT / 'requirements' / f'{n}.txt').read_text() for n in names]
    if locked is not None:
        texts.append(locked.read_text())
    env = cache / f'{args.stack}-py{PYTHON}-{digest(args.stack, *abi, *texts)}'
    # Of all pins, those that a compiled mmcv depends on.
    mmcv = [
        line for name, line in pins(args.stack).items()
        if name.endswith(('torch', 'mmcv'))
    ]
    wheels = cache / 'wheels' / digest(*abi, *mmcv)

    venv = Path(args.venv).expanduser().absolute()
    if venv.exists() and not (venv / MARK).is_file() and not (
            venv.is_dir() and not any(venv.iterdir())):
        fail(f'VENV={args.venv} exists and was not made by this program. '
             'Remove it yourself, or name another: make VENV=DIRECTORY')
    names = ('setup.cfg', 'pyproject.toml', 'mmweightformer/version.py')
    metadata = digest(*((ROOT / name).read_text() for name in names))
    content = f'{env}\n{ROOT}\n{metadata}\n'
    if whole(env, env.name) and whole(venv, content):
        return

    cache.mkdir(parents=True, exist_ok=True)
    tmp = cache / 'tmp'  # /tmp is often too small for torch
    with open(cache / 'lock', 'w') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f'Another install is running; waiting for {lock.name}')
            fcntl.flock(lock, fcntl.LOCK_EX)
        with open(cache / f'{env.name}.log', 'a') as log:
            steps = Steps(log, lock, TMPDIR=str(tmp))
            shutil.rmtree(tmp, ignore_errors=True)
            tmp.mkdir()
            try:
                if not whole(env, env.name):
                    check_machine(cache, not wheels.exists())
                    say(f'Making the {args.stack} dependencies, once for all '
                        f'checkouts, in\n  {env}')
                    make_dependencies(env, args.stack, locked, wheels, steps,
                                      tmp)
                if not whole(venv, content):
                    make_checkout(venv, env, content, steps)
            finally:
                shutil.rmtree(tmp, ignore_errors=True)
    say(f'Ready: {venv}/bin/python')


def interrupt(*_):
    raise KeyboardInterrupt


if __name__ == '__main__':
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        main()
    except KeyboardInterrupt:
        say('\ninstall: interrupted; the next one keeps what was finished')
        sys.exit(130)
    except OSError as error:
        full = error.errno == errno.ENOSPC
        fail(f'{error}' + (f'\n{HINTS[0][1]}' if full else ''))
