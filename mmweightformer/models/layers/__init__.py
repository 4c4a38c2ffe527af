# Copyright (c) mmweightformer contributors. All rights reserved.
from .conv_strategies import (AmpDirDynamicDepthwiseConv2d,
                              ConvDynamicDepthwiseConv2d,
                              GAPDynamicDepthwiseConv2d)
from .dynamic_conv import DynamicDepthwiseConv2d
from .dynamic_linear import DynamicLinear
from .linear_strategies import (DeepDynamicLinear, GAPDynamicLinear,
                                NonlinearDynamicLinear,
                                UnactivatedDynamicLinear)
from .predicted_conv import PredictedDepthwiseConv2d
from .predicted_linear import PredictedLinear

__all__ = [
    'AmpDirDynamicDepthwiseConv2d', 'ConvDynamicDepthwiseConv2d',
    'DeepDynamicLinear', 'DynamicDepthwiseConv2d', 'DynamicLinear',
    'GAPDynamicDepthwiseConv2d', 'GAPDynamicLinear', 'NonlinearDynamicLinear',
    'PredictedDepthwiseConv2d', 'PredictedLinear', 'UnactivatedDynamicLinear'
]
