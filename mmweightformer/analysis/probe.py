# Copyright (c) mmweightformer contributors. All rights reserved.
import torch
import torch.nn.functional as F
from torch import Tensor


def patch_detail(features: Tensor,
                 mask: Tensor,
                 cells: int = 4,
                 penalty: float = 10.) -> float:
    """How much of a mask within each patch its token still tells.

    A linear ridge regression reads the share of the mask in each of
    ``cells × cells`` cells of a patch from the patch's token. It is fitted to
    the first three quarters of the images and judged on the rest.

    Args:
        features (Tensor): Tokens (B, C, h, w) of a backbone.
        mask (Tensor): Masks (B, H, W) of the images, 0 or 1, H and W
            multiples of h and w.
        cells (int): Cells along a side of a patch. Defaults to 4.
        penalty (float): That of the ridge, for standardized features.
            Defaults to 10.

    Returns:
        float: R², the share of the cells' variance that is explained: 1 is
        all, 0 no more than their mean.
    """
    b, c, h, w = features.shape
    target = F.adaptive_avg_pool2d(mask[:, None].double(),
                                   (h * cells, w * cells))
    target = F.pixel_unshuffle(target, cells).permute(0, 2, 3, 1).flatten(0, 2)
    tokens = features.permute(0, 2, 3, 1).flatten(0, 2).double()
    split = b * 3 // 4 * h * w
    mean, std = tokens[:split].mean(0), tokens[:split].std(0)
    tokens = (tokens - mean) / (std + 1e-6)
    centre = target[:split].mean(0)
    gram = tokens[:split].T @ tokens[:split] + penalty * torch.eye(
        c, dtype=tokens.dtype)
    weight = torch.linalg.solve(gram,
                                tokens[:split].T @ (target[:split] - centre))
    error = target[split:] - centre - tokens[split:] @ weight
    spread = target[split:] - target[split:].mean(0)
    return (1 - error.square().sum() / spread.square().sum()).item()
