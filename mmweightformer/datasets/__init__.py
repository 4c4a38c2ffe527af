# Copyright (c) mmweightformer contributors. All rights reserved.
from .load_latents import LoadLatents

__all__ = ['LoadLatents']
