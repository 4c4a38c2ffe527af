# Copyright (c) mmweightformer contributors. All rights reserved.
from .backbones import WeightFormer
from .generators import ClassConditionalDiffusion, DiT, WeightFormerDiT
from .layers import (DynamicDepthwiseConv2d, DynamicLinear,
                     PredictedDepthwiseConv2d, PredictedLinear)
from .necks import MeanPooling, SimpleFeaturePyramid
from .norm import LayerNorm2d

__all__ = [
    'ClassConditionalDiffusion', 'DiT', 'DynamicDepthwiseConv2d',
    'DynamicLinear', 'LayerNorm2d', 'MeanPooling', 'PredictedDepthwiseConv2d',
    'PredictedLinear', 'SimpleFeaturePyramid', 'WeightFormer',
    'WeightFormerDiT'
]
