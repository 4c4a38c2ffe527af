# Copyright (c) mmweightformer contributors. All rights reserved.
"""The random state of Python, NumPy and PyTorch, all at once."""
import random
from contextlib import contextmanager
from typing import Iterator

import numpy as np
import torch


def set_random_state(*key: int) -> None:
    """Set it as a function of non-negative integers.

    Neighbouring keys give independent states, which neighbouring seeds of a
    generator need not.
    """
    state = np.random.SeedSequence(key).generate_state(8)
    random.seed(state.tobytes())
    np.random.seed(state)
    torch.manual_seed(int.from_bytes(state[:2].tobytes(), 'little'))


def get_random_state() -> tuple:
    """With that of the GPU if it is in use."""
    on_gpu = torch.cuda.is_initialized()
    return (random.getstate(), np.random.get_state(), torch.get_rng_state(),
            torch.cuda.get_rng_state() if on_gpu else None)


def restore_random_state(state: tuple) -> None:
    """Go back to a state of :func:`get_random_state`."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
    if state[3] is not None:
        torch.cuda.set_rng_state(state[3])


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Leave it as if nothing had been drawn within."""
    state = get_random_state()
    try:
        yield
    finally:
        restore_random_state(state)
