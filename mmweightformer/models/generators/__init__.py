# Copyright (c) mmweightformer contributors. All rights reserved.
from .class_conditional_diffusion import ClassConditionalDiffusion
from .dit import DiT
from .weightformer_dit import WeightFormerDiT

__all__ = ['ClassConditionalDiffusion', 'DiT', 'WeightFormerDiT']
