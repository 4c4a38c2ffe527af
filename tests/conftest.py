# Copyright (c) mmweightformer contributors. All rights reserved.
"""Makes reference.py and helpers.py importable from all tests."""
import pytest
import torch
from hypothesis import settings

import mmweightformer  # noqa: F401

# The machines of CI are slow and shared: no deadline for an example.
settings.register_profile('default', deadline=None, max_examples=30)
settings.load_profile('default')


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
