# Copyright (c) mmweightformer contributors. All rights reserved.
"""Checks of arguments that say what was given and what is allowed."""
from typing import (Any, Callable, Collection, Optional, Sequence, Tuple,
                    TypeVar, Union)

T = TypeVar('T')


def check_type(name: str, value: Any, types: Union[type, Tuple[type, ...]],
               allowed: str) -> None:
    """Raise unless ``value`` is of one of ``types``, ``allowed`` in words."""
    if not isinstance(value, types):
        raise TypeError(f'{name} must be {allowed}, got {value!r}')


def is_sequence(value: Any) -> bool:
    """Whether ``value`` is a sequence of values, which a str is not."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


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


def check_number(name: str, value: Any, interval: str) -> None:
    """Raise unless ``value`` is a number in ``interval``, as '[0, inf)'."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f'{name} must be a number in {interval}, got '
                        f'{value!r}')
    low, high = map(float, interval[1:-1].split(','))
    if not low <= value <= high or (value == low and interval[0] == '(') or (
            value == high and interval[-1] == ')'):
        raise ValueError(f'{name} must be in {interval}, got {value}')


def check_rate(name: str, value: Any) -> None:
    """Raise unless ``value`` is a number in [0, 1)."""
    check_number(name, value, '[0, 1)')


def check_choice(name: str, value: Any, allowed: Collection) -> None:
    """Raise unless ``value`` is one of ``allowed``, none of which a bool."""
    # In a list, since not every value has the hash that a dict wants.
    if isinstance(value, bool) or value not in list(allowed):
        raise ValueError(f'{name} must be one of {list(allowed)}, '
                         f'got {value!r}')


def check_cfg(name: str, cfg: Any, build: Callable[[dict], T]) -> T:
    """What ``build`` makes of a config; what it raises names the argument.

    Args:
        name (str): The argument.
        cfg (Any): What was given for it.
        build (Callable): Builds of the config, such as ``MODELS.build``.

    Returns:
        Any: What was built.

    Raises:
        TypeError: If ``cfg`` is not a dict, or ``build`` raises one.
        ValueError: If ``build`` raises another error of a wrong value.
    """
    check_type(name, cfg, dict, "a dict with a 'type'")
    try:
        return build(cfg)
    except (AssertionError, AttributeError, KeyError, RuntimeError, TypeError,
            ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        # That of a KeyError is the repr of its message.
        reason = error.args[0] if error.args else repr(error)
        raise kind(f"{name} must have a 'type' that is known and arguments of "
                   f'it, got {cfg!r}: {reason}') from error


def check_init_cfg(init_cfg: Any) -> None:
    """Raise unless MMEngine's ``init_weights`` will take it.

    Raises:
        TypeError: If it is neither None nor one or more dicts.
        ValueError: If it names an initializer that there is not.
    """
    # The layers, which import this module, need no MMEngine.
    from mmengine.registry import WEIGHT_INITIALIZERS
    if init_cfg is None or init_cfg == {}:
        return
    check_type('init_cfg', init_cfg, (dict, list, tuple),
               "a dict with a 'type', or a list of such")
    for cfg in [init_cfg] if isinstance(init_cfg, dict) else init_cfg:
        check_cfg(
            'init_cfg', cfg, lambda cfg: WEIGHT_INITIALIZERS.build({
                k: v
                for k, v in cfg.items() if k != 'override'
            }))
