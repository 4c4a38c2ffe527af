# Copyright (c) mmweightformer contributors. All rights reserved.
from .atomic_checkpoint_hook import AtomicCheckpointHook
from .dynamic_weights_hook import DynamicWeightsHook
from .iteration_seed_hook import IterationSeedHook
from .non_finite_hook import NonFiniteHook

__all__ = [
    'AtomicCheckpointHook', 'DynamicWeightsHook', 'IterationSeedHook',
    'NonFiniteHook'
]
