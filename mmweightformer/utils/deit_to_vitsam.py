# Copyright (c) mmweightformer contributors. All rights reserved.
"""DeiT as pre-trained for classification, in its form for detection."""
import math
import re
import textwrap
from typing import Dict

import torch
from torch import Tensor

PREFIX = 'backbone.'


def deit_to_vitsam(state: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Turn mmpretrain's ``VisionTransformer`` into its ``ViTSAM``.

    ViTSAM has neither a class token nor a norm behind the last layer, so both
    are dropped, and with the class token its position embedding. Where its
    attention is global, its features are those of a ``VisionTransformer``
    with ``with_cls_token=False`` and ``final_norm=False``.

    The grid of position embeddings keeps its size: ViTSAM resizes it to its
    own ``img_size`` whenever it loads one, bicubically as
    ``VisionTransformer`` does, and so one file serves every size.

    Args:
        state (dict[str, Tensor]): The state dict of an mmpretrain classifier
            with a ``VisionTransformer`` of any size, such as DeiT. Only its
            ``backbone.*`` is read.

    Returns:
        dict[str, Tensor]: ``backbone.*`` for a ViTSAM with
        ``out_channels=0``, ``use_rel_pos=False`` and the same ``patch_size``,
        ``embed_dims``, ``num_layers``, ``feedforward_channels`` and
        ``num_heads``. No shape depends on the latter, so a wrong number goes
        unnoticed.

    Raises:
        ImportError: If mmpretrain is not installed.
        ValueError: If it is not that of a ``VisionTransformer``, or one that
            ViTSAM cannot express. The message says why.
    """
    from mmpretrain.models import ViTSAM
    state = {
        name[len(PREFIX):]: value
        for name, value in state.items() if name.startswith(PREFIX)
    }
    if 'dist_token' in state:
        raise ValueError('this is a distilled DeiT (it has a dist_token), '
                         'which learned with a second extra token. Take the '
                         'DeiT without distillation')
    embed_dims, in_channels, patch_size, _ = _shape(
        state, 'patch_embed.projection.weight', 4)
    _, num_patches, _ = _shape(state, 'pos_embed', 3)
    hidden_dims, _ = _shape(state, 'layers.0.ffn.layers.0.0.weight', 2)

    if state.pop('cls_token', None) is not None:
        num_patches -= 1
        # A copy, as saving a part of a tensor saves it whole.
        state['pos_embed'] = state['pos_embed'][:, 1:].clone()
    grid = math.isqrt(num_patches)
    if grid == 0 or grid**2 != num_patches:
        raise ValueError('its position embeddings must be those of a square '
                         f'grid of patches, got {num_patches}')
    state['pos_embed'] = state['pos_embed'].unflatten(1, (grid, grid))
    # Final norms: of each token, and of their mean.
    state = {k: v for k, v in state.items() if k[:4] not in ('ln1.', 'ln2.')}

    # Distinct ones are counted: a stray index asks for no giant model.
    layers = set(re.findall(r'^layers\.(\d+)\.', '\n'.join(state), re.M))
    with torch.device('meta'):
        vitsam = ViTSAM(
            dict(
                embed_dims=embed_dims,
                num_layers=len(layers),
                num_heads=1,
                feedforward_channels=hidden_dims,
                global_attn_indexes=[]),
            img_size=grid * patch_size,
            patch_size=patch_size,
            in_channels=in_channels,
            out_channels=0,
            use_rel_pos=False)
    try:
        vitsam.load_state_dict(state, assign=True)
    except RuntimeError as error:
        # PyTorch's own list of what is missing, unexpected or misshapen.
        lines = [
            textwrap.shorten(line, 300, placeholder=' …')
            for line in str(error).splitlines()[1:6]
        ]
        raise ValueError('this is no DeiT that ViTSAM can express:\n  ' +
                         '\n  '.join(lines)) from error
    return {PREFIX + k: v for k, v in vitsam.state_dict().items()}


def _shape(state: Dict[str, Tensor], name: str, ndim: int) -> torch.Size:
    """Shape of an entry, which must have that many axes and no empty one."""
    if name not in state:
        raise ValueError("this is no checkpoint of mmpretrain's "
                         f'VisionTransformer: it has no {PREFIX}{name}')
    shape = state[name].shape
    if len(shape) != ndim or 0 in shape:
        raise ValueError(f'{PREFIX}{name} must have {ndim} axes, none of them '
                         f'empty, got {tuple(shape)}')
    return shape
