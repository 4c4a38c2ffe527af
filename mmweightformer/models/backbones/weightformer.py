# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmcv.cnn import build_activation_layer, build_norm_layer
from mmcv.cnn.bricks import DropPath
from mmcv.cnn.bricks.transformer import PatchEmbed
from mmengine.model import BaseModule, ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..arch import WEIGHTFORMER, parse_arch
from ..checks import (check_bool, check_cfg, check_choice, check_init_cfg,
                      check_int, check_rate, is_sequence)
from ..layers import PredictedLinear
from ..layers.feed_forward import feed_forward
from ..layers.tracing import is_traced
from ..norm import LayerNorm2d
from ..strategies import (STATIC, Strategy, build_depthwise_conv, build_linear,
                          check_strategies)


class WeightFormerBlock(BaseModule):
    """A static or a dynamic block of WeightFormer.

    Static: ``x + DWConv(x)``, then ``x + MLP(LN(x))``. Dynamic: ``x`` is first
    replaced by ``LN(x)``, and both the depthwise convolution and the first
    layer of the MLP predict their weights from their input.

    Args:
        embed_dims (int): C, the size of each token.
        hidden_dims (int): Width of the MLP.
        dynamic (bool): Whether the block is a dynamic one.
        dynamic_linear (str | dict): How it predicts the MLP's first layer.
        dynamic_conv (str | dict): How it predicts depthwise kernels.
        reduction (int): Reduction of what predicts the MLP's first layer.
        kernel_size (int | tuple[int, int]): Kernel size of the depthwise
            convolution; (1, K) for sequences, grids of height 1.
        drop_rate (float): Dropout behind both layers of the MLP.
        drop_path_rate (float): Stochastic depth of the MLP's branch.
        norm_cfg (dict): Config of the norms.
        act_cfg (dict): Config of the MLP's activation.
        init_cfg (dict, optional): Initialization config.
    """

    def __init__(self,
                 embed_dims: int,
                 hidden_dims: int,
                 dynamic: bool,
                 dynamic_linear: Strategy,
                 dynamic_conv: Strategy,
                 reduction: int,
                 kernel_size: Union[int, Tuple[int, int]],
                 drop_rate: float,
                 drop_path_rate: float,
                 norm_cfg: dict,
                 act_cfg: dict,
                 init_cfg: Optional[dict] = None) -> None:
        super().__init__(init_cfg=init_cfg)
        if dynamic:
            self.norm1 = build_norm_layer(norm_cfg, embed_dims)[1]
        else:
            self.norm1 = nn.Identity()
            dynamic_conv = dynamic_linear = STATIC
        self.dwconv = build_depthwise_conv(dynamic_conv, embed_dims,
                                           kernel_size)
        self.fc1 = build_linear(dynamic_linear, embed_dims, hidden_dims,
                                reduction)
        self.norm2 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.act = build_activation_layer(act_cfg)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)
        self.drop = nn.Dropout(drop_rate)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, C) → (B, h, w, C)."""
        x = self.norm1(x)
        x = x + self.dwconv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def mlp(self, x: Tensor) -> Tensor:
        """(B, h, w, C) → (B, h, w, C)."""
        if not self._runs_in_parts(x):
            hidden = self.drop(self.act(self.fc1(x)))
            return self.drop(self.fc2(hidden))
        if isinstance(self.fc1, PredictedLinear):
            tokens, weight = x.flatten(1, 2), self.fc1.predict(x)
        else:
            tokens, weight = x.flatten(0, 2), self.fc1.weight.mT
        return feed_forward(tokens, weight, self.fc1.bias, self.fc2.weight,
                            self.fc2.bias).view_as(x)

    def _runs_in_parts(self, x: Tensor) -> bool:
        """Whether the parameters alone say what the MLP does, on a CPU."""
        layers = self.fc1, self.act, self.fc2
        return (x.device.type == 'cpu' and not is_traced()
                and not torch.is_autocast_enabled('cpu')
                and not (self.drop.training and self.drop.p)
                and type(self.fc1).forward in (nn.Linear.forward,
                                               PredictedLinear.forward)
                and type(self.act) is nn.GELU and type(self.fc2) is nn.Linear
                and self.act.approximate == 'none'
                and self.fc1.bias is not None and self.fc2.bias is not None
                and not any(map(_is_hooked, layers)))


def _is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_pre_hooks or module._forward_hooks
                or module._backward_pre_hooks or module._backward_hooks
                or 'forward' in vars(module))


@MODELS.register_module()
class WeightFormer(BaseModule):
    """WeightFormer: a backbone of predicted weights, linear in tokens.

    A plain, isotropic backbone of stride ``patch_size``. There is neither
    attention nor a class token nor a position embedding: global context comes
    from the layers of the dynamic blocks, whose weights are predicted from
    the whole image. Any image size works.

    Args:
        arch (str | dict): The architecture, one of 't', 's', 'b' ('tiny',
            'small', 'base'; 'b' is 's' for 448×448 images), or a dict of

            - **embed_dims** (int): C, the size of each token.
            - **depth** (int): Number of blocks.
            - **dynamic_every** (int): Every how many blocks one is dynamic.
              Defaults to 3.
            - **dynamic_offset** (int): Index of the first dynamic block,
              below ``dynamic_every``. Defaults to the published placement,
              in which block i is dynamic where ``(i + 2) % dynamic_every``
              is 0.
            - **dynamic_indices** (Sequence[int]): Indices of the dynamic
              blocks, in place of the two above; ``[]`` for none.
            - **mlp_ratio** (float): Width of the MLP over C. Defaults to 4.
            - **reduction** (int): Reduction of the predicted factors of the
              dynamic linear layers. Defaults to 4.
            - **kernel_size** (int): Kernel size of the depthwise
              convolutions, odd. Defaults to 3.

            Defaults to 't'.
        patch_size (int): Size and stride of the patches. Defaults to 16.
        in_channels (int): Number of image channels. Defaults to 3.
        out_indices (Sequence[int] | int): Indices of the blocks whose output
            is returned, negative ones from the end. Blocks behind the last
            of them are not built. Defaults to -1.
        out_type (str): What each output is:

            - ``'featmap'``: (B, C, h, w), the features on the patch grid.
            - ``'avg_featmap'``: (B, C), their mean over the grid.
            - ``'raw'``: (B, h*w, C), the tokens in row-major order.

            Defaults to 'featmap'.
        drop_rate (float): Dropout behind the patch embedding and the layers
            of the MLPs. Defaults to 0.
        drop_path_rate (float): Stochastic depth of the last block's MLP,
            rising linearly from 0 at the first block. Defaults to 0.
        norm_cfg (dict): Config of the norms, which must act on the last
            axis. Defaults to ``dict(type='LN', eps=1e-6)``.
        act_cfg (dict): Config of the MLPs' activation. Defaults to
            ``dict(type='GELU')``.
        final_norm (bool): Whether the last block's output is normalized.
            Defaults to True.
        pad (str, optional): How an image is zero-padded to a multiple of
            ``patch_size``: 'corner' at its bottom and right, 'same' on all
            sides, None not at all, so that the rest is dropped. Defaults to
            'corner'.
        frozen_stages (int): 0 freezes the patch embedding, n also the first
            n blocks, the number of blocks everything, -1 nothing. Defaults
            to -1.
        with_cp (bool): Whether to recompute each block's activations in the
            backward pass instead of keeping them. Defaults to False.
        dynamic_linear (str | dict): How dynamic blocks predict the weight of
            their MLP's first layer: 'bilateral', 'gap', 'linear',
            'nonlinear' or 'deep', not at all, 'static', or the config of a
            registered :class:`PredictedLinear`. Defaults to 'bilateral'.
        dynamic_conv (str | dict): How dynamic blocks predict their depthwise
            kernels: 'adaptive', 'gap', 'amp_dir' or 'conv', not at all,
            'static', or the config of a registered
            :class:`PredictedDepthwiseConv2d`. Defaults to 'adaptive'.
        init_cfg (dict | list[dict], optional): Initialization config.
            Defaults to the published initialization.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument has a wrong value.

    Examples:
        >>> import torch
        >>> from mmweightformer.models import WeightFormer
        >>> model = WeightFormer('t', out_indices=(7, -1)).eval()
        >>> for out in model(torch.rand(1, 3, 100, 333)):
        ...     print(tuple(out.shape))
        (1, 192, 7, 21)
        (1, 192, 7, 21)
    """
    arch_zoo = {
        **dict.fromkeys(['t', 'tiny'], dict(embed_dims=192, depth=17)),
        **dict.fromkeys(['s', 'small', 'b', 'base'],
                        dict(embed_dims=384, depth=17)),
    }  # yapf: disable
    out_types = ('featmap', 'avg_featmap', 'raw')
    # As published; the dynamic layers initialize their own parameters so.
    published_init = [
        dict(type='TruncNormal', layer='Linear', std=.02),
        dict(type='Constant', layer='LayerNorm', val=1.),
    ]

    def __init__(self,
                 arch: Union[str, dict] = 't',
                 patch_size: int = 16,
                 in_channels: int = 3,
                 out_indices: Union[int, Sequence[int]] = -1,
                 out_type: str = 'featmap',
                 drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 norm_cfg: dict = dict(type='LN', eps=1e-6),
                 act_cfg: dict = dict(type='GELU'),
                 final_norm: bool = True,
                 pad: Optional[str] = 'corner',
                 frozen_stages: int = -1,
                 with_cp: bool = False,
                 dynamic_linear: Strategy = 'bilateral',
                 dynamic_conv: Strategy = 'adaptive',
                 init_cfg: Union[dict, Sequence[dict], None] = None) -> None:
        check_init_cfg(init_cfg)
        super().__init__(init_cfg=init_cfg or self.published_init)
        arch = parse_arch(arch, self.arch_zoo, WEIGHTFORMER)
        self.embed_dims = arch['embed_dims']
        self.depth = arch['depth']
        check_int('patch_size', patch_size, 1)
        check_int('in_channels', in_channels, 1)
        check_int('frozen_stages', frozen_stages, -1, self.depth)
        check_bool('final_norm', final_norm)
        check_bool('with_cp', with_cp)
        check_rate('drop_rate', drop_rate)
        check_rate('drop_path_rate', drop_path_rate)
        check_choice('out_type', out_type, self.out_types)
        check_choice('pad', pad, ('corner', 'same', None))
        check_strategies(dynamic_linear, dynamic_conv)
        check_cfg('act_cfg', act_cfg, build_activation_layer)
        norm = check_cfg('norm_cfg', norm_cfg,
                         lambda cfg: build_norm_layer(cfg, self.embed_dims)[1])
        if not hasattr(norm, 'normalized_shape') or isinstance(
                norm, LayerNorm2d):
            raise ValueError('norm_cfg must name a norm over the last axis, '
                             f"such as 'LN', got {norm_cfg}")
        self.patch_size = patch_size
        self.in_channels = in_channels
        self.out_indices = self._parse_out_indices(out_indices)
        self.out_type = out_type
        self.pad = pad
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp

        self.patch_embed = PatchEmbed(
            in_channels,
            self.embed_dims,
            kernel_size=patch_size,
            stride=patch_size,
            norm_cfg=norm_cfg)
        self.drop = nn.Dropout(drop_rate)
        drop_path_rates = torch.linspace(
            0, drop_path_rate, self.depth, device='cpu').tolist()
        self.layers = ModuleList(
            WeightFormerBlock(
                self.embed_dims,
                round(self.embed_dims * arch['mlp_ratio']),
                dynamic=i in arch['dynamic_indices'],
                dynamic_linear=dynamic_linear,
                dynamic_conv=dynamic_conv,
                reduction=arch['reduction'],
                kernel_size=arch['kernel_size'],
                drop_rate=drop_rate,
                drop_path_rate=drop_path_rates[i],
                norm_cfg=norm_cfg,
                act_cfg=act_cfg) for i in range(max(self.out_indices) + 1))
        self.final_norm = final_norm and len(self.layers) == self.depth
        if self.final_norm:
            self.norm = build_norm_layer(norm_cfg, self.embed_dims)[1]
        self._freeze_stages()

    def _parse_out_indices(
            self, out_indices: Union[int, Sequence[int]]) -> Tuple[int, ...]:
        if isinstance(out_indices, int):
            out_indices = (out_indices, )
        if not is_sequence(out_indices) or len(out_indices) == 0:
            raise TypeError('out_indices must be an int or a sequence of at '
                            f'least one, got {out_indices!r}')
        for index in out_indices:
            check_int('out_indices', index, -self.depth, self.depth - 1)
        return tuple(index % self.depth for index in out_indices)

    @property
    def out_channels(self) -> Tuple[int, ...]:
        """Channels of each output."""
        return (self.embed_dims, ) * len(self.out_indices)

    @property
    def out_strides(self) -> Tuple[int, ...]:
        """Pixels of the image between two neighbours in each output."""
        return (self.patch_size, ) * len(self.out_indices)

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """(B, in_channels, H, W) → an output for each of ``out_indices``."""
        self._check_input(x)
        x = self.drop(self._embed(x))
        outs = {}
        for i, layer in enumerate(self.layers):
            if self.with_cp and torch.is_grad_enabled():
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
            if i in self.out_indices:
                last = self.final_norm and i == self.depth - 1
                outs[i] = self._format_output(self.norm(x) if last else x)
        return tuple(outs[i] for i in self.out_indices)

    def _embed(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) → (B, h, w, C)."""
        if self.pad is not None:
            p = self.patch_size
            h, w = ((size + p - 1) // p * p - size for size in x.shape[2:])
            if is_traced() or h or w:
                top, left = (h // 2, w // 2) if self.pad == 'same' else (0, 0)
                x = F.pad(x, (left, w - left, top, h - top))
        if not is_traced():
            if x.shape[3] == self.patch_size > 1:
                # oneDNN's bfloat16 is wrong for an image as wide as a patch.
                # One more column changes nothing else: it is dropped.
                x = F.pad(x, (0, 1))
            # So that the convolution writes a token in one piece.
            x = x.contiguous(memory_format=torch.channels_last)
        x = self.patch_embed.projection(x)
        return self.patch_embed.norm(x.permute(0, 2, 3, 1))

    def _check_input(self, x: Tensor) -> None:
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(
                f'the input must be (B, {self.in_channels}, H, W), as '
                f'in_channels={self.in_channels}, got {tuple(x.shape)}')
        least = self.patch_size if self.pad is None else 1
        if min(x.shape[2:]) < least:
            raise ValueError(
                f'an image must be at least {least}×{least} with pad='
                f'{self.pad!r} and patch_size={self.patch_size}, got '
                f'{x.shape[2]}×{x.shape[3]}')

    def _format_output(self, x: Tensor) -> Tensor:
        if self.out_type == 'featmap':
            # mmcv's operators read memory as contiguous, whatever it is.
            return x.permute(0, 3, 1, 2).contiguous()
        x = x.flatten(1, 2)
        return x.mean(dim=1) if self.out_type == 'avg_featmap' else x

    def _freeze_stages(self) -> None:
        if self.frozen_stages < 0:
            return
        frozen = [
            self.patch_embed, self.drop, *self.layers[:self.frozen_stages]
        ]
        if self.final_norm and self.frozen_stages == self.depth:
            frozen.append(self.norm)
        for module in frozen:
            module.eval()
            module.requires_grad_(False)

    def train(self, mode: bool = True) -> 'WeightFormer':
        super().train(mode)
        self._freeze_stages()
        return self

    def get_layer_depth(self,
                        param_name: str,
                        prefix: str = '') -> Tuple[int, int]:
        """Get the layer-wise depth of a parameter.

        Args:
            param_name (str): The name of the parameter.
            prefix (str): The prefix of this backbone's parameters. Defaults
                to an empty string.

        Returns:
            tuple[int, int]: The depth of the parameter and the number of
            depths, which is that of the built blocks plus two. The patch
            embedding is at 0, block i at i + 1, and what follows the blocks,
            in the backbone or behind it, at the last.
        """
        num_layers = len(self.layers) + 2
        name = param_name[len(prefix):]
        if param_name.startswith(prefix):
            if name.startswith('patch_embed.'):
                return 0, num_layers
            if name.startswith('layers.'):
                return int(name.split('.')[1]) + 1, num_layers
        return num_layers - 1, num_layers
