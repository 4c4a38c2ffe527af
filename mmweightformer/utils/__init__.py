# Copyright (c) mmweightformer contributors. All rights reserved.
from .check_data import check_data
from .checkpoint import convert_checkpoint, load_state_dict, save_state_dict
from .collect_env import collect_env
from .deit_to_vitsam import deit_to_vitsam
from .official_checkpoint import load_official, official_to_mm
from .preflight import find_missing_files

__all__ = [
    'check_data', 'collect_env', 'convert_checkpoint', 'deit_to_vitsam',
    'find_missing_files', 'load_official', 'load_state_dict', 'official_to_mm',
    'save_state_dict'
]
