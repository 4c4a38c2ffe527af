# Copyright (c) mmweightformer contributors. All rights reserved.
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_int
from .adaptive_pool import adaptive_avg_pool2d
from .precision import autocast_disabled
from .tracing import is_traced


class DynamicDepthwiseConv2d(nn.Module):
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
        kernel_size (int): K, odd. Defaults to 3.

    Raises:
        TypeError: If an argument is not an int.
        ValueError: If ``channels`` is not positive or ``kernel_size`` not a
            positive odd number.

    Shape:
        - Input: :math:`(B, C, h, w)`, any grid from 1×1.
        - Output: :math:`(B, C, h, w)`.

    Attributes:
        weight (Tensor): :math:`w_0`, :math:`(C, 1, K, K)`.
        bias (Tensor): :math:`b`, :math:`(C,)`.
        conv1 (nn.Conv2d): The first 1×1 convolution of the prediction.
        conv2 (nn.Conv2d): The second one, without bias.
    """

    def __init__(self, channels: int, kernel_size: int = 3) -> None:
        super().__init__()
        check_int('channels', channels, 1)
        check_int('kernel_size', kernel_size, 1)
        if kernel_size % 2 == 0:
            raise ValueError(f'kernel_size must be odd, got {kernel_size}')
        self.channels = channels
        self.kernel_size = kernel_size
        self.weight = nn.Parameter(
            torch.empty(channels, 1, kernel_size, kernel_size))
        self.bias = nn.Parameter(torch.empty(channels))
        self.conv1 = nn.Conv2d(channels, channels, 1)
        self.conv2 = nn.Conv2d(channels, channels, 1, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for param in self.weight, self.bias:
            nn.init.trunc_normal_(param, std=0.02)
        for conv in self.conv1, self.conv2:
            conv.reset_parameters()

    def predict(self, x: Tensor) -> Tensor:
        """The normalised kernel delta of each sample.

        Args:
            x (Tensor): Features, :math:`(B, C, h, w)`.

        Returns:
            Tensor: :math:`(B, C, K, K)`, in float32 or wider.
        """
        pooled = adaptive_avg_pool2d(x, self.kernel_size)
        # As linear layers, which are the faster ones for K×K places.
        pooled = pooled.flatten(2).mT
        hidden = F.linear(pooled, self.conv1.weight.flatten(1),
                          self.conv1.bias)
        delta = F.linear(F.gelu(hidden), self.conv2.weight.flatten(1))
        delta = delta.mT.unflatten(2, (self.kernel_size, self.kernel_size))
        # A sum of squares leaves the range of float16.
        with autocast_disabled(x.device):
            delta = delta.to(torch.promote_types(x.dtype, torch.float32))
            norm = torch.linalg.vector_norm(delta, dim=(2, 3), keepdim=True)
            return delta / (norm + 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, h, w = x.shape
        kernels = (self.weight.squeeze(1) + self.predict(x)).to(x.dtype)
        if is_traced():
            return self._sum_of_shifts(x, kernels)
        if batch == 0:
            # No convolution takes zero groups. All parameters still take
            # part, as distributed training wants them to.
            return x + (kernels.sum() + self.bias.sum()) * 0
        kernels = kernels.unsqueeze(2)
        if x.device.type == 'cpu':
            # Sample by sample, a channels-last input stays where it is.
            return torch.cat([
                F.conv2d(
                    sample,
                    kernel,
                    self.bias,
                    padding=self.kernel_size // 2,
                    groups=channels)
                for sample, kernel in zip(x.split(1), kernels.unbind())
            ])
        # A group for each sample and channel.
        y = F.conv2d(
            x.reshape(1, batch * channels, h, w),
            kernels.flatten(0, 1),
            self.bias.repeat(batch),
            padding=self.kernel_size // 2,
            groups=batch * channels)
        return y.reshape(batch, channels, h, w)

    def _sum_of_shifts(self, x: Tensor, kernels: Tensor) -> Tensor:
        """The same without groups, of which ONNX takes no unknown number."""
        h, w = x.shape[2:]
        padded = F.pad(x, (self.kernel_size // 2, ) * 4)
        y = self.bias[:, None, None]
        for i in range(self.kernel_size):
            for j in range(self.kernel_size):
                kernel = kernels[:, :, i, j, None, None]
                y = y + padded[:, :, i:i + h, j:j + w] * kernel
        return y

    def extra_repr(self) -> str:
        return f'{self.channels}, kernel_size={self.kernel_size}'
