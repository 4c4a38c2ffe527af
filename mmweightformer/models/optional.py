# Copyright (c) mmweightformer contributors. All rights reserved.
from importlib import import_module
from types import ModuleType


def import_optional(name: str, purpose: str) -> ModuleType:
    """Import what is not required by all of the package.

    Args:
        name (str): The module, of the distribution of its first part.
        purpose (str): What needs it.

    Returns:
        ModuleType: The module.

    Raises:
        ImportError: If it is not installed.
    """
    distribution = name.split('.')[0].replace('_', '-')
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f'{purpose} needs {distribution}, and "{error}": pip install '
            f"{distribution}, or pip install '.[optional]' in a checkout"
        ) from error
