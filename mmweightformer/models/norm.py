# Copyright (c) mmweightformer contributors. All rights reserved.
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from .checks import check_int, check_number


@MODELS.register_module('LN2d')
class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of (B, C, H, W) features.

    The norm of ViTDet's pyramid and heads, in any scope as
    ``norm_cfg=dict(type='LN2d', eps=1e-6)``; without ``eps`` mmcv's
    ``build_norm_layer`` sets 1e-5.

    Args:
        num_channels (int): C.
        eps (float): Added to the variance. Defaults to 1e-6.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument has a wrong value.
    """

    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        check_int('num_channels', num_channels, 1)
        check_number('eps', eps, '[0, inf)')
        super().__init__(num_channels, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(
            x.permute(0, 2, 3, 1), self.normalized_shape, self.weight,
            self.bias, self.eps)
        # mmcv's operators, RoIAlign among them, read memory as contiguous.
        return x.permute(0, 3, 1, 2).contiguous()
