# Copyright (c) mmweightformer contributors. All rights reserved.
from .dynamic_weights_hook import DynamicWeightsHook

__all__ = ['DynamicWeightsHook']
