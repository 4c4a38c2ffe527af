# Copyright (c) mmweightformer contributors. All rights reserved.
"""Architectures by name or dict, with the placement of dynamic blocks."""
from typing import Any, Dict, Union

from .checks import check_choice, check_int, is_sequence

# What an architecture says of WeightFormer's blocks, with its defaults.
WEIGHTFORMER = dict(
    embed_dims=None,
    depth=None,
    dynamic_every=3,
    dynamic_offset=None,
    dynamic_indices=None,
    mlp_ratio=4,
    reduction=4,
    kernel_size=3)


def parse_arch(arch: Union[str, dict], arch_zoo: Dict[str, dict],
               defaults: Dict[str, Any]) -> Dict[str, Any]:
    """All keys of an architecture, checked.

    Args:
        arch (str | dict): A name in ``arch_zoo``, in letters of any case, or
            some of the keys of ``defaults``.
        arch_zoo (dict[str, dict]): Architectures by their names.
        defaults (dict): All keys, with their defaults; None for those that
            have to be given.

    Returns:
        dict: All keys, with ``dynamic_indices`` in place of the three that
        say which blocks are dynamic.

    Raises:
        TypeError: If a value has a wrong type.
        ValueError: If a name, key or value is not one of those allowed.
    """
    if isinstance(arch, str):
        check_choice('arch', arch.lower(), arch_zoo)
        arch = arch_zoo[arch.lower()]
    elif not isinstance(arch, dict):
        raise TypeError(f'arch must be a str or a dict, got {arch!r}')
    for name in arch:
        check_choice('a key of arch', name, defaults)
    given, arch = arch, {**defaults, **arch}
    for name in sorted(arch.keys() & _INTS):
        check_int(f'arch[{name!r}]', arch[name], 1)
    ratio = arch['mlp_ratio']
    if (not isinstance(ratio, (int, float)) or isinstance(ratio, bool)
            or not 0 < ratio < float('inf')):
        raise ValueError("arch['mlp_ratio'] must be a positive number, "
                         f'got {ratio!r}')
    if round(arch['embed_dims'] * ratio) < 1:
        raise ValueError("arch['mlp_ratio'] must leave the MLP a width of "
                         f"1 or more of {arch['embed_dims']}, got {ratio}")
    if arch.get('kernel_size', 1) % 2 == 0:
        raise ValueError("arch['kernel_size'] must be odd, got "
                         f"{arch['kernel_size']}")
    if 'dynamic_indices' in arch:
        arch['dynamic_indices'] = _pop_placement(given, arch)
    return arch


_INTS = {
    'embed_dims', 'depth', 'reduction', 'kernel_size', 'patch_size',
    'num_heads'
}


def _pop_placement(given: dict, arch: dict) -> tuple:
    """The indices of the dynamic blocks."""
    every, offset, indices = (
        arch.pop(f'dynamic_{key}') for key in ('every', 'offset', 'indices'))
    if indices is None:
        check_int("arch['dynamic_every']", every, 1)
        if offset is None:
            offset = -2 % every
        check_int("arch['dynamic_offset']", offset, 0, every - 1)
        indices = range(offset, arch['depth'], every)
    elif {'dynamic_every', 'dynamic_offset'} & given.keys():
        raise ValueError("arch['dynamic_indices'] takes the place of "
                         "'dynamic_every' and 'dynamic_offset', got "
                         f'{given}')
    elif not is_sequence(indices):
        raise TypeError("arch['dynamic_indices'] must be a sequence of "
                        f'ints, got {indices!r}')
    for index in indices:
        check_int("arch['dynamic_indices']", index, 0, arch['depth'] - 1)
    return tuple(indices)
