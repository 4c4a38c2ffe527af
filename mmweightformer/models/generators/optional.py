# Copyright (c) mmweightformer contributors. All rights reserved.
from types import ModuleType


def require_diffusers() -> ModuleType:
    """The package diffusers.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import diffusers
    except ImportError as error:
        raise ImportError(
            'generation takes its noise schedules and samplers from '
            f'diffusers, and "{error}": pip install diffusers, or '
            "pip install '.[optional]' in a checkout") from error
    return diffusers
