# Copyright (c) mmweightformer contributors. All rights reserved.
import pytest
import torch
import torch.nn.functional as F

from mmweightformer.analysis import patch_detail


def test_patch_detail():
    """All of it in the cells themselves, a half in half of them, or none."""
    mask = (torch.rand(40, 32, 48) < 0.5).float()
    cells = F.pixel_unshuffle(F.avg_pool2d(mask[:, None], 4), 4)
    assert cells.shape == (40, 16, 2, 3)
    mixed = torch.einsum('oc,bchw->bohw', torch.randn(16, 16), cells)
    assert patch_detail(mixed, mask, penalty=1e-6) == pytest.approx(1)
    half = patch_detail(cells[:, :8], mask, penalty=1e-6)
    assert half == pytest.approx(0.5, abs=0.1)
    noise = torch.randn(40, 4, 2, 3)
    assert patch_detail(noise, mask) == pytest.approx(0, abs=0.2)
