# Copyright (c) mmweightformer contributors. All rights reserved.
"""What the diffusion transformers have in common, whatever their blocks."""
from typing import Any, Dict, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..arch import parse_arch
from ..checks import check_bool, check_init_cfg, check_int
from .embeddings import TimestepEmbedding, position_embedding


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """``x * (1 + scale) + shift``, (B, h, w, D), with both (B, D)."""
    return x * (1 + scale[:, None, None]) + shift[:, None, None]


class Modulation(nn.Sequential):
    """Shifts, scales and gates from the condition: SiLU, then a linear layer.

    Args:
        embed_dims (int): D.
        number (int): How many vectors of D there are.

    Shape:
        - Input: (B, D), the condition.
        - Output: ``number`` tensors of (B, D).
    """

    def __init__(self, embed_dims: int, number: int) -> None:
        super().__init__(nn.SiLU(), nn.Linear(embed_dims, number * embed_dims))
        self.number = number

    def forward(self, condition: Tensor) -> Tuple[Tensor, ...]:
        return super().forward(condition).chunk(self.number, dim=1)


class FinalLayer(nn.Module):
    """LayerNorm, modulated, and a linear layer to the pixels of a patch.

    Args:
        embed_dims (int): D.
        out_features (int): Size of an output token.
    """

    def __init__(self, embed_dims: int, out_features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embed_dims, 1e-6, elementwise_affine=False)
        self.modulation = Modulation(embed_dims, 2)
        self.linear = nn.Linear(embed_dims, out_features)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """(B, h, w, D), (B, D) → (B, h, w, out_features)."""
        return self.linear(modulate(self.norm(x), *self.modulation(condition)))


