# Copyright (c) mmweightformer contributors. All rights reserved.
from .complexity import Complexity, Cost, model_complexity
from .probe import patch_detail
from .throughput import throughput_ratio
from .training_log import TrainingLog, read_training_log

__all__ = [
    'Complexity', 'Cost', 'TrainingLog', 'model_complexity', 'patch_detail',
    'read_training_log', 'throughput_ratio'
]
