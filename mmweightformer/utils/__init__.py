# Copyright (c) mmweightformer contributors. All rights reserved.
from .collect_env import collect_env
from .official_checkpoint import load_official, official_to_mm
from .preflight import find_missing_files

__all__ = [
    'collect_env', 'find_missing_files', 'load_official', 'official_to_mm'
]
