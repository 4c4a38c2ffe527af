# Copyright (c) mmweightformer contributors. All rights reserved.
from .simple_feature_pyramid import SimpleFeaturePyramid

__all__ = ['SimpleFeaturePyramid']
