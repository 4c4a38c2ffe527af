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


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Leave it, on the CPU, as if nothing had been drawn within."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