class DiffusionTransformer(BaseModule):
    """Base of DiT and its relatives, which differ in their blocks alone.

    It predicts the noise in an image or a latent, and what interpolates the
    log-variance of the step back, from the noisy one, the timestep and the
    class. Any height and width that ``patch_size`` divides work: the fixed
    2-D sine-cosine position embedding follows the grid.

    Args:
        arch (str | dict): The architecture.
        in_channels (int): C, of the image or the latent. Defaults to 4.
        num_classes (int): Number of classes. The label ``num_classes`` is the
            null class. Defaults to 1000.
        with_cp (bool): Whether to recompute each block's activations in the
            backward pass instead of keeping them. Defaults to False.
        init_cfg (dict | list[dict], optional): Initialization config.
            Defaults to the published initialization, which the constructor
            does.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument has a wrong value.
    """
    arch_zoo: Dict[str, dict] = {}
    arch_defaults: Dict[str, Any] = {}

    def __init__(self,
                 arch: Union[str, dict] = 's/2',
                 in_channels: int = 4,
                 num_classes: int = 1000,
                 with_cp: bool = False,
                 init_cfg: Union[dict, Sequence[dict], None] = None) -> None:
        check_init_cfg(init_cfg)
        super().__init__(init_cfg=init_cfg)
        arch = parse_arch(arch, self.arch_zoo, self.arch_defaults)
        check_int('in_channels', in_channels, 1)
        check_int('num_classes', num_classes, 1)
        check_bool('with_cp', with_cp)
        self.embed_dims = arch['embed_dims']
        if self.embed_dims % 4:
            raise ValueError("arch['embed_dims'] must be a multiple of 4, got "
                             f'{self.embed_dims}')
        self.patch_size = arch['patch_size']
        self.in_channels = in_channels
        self.out_channels = 2 * in_channels
        self.num_classes = num_classes
        self.with_cp = with_cp
        self.patch_embed = nn.Conv2d(in_channels, self.embed_dims,
                                     self.patch_size, self.patch_size)
        self.time_embed = TimestepEmbedding(self.embed_dims)
        self.label_embed = nn.Embedding(num_classes + 1, self.embed_dims)
        self.layers = ModuleList(
            self._build_block(i, arch) for i in range(arch['depth']))
        self.final_layer = FinalLayer(self.embed_dims,
                                      self.patch_size**2 * self.out_channels)
        self._init_as_published()

    def _build_block(self, index: int, arch: Dict[str, Any]) -> nn.Module:
        """A map from (B, h, w, D) and the condition, (B, D), to the first."""
        raise NotImplementedError

    def _init_as_published(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.patch_embed.weight.flatten(1))
        nn.init.zeros_(self.patch_embed.bias)
        for weight in (self.label_embed.weight, self.time_embed.fc1.weight,
                       self.time_embed.fc2.weight):
            nn.init.normal_(weight, std=0.02)
        nn.init.zeros_(self.final_layer.linear.weight)
        for module in self.modules():
            if isinstance(module, Modulation):
                nn.init.zeros_(module[1].weight)

    def forward(self, x: Tensor, timesteps: Tensor, labels: Tensor) -> Tensor:
        """Predict the noise and the variance.

        Args:
            x (Tensor): Noisy images or latents, (B, C, H, W).
            timesteps (Tensor): (B,), from 0.
            labels (Tensor): Classes, int64, (B,); ``num_classes`` for none.

        Returns:
            Tensor: (B, 2 C, H, W): the noise, then what interpolates the
            log-variance, -1 for the smallest and 1 for the largest.

        Raises:
            ValueError: If ``x`` has a wrong shape.
        """
        self._check_input(x)
        x = self.patch_embed(x).permute(0, 2, 3, 1)
        x = x + position_embedding(*x.shape[1:], x)
        condition = self.time_embed(timesteps) + self.label_embed(labels)
        for layer in self.layers:
            if self.with_cp and torch.is_grad_enabled():
                x = checkpoint(layer, x, condition, use_reentrant=False)
            else:
                x = layer(x, condition)
        x = self.final_layer(x, condition)
        # A token is p × p × 2C; pixel_shuffle takes the channels first.
        x = x.unflatten(3, (self.patch_size**2, -1)).transpose(3, 4)
        return F.pixel_shuffle(
            x.flatten(3).permute(0, 3, 1, 2), self.patch_size)

    def predict_guided(self, x: Tensor, timesteps: Tensor, labels: Tensor,
                       scale: float) -> Tensor:
        r"""Predict with classifier-free guidance.

        .. math::
            \epsilon = \epsilon(x, \emptyset) + s \,
                (\epsilon(x, y) - \epsilon(x, \emptyset))

        As published, the noise of the first three channels is guided; that of
        a fourth, and the variance, are those of the class.

        Args:
            x (Tensor): As of :meth:`forward`.
            timesteps (Tensor): As of :meth:`forward`.
            labels (Tensor): As of :meth:`forward`.
            scale (float): s; 1 for no guidance.

        Returns:
            Tensor: As of :meth:`forward`.
        """
        if scale == 1:
            return self(x, timesteps, labels)
        null = torch.full_like(labels, self.num_classes)
        out, free = self(
            x.repeat(2, 1, 1, 1), timesteps.repeat(2),
            torch.cat([labels, null])).chunk(2)
        return self.guide(out, free, scale)

    def guide(self, out: Tensor, free: Tensor, scale: float) -> Tensor:
        """Combine predictions for a class and for the null class.

        Args:
            out (Tensor): Of the class, (B, 2 C, H, W).
            free (Tensor): Of the null class, as ``out``.
            scale (float): As of :meth:`predict_guided`.

        Returns:
            Tensor: As ``out``.
        """
        guided = min(3, self.in_channels)
        noise = torch.lerp(free[:, :guided], out[:, :guided], scale)
        return torch.cat([noise, out[:, guided:]], dim=1)

    def _check_input(self, x: Tensor) -> None:
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(
                f'the input must be (B, {self.in_channels}, H, W), as '
                f'in_channels={self.in_channels}, got {tuple(x.shape)}')
        h, w = x.shape[2:]
        if h % self.patch_size or w % self.patch_size or not h or not w:
            raise ValueError(
                'height and width must be positive multiples of patch_size='
                f'{self.patch_size}, got {h}×{w}')
