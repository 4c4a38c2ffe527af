# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Any, Dict, Sequence, Union

from mmengine.registry import MODELS
from torch import Tensor, nn

from ..arch import WEIGHTFORMER
from ..backbones.weightformer import WeightFormerBlock
from ..strategies import Strategy, check_strategies
from .diffusion_transformer import DiffusionTransformer, Modulation, modulate
from .dit import sizes_of


class WeightFormerDiTBlock(WeightFormerBlock):
    """A block of WeightFormer with modulated inputs and gated branches.

    Static or dynamic, it first replaces ``x`` by ``LN(x)``.

    Args:
        embed_dims (int): D.
        **kwargs: The others of :class:`WeightFormerBlock`.
    """

    def __init__(self, embed_dims: int, **kwargs) -> None:
        super().__init__(
            embed_dims,
            drop_rate=0.,
            drop_path_rate=0.,
            norm_cfg=dict(type='LN', eps=1e-6, elementwise_affine=False),
            act_cfg=dict(type='GELU', approximate='tanh'),
            **kwargs)
        self.norm1 = nn.LayerNorm(embed_dims, 1e-6, elementwise_affine=False)
        self.modulation = Modulation(embed_dims, 6)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """(B, h, w, D), (B, D) → (B, h, w, D)."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulation(
            condition)
        x = self.norm1(x)
        branch = modulate(x, shift_a, scale_a).permute(0, 3, 1, 2)
        branch = self.dwconv(branch).permute(0, 2, 3, 1)
        x = x + gate_a[:, None, None] * branch
        branch = self.mlp(modulate(self.norm2(x), shift_m, scale_m))
        return x + gate_m[:, None, None] * branch


@MODELS.register_module()
class WeightFormerDiT(DiffusionTransformer):
    """WeightFormerDiT: DiT with WeightFormer's blocks in place of attention.

    It is linear in tokens, and deeper than DiT by 15 blocks to 12.

    Args:
        arch (str | dict): One of 's/2', 's/4', 's/8', 'b/2', 'b/4', 'b/8', or
            a dict with **patch_size** (int) and the keys of
            :class:`WeightFormer`'s ``arch``, whose ``embed_dims`` must be a
            multiple of 4. Defaults to 's/2'.
        in_channels (int): As of :class:`DiffusionTransformer`.
        num_classes (int): As of :class:`DiffusionTransformer`.
        with_cp (bool): As of :class:`DiffusionTransformer`.
        dynamic_linear (str | dict): As of :class:`WeightFormer`.
        dynamic_conv (str | dict): As of :class:`WeightFormer`.
        init_cfg (dict | list[dict], optional): As of
            :class:`DiffusionTransformer`.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument has a wrong value.
    """
    arch_zoo = sizes_of(depth=15)
    arch_defaults = dict(WEIGHTFORMER, patch_size=None)

    def __init__(self,
                 arch: Union[str, dict] = 's/2',
                 in_channels: int = 4,
                 num_classes: int = 1000,
                 with_cp: bool = False,
                 dynamic_linear: Strategy = 'bilateral',
                 dynamic_conv: Strategy = 'adaptive',
                 init_cfg: Union[dict, Sequence[dict], None] = None) -> None:
        check_strategies(dynamic_linear, dynamic_conv)
        self._strategies = dict(
            dynamic_linear=dynamic_linear, dynamic_conv=dynamic_conv)
        super().__init__(arch, in_channels, num_classes, with_cp, init_cfg)

    def _build_block(self, index: int,
                     arch: Dict[str, Any]) -> WeightFormerDiTBlock:
        return WeightFormerDiTBlock(
            self.embed_dims,
            hidden_dims=round(self.embed_dims * arch['mlp_ratio']),
            dynamic=index in arch['dynamic_indices'],
            reduction=arch['reduction'],
            kernel_size=arch['kernel_size'],
            **self._strategies)
