# Copyright (c) mmweightformer contributors. All rights reserved.
"""What test_every_config.py and test_generation_configs.py rely on.

Under it they train each config, so that none has a parameter without a
gradient, and DistributedDataParallel need not look for such.
"""
import pytest
import torch
from miniature import forbid_unused_parameters
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from torch import nn


class Model(BaseModel):

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, inputs, mode):
        return dict(loss=self.used(inputs).sum())


def test_parameter_without_gradient_is_found(monkeypatch):
    forbid_unused_parameters(monkeypatch)
    model = Model()
    optim_wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1.))
    data = dict(inputs=torch.ones(1, 2))
    kept = model.used.weight.clone()
    with pytest.raises(AssertionError, match='unused.weight.*unused.bias'):
        model.train_step(data, optim_wrapper)
    assert torch.equal(model.used.weight, kept)
    model.unused.requires_grad_(False)
    model.train_step(data, optim_wrapper)
    assert not torch.equal(model.used.weight, kept)
