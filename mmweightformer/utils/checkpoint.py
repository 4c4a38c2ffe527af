# Copyright (c) mmweightformer contributors. All rights reserved.
"""Reading and writing checkpoints of OpenMMLab's format, without its code."""
import os
import pickle
from types import SimpleNamespace
from typing import Any, BinaryIO, Dict

import torch
from torch import Tensor

from ..version import __version__

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


def load_state_dict(path: str) -> Dict[str, Tensor]:
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
    try:
        checkpoint = torch.load(
            path, 'cpu', pickle_module=TENSOR_PICKLE, weights_only=False)
    except OSError:
        raise
    except Exception as error:
        # What a damaged or a foreign file raises is up to its bytes.
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise ValueError(
            f'it cannot be read as a checkpoint: {reason}') from error
    state = checkpoint.get('state_dict', checkpoint) if isinstance(
        checkpoint, dict) else None
    if not isinstance(state, dict) or not all(
            isinstance(name, str) and isinstance(value, Tensor)
            for name, value in state.items()):
        raise ValueError("it holds no state dict, neither at its top nor under"
                         " 'state_dict'")
    return state


def save_state_dict(state: Dict[str, Tensor], path: str) -> None:
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
