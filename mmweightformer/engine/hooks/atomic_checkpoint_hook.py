# Copyright (c) mmweightformer contributors. All rights reserved.
import math
import os
import os.path as osp
import zipfile
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from string import Formatter
from typing import Any, Dict, Iterator, Optional, Tuple, Union

from mmengine.dist import barrier, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...utils.atomic_file import PART, write_atomically

BACKEND = 'mmweightformer_atomic'
POINTER = 'last_checkpoint'


class AtomicBackend(LocalBackend):
    """Local files, written whole or not at all."""

    def put(self, obj: bytes, filepath: Union[str, Path]) -> None:
        os.makedirs(osp.dirname(filepath), exist_ok=True)
        write_atomically(str(filepath), lambda file: file.write(obj))


register_backend(BACKEND, AtomicBackend)


class _RemovesLater(AtomicBackend):
    """Keeps what it is told to remove until it is told to go on.

    What is not in its folder is the checkpoint of another training, from
    which this one was resumed, and stays.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).resolve()
        self._inodes: Dict[str, int] = {}

    def remove(self, filepath: Union[str, Path]) -> None:
        if self._folder in Path(filepath).resolve().parents:
            self._inodes[str(filepath)] = os.stat(filepath).st_ino

    def remove_now(self) -> None:
        for path, inode in self._inodes.items():
            # Not one that was since written anew under the same name.
            if osp.exists(path) and os.stat(path).st_ino == inode:
                os.remove(path)
        self._inodes.clear()

    def forget(self) -> None:
        self._inodes.clear()


def is_whole(path: str) -> bool:
    """Whether a checkpoint was written to its end, where its index is."""
    return osp.isfile(path) and zipfile.is_zipfile(path)


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """MMEngine's checkpoints, none of which is lost when one is not saved.

    MMEngine's own hook removes the oldest checkpoint of ``max_keep_ckpts``,
    or the former best one, before it writes the next one, and writes that
    under its final name. A process that is killed meanwhile, or a full disk,
    leaves a torn checkpoint, and with ``max_keep_ckpts=1`` no other. Here

    - a checkpoint is written to a file beside, brought to the disk, and then
      renamed;
    - the former ones are removed afterwards;
    - when a run begins, the file ``last_checkpoint`` is set to the last whole
      checkpoint if it names none, or one before that, so that ``--resume``
      finds it, and what was left half-written is removed.

    If a checkpoint cannot be written, training stops with an ``OSError`` that
    names the former one, which is kept.

    All of this is for local folders. Elsewhere, with an ``out_dir`` such as
    ``s3://...``, ``backend_args`` or ``file_client_args``, the hook does as
    MMEngine's does.

    Args:
        **kwargs: Those of :class:`mmengine.hooks.CheckpointHook`.

    Examples:
        >>> default_hooks = dict(
        ...     checkpoint=dict(type='AtomicCheckpointHook', interval=1))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_local = (
            self.backend_args is None and self.file_client_args is None
            and '://' not in str(self.out_dir))
        if self._is_local:
            self.backend_args = dict(backend=BACKEND)
        self._folder: Optional[str] = None

    def before_run(self, runner: Runner) -> None:
        """Before the runner looks for a checkpoint to resume from."""
        if self._folder is None:
            self._folder = runner.work_dir
            if self.out_dir not in (None, runner.work_dir):
                name = osp.basename(runner.work_dir.rstrip(osp.sep))
                self._folder = osp.join(self.out_dir, name)
        if self._is_local and is_main_process():
            self._mend_pointer(runner)
        barrier()

    def _mend_pointer(self, runner: Runner) -> None:
        pointer = osp.join(runner.work_dir, POINTER)
        named = ''
        if osp.exists(pointer):
            with open(pointer, errors='replace') as file:
                named = file.read().strip()
        # A folder is what DeepSpeed makes, a URL another backend's.
        if osp.isdir(named) or '://' in named:
            return
        whole = self._whole()
        if is_whole(named):
            named_step = next(
                (step for step, path in whole.items() if path.samefile(named)),
                math.inf)
            written = os.stat(pointer).st_mtime_ns
            # Those that a killed process had no time left to name, and not
            # those of a former training in the same folder.
            whole = {
                step: path
                for step, path in whole.items()
                if step > named_step and path.stat().st_mtime_ns > written
            }
        if whole:
            last = str(whole[max(whole)])
            runner.logger.warning(
                f'{pointer} does not name the last whole checkpoint, got '
                f'{named!r}; it is {last}')
            AtomicBackend().put(last.encode(), pointer)

    def _whole(self) -> Dict[int, Path]:
        """The whole checkpoints by their epochs or iterations."""
        before, after = self._around_step()
        found: Dict[int, Path] = {}
        folder = Path(self._folder)
        for path in folder.glob(f'{escape(before)}*{escape(after)}'):
            name = str(path.relative_to(folder))
            step = name[len(before):len(name) - len(after)]
            if step.isdigit() and is_whole(str(path)):
                found[int(step)] = path
        return found

    def _around_step(self) -> Tuple[str, str]:
        """What a checkpoint's name has in front of its step, and behind."""
        literals = [part[0] for part in Formatter().parse(self.filename_tmpl)]
        return literals[0], literals[1] if len(literals) > 1 else ''

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        if self._is_local:
            self.file_backend = _RemovesLater(self.out_dir)
            suffix = osp.splitext(self.filename_tmpl)[1] + PART
            if is_main_process():
                below = osp.dirname(self.filename_tmpl)
                for part in Path(self.out_dir, below).glob(f'*{suffix}'):
                    part.unlink()  # of a process that was killed

    def after_train_iter(self, runner: Runner, *args: Any,
                         **kwargs: Any) -> None:
        with self._keeping_the_former(runner):
            super().after_train_iter(runner, *args, **kwargs)

    def after_train_epoch(self, runner: Runner) -> None:
        with self._keeping_the_former(runner):
            super().after_train_epoch(runner)

    def after_val_epoch(self, runner: Runner, metrics: dict) -> None:
        with self._keeping_the_former(runner):
            super().after_val_epoch(runner, metrics)

    @contextmanager
    def _keeping_the_former(self, runner: Runner) -> Iterator[None]:
        if not self._is_local:
            yield
            return
        former = self.last_ckpt
        try:
            yield
        except OSError as error:
            self.file_backend.forget()
            self.last_ckpt = former
            message = (f'a checkpoint could not be written ({error.strerror}:'
                       f' {error.filename}). ')
            whole = self._whole()
            message += (f'The former one is kept: {whole[max(whole)]}. '
                        'Training goes on from it with --resume, once there '
                        'is room.' if whole else 'There is no former one.')
            runner.logger.error(message)
            raise OSError(error.errno, message) from error
        self.file_backend.remove_now()
