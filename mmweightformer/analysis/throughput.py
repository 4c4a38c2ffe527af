# Copyright (c) mmweightformer contributors. All rights reserved.
import time
from statistics import median
from typing import Callable, List

import torch


def throughput_ratio(a: Callable[[], object],
                     b: Callable[[], object],
                     rounds: int = 9,
                     warmup: int = 2) -> float:
    """How many times as fast ``a`` runs as ``b``, side by side.

    The two take turns in one process, so that whatever else the machine does
    meets both, and the median of the rounds' ratios is returned. It is made
    for functions that return when their work is done, as on a CPU.

    Args:
        a (Callable): A function without arguments.
        b (Callable): The one that it is compared with.
        rounds (int): Number of measurements. Defaults to 9.
        warmup (int): Number of rounds before them. Defaults to 2.

    Returns:
        float: The median over the rounds of b's time over a's.
    """
    ratios: List[float] = []
    with torch.no_grad():
        for _ in range(warmup + rounds):
            start = time.perf_counter()
            a()
            middle = time.perf_counter()
            b()
            ratios.append((time.perf_counter() - middle) / (middle - start))
    return median(ratios[warmup:])
