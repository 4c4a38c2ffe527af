# Copyright (c) mmweightformer contributors. All rights reserved.
from .weightformer import WeightFormer

__all__ = ['WeightFormer']
