# Copyright (c) mmweightformer contributors. All rights reserved.
"""Reading and writing checkpoints of OpenMMLab's format, without its code."""
import os
import pickle
import re
import zipfile
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple, Union

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor

from ..version import __version__
from .atomic_file import write_atomically

StateDict = Dict[str, Tensor]

UNSAFE = (
    'it asks for {}, and only tensors, numbers and text are loaded, since '
    'more can run code. Convert a published checkpoint by '
    'tools/model_converters; of another one that you trust, save the '
    'state_dict anew, alone')

STATISTICS = ('min', 'max', 'current', 'mean')


def _stands_for(*names: str) -> Callable:
    """Lets PyTorch's safe unpickler take an object for those of the names.

    It goes by an object's own name, so there is one for each.
    """

    def decorate(target: Callable) -> Callable:
        for name in names:
            if isinstance(target, type):
                stand_in: Any = type(target.__name__, (target, ), {})
            else:

                def stand_in(*args: Any) -> Any:
                    return target(*args)

            module, name = name.rsplit('.', 1)
            stand_in.__module__ = module
            stand_in.__name__ = stand_in.__qualname__ = name
            _STAND_INS.append(stand_in)
        return target

    return decorate


# NumPy's own would take the bytes of a file for addresses of objects. These
# make numbers of them and nothing else, and a method out of a few.
_STAND_INS: List[Callable] = []


@_stands_for('numpy.dtype')
class _Dtype:
    """Of numbers; the state that follows has their byte order."""

    def __init__(self, code: str, *_: Any) -> None:
        self.dtype = np.dtype(code)
        if not isinstance(code, str) or self.dtype.kind not in 'biufc':
            raise pickle.UnpicklingError(f'an array of {code!r} is not safe')

    def __setstate__(self, state: tuple) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])

    def read(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, self.dtype)


@_stands_for('numpy.ndarray')
class _Array:
    """An array whose content is the state that follows."""
    value = np.empty(0)

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, fortran, data = state
        order = 'F' if fortran else 'C'
        self.value = dtype.read(data).reshape(shape, order=order).copy(order)


@_stands_for('numpy.core.multiarray._reconstruct',
             'numpy._core.multiarray._reconstruct')
def _reconstruct(array_type: type, *_: Any) -> _Array:
    return array_type()


@_stands_for('numpy.core.multiarray.scalar', 'numpy._core.multiarray.scalar')
def _scalar(dtype: _Dtype, data: bytes) -> np.generic:
    return dtype.read(data)[0]


@_stands_for('builtins.getattr')
def _statistic(owner: type, name: str) -> Callable:
    if owner is not HistoryBuffer or name not in STATISTICS:
        raise pickle.UnpicklingError(f'getattr {name!r} is not safe')
    return getattr(HistoryBuffer, name)


@_stands_for('builtins.bytes')
def _no_bytes() -> bytes:
    """The content of an empty array; others are never written so."""
    return b''


def _with_arrays(value: Any) -> Any:
    """The value, with arrays in place of those that stood for them."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, HistoryBuffer):
        _with_arrays(value.__dict__)
    elif isinstance(value, dict):
        for key in value:
            value[key] = _with_arrays(value[key])
    elif isinstance(value, list):
        value[:] = map(_with_arrays, value)
    elif type(value) is tuple:
        return tuple(map(_with_arrays, value))
    return value


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
        unsafe = re.search(r'GLOBAL ([\w.]+)', str(error))
        if unsafe:
            reason = UNSAFE.format(unsafe.group(1))
        raise ValueError(
            f'{path} cannot be read as {what}: {reason}') from error


def check_format(path: str) -> None:
    """Raise a ``ValueError`` unless it is a whole file of ``torch.save``."""
    with open(path, 'rb') as file:
        head = file.read(4)
    if head[:1] == b'\x80':
        return  # a pickle, from before torch 1.6
    if head != b'PK\3\4' or not zipfile.is_zipfile(path):
        raise ValueError('it is another file, or it was not written to its '
                         'end. Name an earlier one')
    with zipfile.ZipFile(path) as file:
        if any(name.endswith('/constants.pkl') for name in file.namelist()):
            # PyTorch 2.5 would load its code.
            raise ValueError('it is a program of TorchScript, which is code')


def _check_content(path: str) -> None:
    """Raise unless it is as it was written, which PyTorch does not look at."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            bad = file.testzip()
        if bad is not None:
            raise ValueError(f'its part {bad} is damaged')


def load_checkpoint(
    path: str,
    map_location: Union[str, Callable, None] = 'cpu',
    safe_globals: Sequence[Callable] = ()
) -> Any:
    """Load all that a checkpoint holds, without running code in it.

    Besides what ``torch.load`` loads with ``weights_only=True``, these are
    NumPy's arrays of numbers and the history of the log, which mmengine saves
    in training.

    Args:
        path (str): A file of ``torch.save``.
        map_location (str | Callable, optional): As in ``torch.load``.
            Defaults to 'cpu'.
        safe_globals (Sequence[Callable]): Classes that may be loaded as well.
            Defaults to none.

    Returns:
        Any: What was saved.

    Raises:
        OSError: If there is no such file.
        ValueError: If it is another file, a damaged one or one with objects
            of other classes. The message says which.
    """
    with reading(path, 'a checkpoint'):
        check_format(path)
        _check_content(path)
        known = [*_STAND_INS, HistoryBuffer, set, *safe_globals]
        with torch.serialization.safe_globals(known):
            checkpoint = torch.load(path, map_location, weights_only=True)
        return _with_arrays(checkpoint)


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

    Args:
        path (str): A PyTorch file with a state dict, at its top or under
            ``state_dict``.

    Returns:
        dict[str, Tensor]: The state dict.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a file with a state dict.
    """
    return find_state_dict(load_checkpoint(path), path, 'state_dict')


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
    checkpoint = dict(
        state_dict=state, meta=dict(mmweightformer_version=__version__))
    write_atomically(path, partial(torch.save, checkpoint))


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
