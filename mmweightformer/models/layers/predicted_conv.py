# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_bool, check_int
from .precision import autocast_disabled
from .tracing import is_traced


class PredictedDepthwiseConv2d(nn.Module):
    r"""Base of the depthwise convolutions that predict their kernels.

    One K×K kernel for each sample and channel,

    .. math::
        y = x * (w_0 + \Delta w(x) / (\lVert \Delta w(x) \rVert_F + 1)) + b

    where the norm runs over the entries of a kernel and :math:`*` is the
    depthwise convolution with stride 1 and zero padding to the input's size.
    A subclass says in :meth:`predict_delta` how :math:`\Delta w` comes from
    the grid. It takes part in a config once it is registered in MMEngine's
    ``MODELS``, as ``dynamic_conv`` of
    :class:`~mmweightformer.models.WeightFormer`, which builds it from
    ``channels`` and ``kernel_size``.

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
    """

    def __init__(self,
                 channels: int,
                 kernel_size: Union[int, Tuple[int, int]] = 3,
                 normalize: bool = True) -> None:
        super().__init__()
        check_int('channels', channels, 1)
        check_bool('normalize', normalize)
        sizes = kernel_size if isinstance(kernel_size,
                                          (tuple, list)) else [kernel_size] * 2
        if len(sizes) != 2:
            raise ValueError('kernel_size must be one size or two, got '
                             f'{kernel_size}')
        for size in sizes:
            check_int('kernel_size', size, 1)
            if size % 2 == 0:
                raise ValueError(f'kernel_size must be odd, got {kernel_size}')
        self.channels = channels
        self.kernel_size = tuple(sizes)
        self.padding = tuple(size // 2 for size in sizes)
        self.normalize = normalize
        self.weight = nn.Parameter(torch.empty(channels, 1, *sizes))
        self.bias = nn.Parameter(torch.empty(channels))
        for param in self.weight, self.bias:
            nn.init.trunc_normal_(param, std=0.02)

    def predict_delta(self, x: Tensor) -> Tensor:
        r"""What the kernels of each sample change by, not yet normalized.

        Args:
            x (Tensor): Features, :math:`(B, C, h, w)`.

        Returns:
            Tensor: :math:`\Delta w`, :math:`(B, C, K, K)`.
        """
        raise NotImplementedError

    def predict(self, x: Tensor) -> Tensor:
        r"""The kernels of each sample.

        Args:
            x (Tensor): Features, :math:`(B, C, h, w)`.

        Returns:
            Tensor: The sum of :math:`w_0` and the normalized delta,
            :math:`(B, C, K, K)`.
        """
        delta = self.predict_delta(x)
        # A sum of squares leaves the range of float16.
        with autocast_disabled(x.device):
            delta = delta.to(torch.promote_types(x.dtype, torch.float32))
            if self.normalize:
                norm = torch.linalg.vector_norm(
                    delta, dim=(2, 3), keepdim=True)
                delta = delta / (norm + 1)
            return (self.weight.squeeze(1) + delta).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            return self.forward(x.unsqueeze(2)).squeeze(2)
        if x.ndim != 4:
            raise ValueError('the input must be (B, C, h, w) or (B, C, N), '
                             f'got {tuple(x.shape)}')
        batch, channels, h, w = x.shape
        kernels = self.predict(x)
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
                    padding=self.padding,
                    groups=channels)
                for sample, kernel in zip(x.split(1), kernels.unbind())
            ])
        # A group for each sample and channel.
        y = F.conv2d(
            x.reshape(1, batch * channels, h, w),
            kernels.flatten(0, 1),
            self.bias.repeat(batch),
            padding=self.padding,
            groups=batch * channels)
        return y.reshape(batch, channels, h, w)

    def _sum_of_shifts(self, x: Tensor, kernels: Tensor) -> Tensor:
        """The same without groups, of which ONNX takes no unknown number."""
        h, w = x.shape[2:]
        top, left = self.padding
        padded = F.pad(x, (left, left, top, top))
        y = self.bias[:, None, None]
        for i in range(self.kernel_size[0]):
            for j in range(self.kernel_size[1]):
                kernel = kernels[:, :, i, j, None, None]
                y = y + padded[:, :, i:i + h, j:j + w] * kernel
        return y

    def extra_repr(self) -> str:
        text = f'{self.channels}, kernel_size={self.kernel_size}'
        return text if self.normalize else f'{text}, normalize=False'
