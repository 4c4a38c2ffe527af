# Copyright (c) mmweightformer contributors. All rights reserved.
from .mean_pooling import MeanPooling
from .simple_feature_pyramid import SimpleFeaturePyramid

__all__ = ['MeanPooling', 'SimpleFeaturePyramid']
