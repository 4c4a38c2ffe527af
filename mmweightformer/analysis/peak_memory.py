# Copyright (c) mmweightformer contributors. All rights reserved.
"""The most memory that a function takes, over what stood before it."""
import ctypes
import gc
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Optional

import torch

MIB = 2**20
Prepare = Callable[[], Callable[[], object]]


class Usage(NamedTuple):
    """What a function took.

    Attributes:
        memory (float, optional): Its peak of memory over what stood before,
            in MiB. None where that cannot be measured.
        seconds (float): Its time.
    """
    memory: Optional[float]
    seconds: float


@contextmanager
def memory_meter(device: str) -> Iterator[Callable[[Prepare], Usage]]:
    """A context with a function that measures the memory of functions.

    On CUDA, memory is what PyTorch's allocator hands out. On the CPU it is
    the resident set of a child process, which lives as long as the context,
    so that neither this process nor one measurement disturbs another. It may
    not outgrow the memory that the machine has available. This needs Linux;
    elsewhere the memory is None.

    What the context yields takes a function without arguments, which can be
    pickled and returns the function to measure. The first one is also run
    once before, since whatever is done once in a process is not meant.
    Whatever it raises is raised again; :func:`lacks_memory` tells whether
    that was for want of memory.

    Args:
        device (str): 'cpu', or a CUDA device.
    """
    if torch.device(device).type == 'cuda':
        with torch.cuda.device(device):
            yield _allocator_growth
    elif not sys.platform.startswith('linux'):
        yield lambda prepare: Usage(None, _time(prepare()))
    else:
        with ProcessPoolExecutor(1, get_context('spawn')) as pool:
            yield lambda prepare: pool.submit(_resident_growth, prepare
                                              ).result()


def lacks_memory(error: Exception) -> bool:
    """Whether an error, as :func:`memory_meter` lets through, is about memory.
    """
    # A process that runs out of memory may be ended in place of an error.
    kinds = MemoryError, torch.cuda.OutOfMemoryError, BrokenProcessPool
    return isinstance(error, kinds) or 'allocate memory' in str(error)


def _time(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _allocator_growth(prepare: Prepare) -> Usage:
    function = prepare()
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    seconds = _time(function)
    return Usage((torch.cuda.max_memory_allocated() - before) / MIB, seconds)


_is_warm = False  # in the child


def _resident_growth(prepare: Prepare) -> Usage:
    import resource
    global _is_warm
    c_library = ctypes.CDLL(None)
    # To end with its parent, also where that is killed (1: PR_SET_PDEATHSIG).
    c_library.prctl(1, signal.SIGKILL)
    if hasattr(c_library, 'mallopt'):
        # Of glibc: what is freed goes back to the system at once (-3 is
        # M_MMAP_THRESHOLD), so that it does not hide what comes later.
        c_library.mallopt(-3, 2**16)
    function = prepare()
    if not _is_warm:
        function()
        _is_warm = True
    gc.collect()
    if hasattr(c_library, 'malloc_trim'):
        c_library.malloc_trim(0)
    before = _read_bytes('/proc/self/status', 'VmRSS')
    Path('/proc/self/clear_refs').write_text('5')  # the peak starts anew
    limit, most = resource.getrlimit(resource.RLIMIT_AS)
    virtual = _read_bytes('/proc/self/status', 'VmSize')
    available = _read_bytes('/proc/meminfo', 'MemAvailable')
    resource.setrlimit(resource.RLIMIT_AS,
                       (virtual + int(0.9 * available), most))
    try:
        seconds = _time(function)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    peak = _read_bytes('/proc/self/status', 'VmHWM')
    return Usage((peak - before) / MIB, seconds)


def _read_bytes(path: str, field: str) -> int:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(':')
        if name == field:
            return int(value.split()[0]) * 1024
    raise OSError(f'{path} has no {field}')
