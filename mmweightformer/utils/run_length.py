# Copyright (c) mmweightformer contributors. All rights reserved.
"""Masks in COCO's run-length encoding."""
from typing import List, Union

import numpy as np


def count_pixels(counts: Union[str, List[float]]) -> float:
    """The pixels that a mask's runs make up.

    pycocotools does not check it. Where they are fewer than the mask has, the
    rest is whatever memory holds.

    Args:
        counts (str or list[float]): The lengths of the runs, by turns of
            zeros and ones; as a string in the compressed form.

    Returns:
        float: The sum of the lengths.

    Raises:
        ValueError: If they are not whole numbers of at least 0, or the string
            does not end with one.
    """
    if isinstance(counts, str):
        counts = _decompress(counts).tolist()
    if not all(
            isinstance(n, (int, float)) and n >= 0 and n % 1 == 0
            for n in counts):
        raise ValueError('counts must be whole numbers of at least 0')
    return sum(counts)


def _decompress(text: str) -> np.ndarray:
    """The counts in pycocotools' compressed form.

    A character from '0' on holds five bits of a number, the lowest first, and
    a sixth that is set if more follow; the number's last bit is its sign.
    From the fourth number on, it is the difference to the last but one.
    """
    # Any other than ASCII becomes bytes beyond the codes.
    codes = np.frombuffer(text.encode('utf-8', 'surrogatepass'), np.uint8)
    codes = codes.astype(np.int64) - ord('0')
    if not codes.size:
        return codes
    if ((codes < 0) | (codes > 63)).any() or codes[-1] & 32:
        raise ValueError('counts are no compressed ones')
    ends = np.flatnonzero(codes < 32)
    starts = np.append(0, ends[:-1] + 1)
    lengths = ends - starts + 1
    if lengths.max() > 7:  # of 32 bits
        raise ValueError('counts are no compressed ones')
    shifts = 5 * (np.arange(codes.size) - np.repeat(starts, lengths))
    values = np.add.reduceat((codes & 31) << shifts, starts)
    values -= np.where(codes[ends] & 16, 1 << 5 * lengths, 0)
    for first in 1, 2:
        values[first::2] = values[first::2].cumsum()
    return values
