# Copyright (c) mmweightformer contributors. All rights reserved.
import pytest
import torch

from mmweightformer.models import MeanPooling


@pytest.mark.parametrize('container', [list, tuple])
def test_means_of_each_map(container):
    feats = container([torch.rand(2, 3, 4, 5), torch.rand(2, 7, 1, 2)])
    outs = MeanPooling()(feats)
    assert isinstance(outs, tuple)
    for out, feat in zip(outs, feats):
        torch.testing.assert_close(out, feat.flatten(2).mean(dim=2))
    assert len(outs) == 2
