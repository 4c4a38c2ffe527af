# Copyright (c) mmweightformer contributors. All rights reserved.
from .complexity import Complexity, Cost, model_complexity
from .probe import patch_detail
from .timing import growth_exponent, speed_ratio, time_in_turns
from .training_log import TrainingLog, read_training_log

__all__ = [
    'Complexity', 'Cost', 'TrainingLog', 'growth_exponent', 'model_complexity',
    'patch_detail', 'read_training_log', 'speed_ratio', 'time_in_turns'
]
