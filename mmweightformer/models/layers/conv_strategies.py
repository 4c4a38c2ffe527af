# Copyright (c) mmweightformer contributors. All rights reserved.
"""The predictions that WeightFormer's adaptive one is compared with.

The paper describes each by a line. The forms here are readings of these
lines, with the arguments and shapes of :class:`DynamicDepthwiseConv2d`.
"""
from typing import Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_int
from .adaptive_pool import adaptive_avg_pool2d
from .dynamic_conv import DynamicDepthwiseConv2d
from .precision import autocast_disabled
from .predicted_conv import PredictedDepthwiseConv2d
from .tracing import is_traced

KernelSize = Union[int, Tuple[int, int]]


class GAPDynamicDepthwiseConv2d(PredictedDepthwiseConv2d):
    r"""'GAP': kernels are predicted from a globally pooled vector.

    A reading: a bottleneck, as is usual where one vector predicts more
    entries than it has.

    .. math::
        \Delta w = W_2 \, \mathrm{GELU}(W_1 \bar{x} + b_1)

    Args:
        channels (int): C.
        kernel_size (int | tuple[int, int]): K. Defaults to 3.
        normalize (bool): As of :class:`PredictedDepthwiseConv2d`. Defaults to
            True.
        reduction (int): r, the bottleneck has C/r channels. Defaults to 4,
            which gives about the parameters of the adaptive prediction.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument has a wrong value, or ``reduction`` does
            not divide ``channels``.

    Attributes:
        conv1 (nn.Conv2d): :math:`W_1, b_1`, from C to C/r.
        conv2 (nn.Conv2d): :math:`W_2`, from C/r to C·K·K.
    """

    def __init__(self,
                 channels: int,
                 kernel_size: KernelSize = 3,
                 normalize: bool = True,
                 reduction: int = 4) -> None:
        super().__init__(channels, kernel_size, normalize)
        check_int('reduction', reduction, 1)
        if channels % reduction:
            raise ValueError(f'reduction ({reduction}) must divide channels '
                             f'({channels})')
        hidden = channels // reduction
        self.conv1 = nn.Conv2d(channels, hidden, 1)
        self.conv2 = nn.Conv2d(hidden, self.weight.numel(), 1, bias=False)

    def predict_delta(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=(2, 3), keepdim=True)
        delta = self.conv2(F.gelu(self.conv1(mean)))
        return delta.view(-1, self.channels, *self.kernel_size)


class AmpDirDynamicDepthwiseConv2d(DynamicDepthwiseConv2d):
    r"""'Amp-Dir': amplitude and direction are predicted apart.

    A reading: the adaptive prediction :math:`k` gives the direction of each
    kernel, the mean over the grid its amplitude.

    .. math::
        \Delta w = \mathrm{softplus}(W_a \bar{x} + b_a) \,
            k / \lVert k \rVert_F

    Attributes:
        amplitude (nn.Conv2d): :math:`W_a, b_a`, from C to C.
    """

    def __init__(self,
                 channels: int,
                 kernel_size: KernelSize = 3,
                 normalize: bool = True) -> None:
        super().__init__(channels, kernel_size, normalize)
        self.amplitude = nn.Conv2d(channels, channels, 1)

    def predict_delta(self, x: Tensor) -> Tensor:
        kernel = super().predict_delta(x)
        amplitude = self.amplitude(x.mean(dim=(2, 3), keepdim=True))
        # A sum of squares leaves the range of float16.
        with autocast_disabled(x.device):
            kernel, amplitude = (
                t.to(torch.promote_types(x.dtype, torch.float32))
                for t in (kernel, amplitude))
            return F.softplus(amplitude) * F.normalize(
                kernel.flatten(2), dim=2, eps=1e-6).view_as(kernel)


class ConvDynamicDepthwiseConv2d(PredictedDepthwiseConv2d):
    r"""'Conv': kernels are predicted by a convolution.

    A reading: a depthwise convolution of stride 2 looks at the grid before it
    is pooled to K×K, in place of a 1×1 convolution thereafter.

    .. math::
        \Delta w = \mathrm{Conv}_{1 \times 1}(\mathrm{AdaptiveAvgPool}_{
            K \times K}(\mathrm{GELU}(\mathrm{DWConv}_{K \times K}(X))))

    Attributes:
        conv1 (nn.Conv2d): The depthwise K×K convolution.
        conv2 (nn.Conv2d): The 1×1 convolution, without bias.
    """

    def __init__(self,
                 channels: int,
                 kernel_size: KernelSize = 3,
                 normalize: bool = True) -> None:
        super().__init__(channels, kernel_size, normalize)
        self.conv1 = nn.Conv2d(
            channels,
            channels,
            self.kernel_size,
            stride=2,
            padding=self.padding,
            groups=channels)
        self.conv2 = nn.Conv2d(channels, channels, 1, bias=False)

    def predict_delta(self, x: Tensor) -> Tensor:
        if x.shape[3] == 1 and not is_traced():
            # oneDNN's gradient of the weight, in bfloat16 and channels-last,
            # reads beyond a grid of width 1. Of width 2 the output is as wide.
            x = F.pad(x, (0, 1))
        hidden = F.gelu(self.conv1(x))
        return self.conv2(adaptive_avg_pool2d(hidden, self.kernel_size))
