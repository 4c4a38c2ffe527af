# Copyright (c) mmweightformer contributors. All rights reserved.
"""Tables of the reports."""
from statistics import mean
from typing import List, Sequence

Table = List[List[str]]


def markdown(table: Table, right: int = 0) -> List[str]:
    """The lines of a table in Markdown.

    Args:
        table (list[list[str]]): A header and rows.
        right (int): How many of the last columns are aligned to the right.
            Defaults to 0.

    Returns:
        list[str]: A line for each row, and one behind the header.
    """
    lines = ['| ' + ' | '.join(row) + ' |' for row in table]
    rule = '| --- ' * (len(table[0]) - right) + '| ---: ' * right + '|'
    return [lines[0], rule, *lines[1:]]


def spread(values: Sequence[float]) -> str:
    """The mean and, of several values, the range; nothing of none."""
    if not values:
        return ''
    if len(values) == 1:
        return f'{values[0]:.3f}'
    return f'{mean(values):.3f} ({min(values):.3f}–{max(values):.3f})'
