# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import List, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmcv.cnn import ConvModule, build_norm_layer
from mmengine.model import BaseModule, ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..checks import (check_cfg, check_choice, check_init_cfg, check_int,
                      is_sequence)
from ..layers.tracing import is_traced


class MaxPool2d(nn.MaxPool2d):
    """Max pooling by 2 that is traced alike for odd and even sizes."""

    def forward(self, x: Tensor) -> Tensor:
        if not is_traced():
            return super().forward(x)
        x = F.pad(x, (0, 1, 0, 1), value=float('-inf'))
        x = torch.maximum(x[..., :-1:2, :], x[..., 1::2, :])
        return torch.maximum(x[..., :-1:2], x[..., 1::2])


@MODELS.register_module()
class SimpleFeaturePyramid(BaseModule):
    """The feature pyramid of ViTDet, from one feature map of a plain backbone.

    Each level resamples the backbone's last feature map by its own scale
    factor: 4 by two transposed convolutions, 2 by one, 1/2 by max pooling.
    A 1×1 and a 3×3 convolution, each followed by a norm, then bring it to
    ``out_channels``. Further levels subsample the last one by 2.

    Source: `Exploring Plain Vision Transformer Backbones for Object Detection
    <https://arxiv.org/abs/2203.16527>`_, section 3.

    Args:
        in_channels (int): Channels of the backbone's last feature map.
        out_channels (int): Channels of each level. Defaults to 256.
        scale_factors (Sequence[float]): Size of each level relative to the
            backbone's feature map, of 4, 2, 1 and 0.5. Defaults to
            (4, 2, 1, 0.5), which are strides 4, 8, 16, 32 behind a backbone
            of stride 16.
        num_outs (int): Number of levels, not less than of scale factors.
            Defaults to 5.
        norm_cfg (dict): Config of the norms. Defaults to
            ``dict(type='LN2d', eps=1e-6)``.
        init_cfg (dict | list[dict], optional): Initialization config.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument has a wrong value, or the input other
            channels than ``in_channels``.

    Examples:
        >>> import torch
        >>> from mmweightformer.models import SimpleFeaturePyramid
        >>> neck = SimpleFeaturePyramid(in_channels=192)
        >>> for out in neck((torch.rand(1, 192, 8, 12), )):
        ...     print(tuple(out.shape))
        (1, 256, 32, 48)
        (1, 256, 16, 24)
        (1, 256, 8, 12)
        (1, 256, 4, 6)
        (1, 256, 2, 3)
    """

    def __init__(self,
                 in_channels: int,
                 out_channels: int = 256,
                 scale_factors: Sequence[float] = (4, 2, 1, 0.5),
                 num_outs: int = 5,
                 norm_cfg: dict = dict(type='LN2d', eps=1e-6),
                 init_cfg: Union[dict, List[dict], None] = None) -> None:
        check_init_cfg(init_cfg)
        super().__init__(init_cfg=init_cfg)
        check_int('in_channels', in_channels, 4)
        check_int('out_channels', out_channels, 1)
        if not is_sequence(scale_factors) or len(scale_factors) == 0:
            raise TypeError('scale_factors must be a sequence of at least '
                            f'one, got {scale_factors!r}')
        for scale in scale_factors:
            check_choice('a scale factor in scale_factors', scale,
                         (4, 2, 1, 0.5))
        check_int('num_outs', num_outs, len(scale_factors))
        check_cfg('norm_cfg', norm_cfg,
                  lambda cfg: build_norm_layer(cfg, out_channels))
        self.in_channels = in_channels
        self.num_outs = num_outs
        self.levels = ModuleList()
        for scale in scale_factors:
            resample, channels = self._resample(scale, norm_cfg)
            self.levels.append(
                nn.Sequential(
                    *resample,
                    ConvModule(
                        channels,
                        out_channels,
                        1,
                        norm_cfg=norm_cfg,
                        act_cfg=None),
                    ConvModule(
                        out_channels,
                        out_channels,
                        3,
                        padding=1,
                        norm_cfg=norm_cfg,
                        act_cfg=None)))

    def _resample(self, scale: float,
                  norm_cfg: dict) -> Tuple[List[nn.Module], int]:
        """Layers that resample by ``scale``, and their output's channels."""
        channels = self.in_channels
        if scale == 1:
            return [], channels
        if scale == 0.5:
            # Rounding up keeps the odd last row and column, and a grid of one.
            return [MaxPool2d(2, ceil_mode=True)], channels
        layers = [nn.ConvTranspose2d(channels, channels // 2, 2, stride=2)]
        if scale == 4:
            layers += [
                check_cfg('norm_cfg', norm_cfg,
                          lambda cfg: build_norm_layer(cfg, channels // 2)[1]),
                nn.GELU(),
                nn.ConvTranspose2d(channels // 2, channels // 4, 2, stride=2)
            ]
        return layers, channels // int(scale)

    def forward(self, inputs: Sequence[Tensor]) -> Tuple[Tensor, ...]:
        """Last of the (B, in_channels, h, w) inputs → ``num_outs`` levels."""
        if isinstance(inputs, Tensor) or not inputs:
            raise TypeError('the input must be a sequence of feature maps, '
                            f'got {type(inputs).__name__}')
        x = inputs[-1]
        if x.shape[1] != self.in_channels:
            raise ValueError(
                f'the feature map must have in_channels={self.in_channels} '
                f'channels, got {x.shape[1]}')
        outs = [level(x) for level in self.levels]
        while len(outs) < self.num_outs:
            outs.append(outs[-1][..., ::2, ::2].contiguous())
        return tuple(outs)
