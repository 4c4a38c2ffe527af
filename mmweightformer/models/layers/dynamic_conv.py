# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Tuple, Union

import torch.nn.functional as F
from torch import Tensor, nn

from .adaptive_pool import adaptive_avg_pool2d
from .predicted_conv import PredictedDepthwiseConv2d


class DynamicDepthwiseConv2d(PredictedDepthwiseConv2d):
    r"""Depthwise convolution whose kernels are predicted from its input.

    The spatially adaptive prediction of WeightFormer: one K×K kernel for each
    sample and channel,

    .. math::
        X_p &= \mathrm{AdaptiveAvgPool}_{K \times K}(X) \\
        \Delta w &= \mathrm{Conv}_{1 \times 1}(
            \mathrm{GELU}(\mathrm{Conv}_{1 \times 1}(X_p))) \\
        y &= x * (w_0 + \Delta w / (\lVert \Delta w \rVert_F + 1)) + b

    where the norm runs over the K×K entries of a kernel and :math:`*` is the
    depthwise convolution with stride 1 and zero padding to the input's size.

    Args:
        channels (int): C.
        kernel_size (int | tuple[int, int]): K, odd, or a height and a width,
            of which (1, K) is the one for a sequence, a grid of height 1.
            Defaults to 3.
        normalize (bool): Whether :math:`\Delta w` is divided by its norm plus
            one, as published. Defaults to True.

    Raises:
        TypeError: If a size is not an int or ``normalize`` not a bool.
        ValueError: If ``channels`` is not positive or ``kernel_size`` not
            positive and odd.

    Shape:
        - Input: :math:`(B, C, h, w)`, any grid from 1×1, or a sequence
          :math:`(B, C, N)`, which is a grid of height 1.
        - Output: as the input.

    Attributes:
        weight (Tensor): :math:`w_0`, :math:`(C, 1, K, K)`.
        bias (Tensor): :math:`b`, :math:`(C,)`.
        conv1 (nn.Conv2d): The first 1×1 convolution of the prediction.
        conv2 (nn.Conv2d): The second one, without bias.
    """

    def __init__(self,
                 channels: int,
                 kernel_size: Union[int, Tuple[int, int]] = 3,
                 normalize: bool = True) -> None:
        super().__init__(channels, kernel_size, normalize)
        self.conv1 = nn.Conv2d(channels, channels, 1)
        self.conv2 = nn.Conv2d(channels, channels, 1, bias=False)

    def predict_delta(self, x: Tensor) -> Tensor:
        pooled = adaptive_avg_pool2d(x, self.kernel_size)
        # As linear layers, which are the faster ones for K×K places.
        pooled = pooled.flatten(2).mT
        hidden = F.linear(pooled, self.conv1.weight.flatten(1),
                          self.conv1.bias)
        delta = F.linear(F.gelu(hidden), self.conv2.weight.flatten(1))
        return delta.mT.unflatten(2, self.kernel_size)
