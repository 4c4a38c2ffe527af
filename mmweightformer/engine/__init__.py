# Copyright (c) mmweightformer contributors. All rights reserved.
from .hooks import (AtomicCheckpointHook, DynamicWeightsHook,
                    IterationSeedHook, NonFiniteHook)
from .optimizers import LayerDecayOptimWrapperConstructor

__all__ = [
    'AtomicCheckpointHook', 'DynamicWeightsHook', 'IterationSeedHook',
    'LayerDecayOptimWrapperConstructor', 'NonFiniteHook'
]
