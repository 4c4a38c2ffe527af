# Copyright (c) mmweightformer contributors. All rights reserved.
"""The OpenMMLab plugin for WeightFormer: importing it registers everything."""
from .version import __version__, version_info

try:
    import mmcv  # noqa: F401
    import mmengine  # noqa: F401
except ImportError as error:
    raise ImportError(
        f'mmweightformer needs mmengine and mmcv (or mmcv-lite), and '
        f'"{error}". Install OpenMMLab, or one of the sets of versions that '
        'mmweightformer is tested with: "make install" in a checkout.'
    ) from error

from . import datasets, engine, evaluation, models

__all__ = [
    '__version__', 'datasets', 'engine', 'evaluation', 'models', 'version_info'
]
