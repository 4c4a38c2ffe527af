# Copyright (c) mmweightformer contributors. All rights reserved.
from .hooks import DynamicWeightsHook
from .optimizers import LayerDecayOptimWrapperConstructor

__all__ = ['DynamicWeightsHook', 'LayerDecayOptimWrapperConstructor']
