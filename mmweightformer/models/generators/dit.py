# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Any, Dict

import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from .diffusion_transformer import DiffusionTransformer, Modulation, modulate


def sizes_of(depth: int) -> Dict[str, dict]:
    """The published sizes S and B with patches of 2, 4 and 8."""
    return {
        f'{name}/{patch_size}':
        dict(embed_dims=embed_dims, depth=depth, patch_size=patch_size)
        for name, embed_dims in dict(s=384, b=768).items()
        for patch_size in (2, 4, 8)
    }


class DiTBlock(nn.Module):
    """Self-attention and an MLP, with modulated norms and gated branches.

    Args:
        embed_dims (int): D.
        num_heads (int): Number of heads, a divisor of D.
        hidden_dims (int): Width of the MLP.
    """

    def __init__(self, embed_dims: int, num_heads: int,
                 hidden_dims: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(embed_dims, 1e-6, elementwise_affine=False)
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.norm2 = nn.LayerNorm(embed_dims, 1e-6, elementwise_affine=False)
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.act = nn.GELU('tanh')
        self.fc2 = nn.Linear(hidden_dims, embed_dims)
        self.modulation = Modulation(embed_dims, 6)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """(B, h, w, D), (B, D) → (B, h, w, D)."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulation(
            condition)
        branch = self.attention(modulate(self.norm1(x), shift_a, scale_a))
        x = x + gate_a[:, None, None] * branch
        branch = modulate(self.norm2(x), shift_m, scale_m)
        branch = self.fc2(self.act(self.fc1(branch)))
        return x + gate_m[:, None, None] * branch

    def attention(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h, w, D)."""
        qkv = self.qkv(x.flatten(1, 2)).unflatten(2, (3, self.num_heads, -1))
        y = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
        return self.proj(y.transpose(1, 2).flatten(2)).view_as(x)


@MODELS.register_module()
class DiT(DiffusionTransformer):
    """DiT: the diffusion transformer with attention, to compare with.

    Args:
        arch (str | dict): One of 's/2', 's/4', 's/8', 'b/2', 'b/4', 'b/8', or
            a dict of

            - **embed_dims** (int): D, the size of each token, a multiple of
              4.
            - **depth** (int): Number of blocks.
            - **patch_size** (int): Size and stride of the patches.
            - **num_heads** (int): Number of heads, a divisor of D.
            - **mlp_ratio** (float): Width of the MLP over D. Defaults to 4.

            Defaults to 's/2'.
        in_channels (int): As of :class:`DiffusionTransformer`.
        num_classes (int): As of :class:`DiffusionTransformer`.
        with_cp (bool): As of :class:`DiffusionTransformer`.
        init_cfg (dict | list[dict], optional): As of
            :class:`DiffusionTransformer`.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument has a wrong value.
    """
    arch_zoo = {
        name: dict(arch, num_heads=arch['embed_dims'] // 64)
        for name, arch in sizes_of(depth=12).items()
    }
    arch_defaults = dict(
        embed_dims=None,
        depth=None,
        patch_size=None,
        num_heads=None,
        mlp_ratio=4)

    def _build_block(self, index: int, arch: Dict[str, Any]) -> DiTBlock:
        if self.embed_dims % arch['num_heads']:
            raise ValueError(
                f"arch['num_heads'] ({arch['num_heads']}) must divide "
                f"arch['embed_dims'] ({self.embed_dims})")
        return DiTBlock(self.embed_dims, arch['num_heads'],
                        round(self.embed_dims * arch['mlp_ratio']))
