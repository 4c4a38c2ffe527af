# Copyright (c) mmweightformer contributors. All rights reserved.
"""Checks of arguments that say what was given and what is allowed."""
from typing import Any, Collection, Optional


def check_int(name: str,
              value: Any,
              low: int,
              high: Optional[int] = None) -> None:
    """Raise unless ``value`` is an int from ``low`` to ``high``."""
    allowed = f'at least {low}' if high is None else f'from {low} to {high}'
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f'{name} must be an int {allowed}, got {value!r}')
    if value < low or high is not None and value > high:
        raise ValueError(f'{name} must be {allowed}, got {value}')


def check_bool(name: str, value: Any) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f'{name} must be True or False, got {value!r}')


def check_rate(name: str, value: Any) -> None:
    """Raise unless ``value`` is a number in [0, 1)."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f'{name} must be a number in [0, 1), got {value!r}')
    if not 0 <= value < 1:
        raise ValueError(f'{name} must be in [0, 1), got {value}')


def check_choice(name: str, value: Any, allowed: Collection) -> None:
    """Raise unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f'{name} must be one of {list(allowed)}, '
                         f'got {value!r}')
