# Copyright (c) mmweightformer contributors. All rights reserved.
from .generation_metric import GenerationMetric
from .image_features import ClassifierFeatures, InceptionFeatures

__all__ = ['ClassifierFeatures', 'GenerationMetric', 'InceptionFeatures']
