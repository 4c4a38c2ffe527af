# Copyright (c) mmweightformer contributors. All rights reserved.
"""Reading and writing checkpoints of OpenMMLab's format, without its code."""
import os
import pickle
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, BinaryIO, Callable, Dict, Iterator, Tuple

import torch
from torch import Tensor

from ..version import __version__

StateDict = Dict[str, Tensor]

# All that it takes to rebuild a state dict; storages are up to PyTorch.
SAFE_GLOBALS = ('collections.OrderedDict', 'torch._utils._rebuild_tensor_v2',
                'torch._utils._rebuild_parameter')


class _Inert:
    """In place of an object of any other class, without its content."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def _ignore(self, *args: Any) -> None:
        pass

    __setstate__ = __setitem__ = append = extend = add = _ignore


class _TensorUnpickler(pickle.Unpickler):

    def find_class(self, module: str, name: str) -> Any:
        if f'{module}.{name}' in SAFE_GLOBALS:
            return super().find_class(module, name)
        return _Inert


def _load(file: BinaryIO, **kwargs: Any) -> Any:
    return _TensorUnpickler(file, **kwargs).load()


# As torch.load takes a module.
TENSOR_PICKLE = SimpleNamespace(
    __name__=__name__, Unpickler=_TensorUnpickler, load=_load)


@contextmanager
def reading(path: str, what: str) -> Iterator[None]:
    """Turn what a damaged or a foreign file raises into a ``ValueError``."""
    try:
        yield
    except (OSError, ImportError):
        raise
    except Exception as error:
        # It is up to the file's bytes.
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise ValueError(
            f'{path} cannot be read as {what}: {reason}') from error


def find_state_dict(checkpoint: Any, path: str, key: str) -> StateDict:
    """Returns the state dict at the top of a checkpoint or under ``key``."""
    state = checkpoint
    if isinstance(checkpoint, dict) and isinstance(checkpoint.get(key), dict):
        state = checkpoint[key]
    if not isinstance(state, dict) or not all(
            isinstance(name, str) and isinstance(value, Tensor)
            for name, value in state.items()):
        raise ValueError(f'{path} holds no state dict, neither at its top nor '
                         f'under {key!r}')
    return state


def load_state_dict(path: str) -> StateDict:
    """Load the state dict of a checkpoint of mmengine.

    A checkpoint of a training run also holds the history of its log, whose
    objects PyTorch's own ``weights_only`` refuses. Here nothing of a file but
    tensors and plain values is restored, and no code in it is run.

    Args:
        path (str): A PyTorch file with a state dict, at its top or under
            ``state_dict``.

    Returns:
        dict[str, Tensor]: The state dict.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a file with a state dict.
    """
    with reading(path, 'a checkpoint'):
        checkpoint = torch.load(
            path, 'cpu', pickle_module=TENSOR_PICKLE, weights_only=False)
    return find_state_dict(checkpoint, path, 'state_dict')


def save_state_dict(state: StateDict, path: str) -> None:
    """Save a checkpoint that appears under its name only when it is whole.

    Args:
        state (dict[str, Tensor]): The state dict, saved under
            ``state_dict``.
        path (str): The file to write, in a folder that is made if need be.

    Raises:
        OSError, RuntimeError: If it cannot be written.
    """
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    part = f'{path}.part'
    try:
        torch.save(
            dict(
                state_dict=state,
                meta=dict(mmweightformer_version=__version__)), part)
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)


def convert_checkpoint(
        src: str, dst: str, load: Callable[[str], StateDict],
        convert: Callable[[StateDict],
                          StateDict]) -> Tuple[StateDict, StateDict]:
    """Convert a checkpoint from one file to another.

    Args:
        src (str): The file to read.
        dst (str): The file to write, not the same.
        load (Callable): Loads a state dict from ``src``.
        convert (Callable): Makes another one of it.

    Returns:
        tuple[dict, dict]: The state dicts before and after.

    Raises:
        ValueError: If a file cannot be used; the message names it.
    """
    if os.path.isdir(dst) or not os.path.basename(dst):
        raise ValueError(f'dst must name a file, got {dst!r}')
    if os.path.realpath(src) == os.path.realpath(dst):
        raise ValueError(f'dst must not be src, got {dst!r} for both')
    try:
        before = load(src)
        after = convert(before)
    except (ImportError, OSError, ValueError) as error:
        raise ValueError(f'{src}: {error}') from error
    try:
        save_state_dict(after, dst)
    except (OSError, RuntimeError) as error:  # torch wraps those of files
        raise ValueError(f'{dst} cannot be written: {error}') from error
    return before, after
