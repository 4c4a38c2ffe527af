# Copyright (c) mmweightformer contributors. All rights reserved.
from .optimizers import LayerDecayOptimWrapperConstructor

__all__ = ['LayerDecayOptimWrapperConstructor']
