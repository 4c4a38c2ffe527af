# Copyright (c) mmweightformer contributors. All rights reserved.
from .dynamic_conv import DynamicDepthwiseConv2d
from .dynamic_linear import DynamicLinear

__all__ = ['DynamicDepthwiseConv2d', 'DynamicLinear']
