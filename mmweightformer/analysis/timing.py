# Copyright (c) mmweightformer contributors. All rights reserved.
"""Times that can be compared."""
import math
import time
from statistics import linear_regression, median
from typing import Callable, Dict, List, Sequence


def time_in_turns(functions: Dict[str, Callable[[], object]],
                  budget: float = 10.) -> Dict[str, List[float]]:
    """Time functions that take turns, in an order that rotates.

    So whatever else the machine does meets all of them. The first round warms
    up and is left out, unless it takes longer than ``budget``: then it is the
    only one. Else there are as many as ``budget`` allows, from 5 to 25.

    Args:
        functions (dict[str, Callable]): Functions without arguments that
            return when their work is done, as on a CPU.
        budget (float): Seconds for all rounds. Defaults to 10.

    Returns:
        dict[str, list[float]]: The seconds of each round, by name.
    """
    names = list(functions)
    times: Dict[str, List[float]] = {name: [] for name in names}
    done, rounds = 0, 1
    while done < rounds:
        first = done % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            functions[name]()
            times[name].append(time.perf_counter() - start)
        spent = sum(seconds[0] for seconds in times.values())
        if done == 0 and spent <= budget:
            rounds += max(5, min(25, int(budget / spent)))
        done += 1
    return {name: seconds[1:] or seconds for name, seconds in times.items()}


def speed_ratio(seconds: Sequence[float], baseline: Sequence[float]) -> float:
    """How many times as fast as the baseline something is.

    Args:
        seconds (Sequence[float]): Its time in each round.
        baseline (Sequence[float]): The baseline's.

    Returns:
        float: The median of the rounds' ratios. Where one has other rounds
        than the other, the ratio of the medians.
    """
    if len(seconds) != len(baseline):
        return median(baseline) / median(seconds)
    return median(b / s for s, b in zip(seconds, baseline))


def growth_exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The p of the power of the number of pixels, N^p, that fits best.

    Args:
        sizes (Sequence[int]): Two or more heights of square images.
        values (Sequence[float]): What grows, at each of them.

    Returns:
        float: The least-squares slope between the logarithms.
    """
    pixels = [2 * math.log(size) for size in sizes]
    return linear_regression(pixels, list(map(math.log, values))).slope
