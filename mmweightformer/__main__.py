# Copyright (c) mmweightformer contributors. All rights reserved.
"""``python -m mmweightformer`` prints what a bug report should name."""
from .utils import collect_env

for name, value in collect_env().items():
    print(f'{name}: {value}')
