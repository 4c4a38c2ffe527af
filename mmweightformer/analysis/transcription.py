# Copyright (c) mmweightformer contributors. All rights reserved.
"""WeightFormer as its formulas read, to measure what our order of them wins.
"""
from typing import Sequence, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..models import DynamicDepthwiseConv2d, DynamicLinear, WeightFormer
from ..models.backbones.weightformer import WeightFormerBlock


@MODELS.register_module()
class LiteralWeightFormer(WeightFormer):
    """WeightFormer computed formula by formula, as it is published.

    The parameters, and all options but those below, are those of
    :class:`WeightFormer`, and so are the outputs and gradients, to rounding.
    Between the layers the tokens are B×N×C, turned into contiguous B×C×h×w
    images and back for each depthwise convolution and each pooling. Both
    factors of a predicted weight are expanded to full width before they are
    multiplied, the kernels of a batch are one convolution of B·C groups, and
    everything is computed in the model's dtype.

    ``out_type`` is 'featmap', ``pad`` and ``with_cp`` have no effect, and the
    size of an image must be a multiple of ``patch_size``.
    """
    out_types = ('featmap', )

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            if isinstance(layer.norm1, nn.Identity):
                continue
            if (type(layer.fc1),
                    type(layer.dwconv)) != (DynamicLinear,
                                            DynamicDepthwiseConv2d):
                raise ValueError(
                    'LiteralWeightFormer is the published network: '
                    "dynamic_linear must be 'bilateral' and dynamic_conv "
                    f"'adaptive', got {type(layer.fc1).__name__} and "
                    f'{type(layer.dwconv).__name__}')
        # Whatever layout of memory suits our order.
        self.to(memory_format=torch.contiguous_format)

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """(B, in_channels, H, W) → (B, C, h, w) for each ``out_indices``."""
        size = self.patch_size
        if x.shape[2] % size or x.shape[3] % size:
            raise ValueError(f'the height and width of an image must be '
                             f'multiples of patch_size={size}, got '
                             f'{x.shape[2]}×{x.shape[3]}')
        conv = self.patch_embed.projection
        x = F.conv2d(x, conv.weight, conv.bias, stride=size)
        grid = x.shape[2:]
        x = self.drop(self.patch_embed.norm(x.flatten(2).transpose(1, 2)))
        outs = {}
        for i, layer in enumerate(self.layers):
            x = _block(layer, x, grid)
            if i in self.out_indices:
                last = self.final_norm and i == self.depth - 1
                outs[i] = _to_image(self.norm(x) if last else x, grid)
        return tuple(outs[i] for i in self.out_indices)


def _to_image(x: Tensor, grid: Sequence[int]) -> Tensor:
    """(B, N, C) → (B, C, h, w)."""
    return x.transpose(1, 2).reshape(len(x), -1, *grid)


def _block(layer: WeightFormerBlock, x: Tensor, grid: Sequence[int]) -> Tensor:
    dynamic = isinstance(layer.fc1, DynamicLinear)
    if dynamic:
        x = layer.norm1(x)
    image = _to_image(x, grid)
    conv = layer.dwconv
    if dynamic:
        y = _dynamic_depthwise_conv(conv, image)
    else:
        y = F.conv2d(
            image,
            conv.weight,
            conv.bias,
            padding=conv.weight.shape[-1] // 2,
            groups=len(conv.weight))
    x = x + y.flatten(2).transpose(1, 2)
    y = layer.norm2(x)
    if dynamic:
        y = _dynamic_linear(layer.fc1, y, grid)
    else:
        y = F.linear(y, layer.fc1.weight, layer.fc1.bias)
    y = layer.drop(layer.act(y))
    y = layer.drop(F.linear(y, layer.fc2.weight, layer.fc2.bias))
    return x + layer.drop_path(y)


def _dynamic_depthwise_conv(layer: DynamicDepthwiseConv2d,
                            x: Tensor) -> Tensor:
    batch, channels, h, w = x.shape
    size = layer.weight.shape[-1]
    kernel = F.adaptive_avg_pool2d(x, size)
    kernel = F.conv2d(kernel, layer.conv1.weight, layer.conv1.bias)
    kernel = F.conv2d(F.gelu(kernel), layer.conv2.weight)
    norm = torch.linalg.vector_norm(kernel, dim=(2, 3), keepdim=True)
    kernel = layer.weight + (kernel / (norm + 1)).unsqueeze(2)
    y = F.conv2d(
        x.reshape(1, batch * channels, h, w),
        kernel.flatten(0, 1),
        layer.bias.repeat(batch),
        padding=size // 2,
        groups=batch * channels)
    return y.reshape(x.shape)


def _dynamic_linear(layer: DynamicLinear, x: Tensor,
                    grid: Sequence[int]) -> Tensor:
    tokens, channels = x.shape[1:]
    window = [min(size, 2) for size in grid]
    pooled = F.avg_pool2d(_to_image(x, grid), window)
    factors = F.linear(
        pooled.flatten(2).transpose(1, 2), layer.proj.weight, layer.proj.bias)
    a, b = factors.split((len(layer.w1), len(layer.w2)), dim=-1)
    u = F.silu(a) @ layer.w1
    v = F.silu(b) @ layer.w2
    delta = u.transpose(1, 2) @ v * (channels**-0.5 / tokens)
    norm = torch.linalg.vector_norm(delta, dim=1, keepdim=True)
    delta = delta / (norm + 1)
    return x @ (layer.weight + delta) + layer.bias
