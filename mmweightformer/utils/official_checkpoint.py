# Copyright (c) mmweightformer contributors. All rights reserved.
"""Checkpoints of the published implementation, under our names."""
import argparse
import math
import re
from typing import Dict, Tuple

import torch
from mmengine.model import BaseModule
from torch import Tensor

from ..models import DiT, DynamicLinear, WeightFormer, WeightFormerDiT
from ..models.generators.embeddings import position_embedding
from .checkpoint import find_state_dict, load_checkpoint, reading

# Published names in place of ours, within the blocks and around them.
_WEIGHTFORMER_BLOCK = dict(
    dwconv='dwc', fc1='linear1', fc2='linear2', modulation='adaLN_modulation')
_DIT_BLOCK = dict(
    qkv='attn.qkv',
    proj='attn.proj',
    fc1='mlp.fc1',
    fc2='mlp.fc2',
    modulation='adaLN_modulation')
_DYNAMIC_LAYER = dict(
    weight='w', bias='b', proj='wfm', conv1='wfm.0', conv2='wfm.2')
_BACKBONE = {
    'patch_embed.projection': 'patch_embed.proj',
    'patch_embed.norm': 'init_norm'
}
_DENOISER = {
    'patch_embed': 'x_embedder.proj',
    'time_embed.fc1': 't_embedder.mlp.0',
    'time_embed.fc2': 't_embedder.mlp.2',
    'label_embed': 'y_embedder.embedding_table',
    'final_layer.modulation': 'final_layer.adaLN_modulation'
}


def load_official(path: str) -> Dict[str, Tensor]:
    """Load a published checkpoint.

    That is a state dict, or what a training script saves: then the averaged
    weights under ``ema`` if it has them, else the state dict under ``model``.

    Args:
        path (str): A ``.safetensors`` or a PyTorch file. Of the latter only
            tensors and plain values are loaded, no code.

    Returns:
        dict[str, Tensor]: The state dict, under its published names.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a file of tensors.
    """
    if path.endswith('.safetensors'):
        with reading(path, 'a checkpoint of tensors'):
            from safetensors.torch import load_file
            checkpoint = load_file(path)
    else:
        # Training scripts save their arguments along.
        checkpoint = load_checkpoint(path, safe_globals=[argparse.Namespace])
    averaged = isinstance(checkpoint, dict) and 'ema' in checkpoint
    return find_state_dict(checkpoint, path, 'ema' if averaged else 'model')


def official_to_mm(state: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Rename a published state dict to that of a model of OpenMMLab.

    Args:
        state (dict[str, Tensor]): A published state dict of any size: of a
            WeightFormer, with or without the classifier's head, or of a
            diffusion transformer, WeightFormerDiT or DiT, with a null class.

    Returns:
        dict[str, Tensor]: The same tensors. Those of a WeightFormer as
        ``backbone.*`` and, for mmpretrain's ``LinearClsHead``,
        ``head.fc.*``; those of a diffusion transformer as ``denoiser.*`` for
        :class:`ClassConditionalDiffusion`, without the fixed position
        embedding. No shape depends on DiT's ``num_heads``, so a wrong number
        in its config goes unnoticed.

    Raises:
        ValueError: If it is that of neither. The message says which names are
            missing, unexpected or misshapen, or that the position embedding
            is another one.
    """
    if 'x_embedder.proj.weight' in state:
        return _denoiser_to_mm(state)
    embed_dims, in_channels, patch_size = _patches(state, 'patch_embed')
    arch = _infer_arch(state, embed_dims)
    with torch.device('meta'):
        model = WeightFormer(
            arch, patch_size=patch_size, in_channels=in_channels)
    expected = _expected(model, 'backbone')
    if 'head.weight' in state or 'head.bias' in state:
        num_classes = _shape(state, 'head.weight', 2, 1000)[0]
        expected['head.fc.weight'] = ('head.weight', (num_classes,
                                                      model.embed_dims))
        expected['head.fc.bias'] = 'head.bias', (num_classes, )
    _check(state, dict(expected.values()), model, arch)
    return {name: state[official] for name, (official, _) in expected.items()}


def _denoiser_to_mm(state: Dict[str, Tensor]) -> Dict[str, Tensor]:
    embed_dims, in_channels, patch_size = _patches(state, 'x_embedder')
    table = _shape(state, 'y_embedder.embedding_table.weight', 2, 1001)
    sizes = dict(in_channels=in_channels, num_classes=table[0] - 1)
    attention = 'blocks.0.attn.qkv.weight' in state
    arch = _infer_arch(state, embed_dims, attention)
    arch['patch_size'] = patch_size
    with torch.device('meta'):
        if attention:
            model = DiT(dict(arch, num_heads=1), **sizes)
        else:
            model = WeightFormerDiT(arch, **sizes)
    expected = _expected(model, 'denoiser')
    # The published grids are square.
    size = math.isqrt(_shape(state, 'pos_embed', 3, 256)[1])
    fixed = {'pos_embed': (1, size**2, embed_dims)}
    _check(state, {**dict(expected.values()), **fixed}, model, arch)
    given = state['pos_embed']
    fixed = position_embedding(size, size, embed_dims, torch.zeros(1))
    # As exact as half precision is.
    if not torch.allclose(given[0].float(), fixed.flatten(0, 1), atol=5e-3):
        raise ValueError(
            'pos_embed is not the 2-D sine-cosine position embedding of '
            f'{size}×{size} patches, which is all that {type(model).__name__} '
            'has')
    return {name: state[official] for name, (official, _) in expected.items()}


def _patches(state: Dict[str, Tensor], module: str) -> Tuple[int, int, int]:
    """Output and input channels of the patch embedding, and their size."""
    name = f'{module}.proj.weight'
    embed_dims = _shape(state, name, 4, 192)[0]
    in_channels = _shape(state, name, 4, 3)[1]
    return embed_dims, in_channels, _shape(state, name, 4, 16)[-1]


def _expected(model: BaseModule,
              prefix: str) -> Dict[str, Tuple[str, Tuple[int, ...]]]:
    """Published names and shapes by our names."""
    return {
        f'{prefix}.{name}': (_official_name(name, model), value.shape)
        for name, value in model.state_dict().items()
    }


def _shape(state: Dict[str, Tensor], name: str, ndim: int,
           default: int) -> Tuple[int, ...]:
    """Shape of an entry, or a default where it has not that many axes."""
    value = state.get(name)
    if value is None or value.ndim != ndim or 0 in value.shape:
        return (default, ) * ndim
    return tuple(value.shape)


def _infer_arch(state: Dict[str, Tensor],
                embed_dims: int,
                attention: bool = False) -> dict:
    """The architecture that a published state dict looks most like."""
    # Distinct ones are counted: a stray index asks for no giant model.
    blocks = set(re.findall(r'^blocks\.(\d+)\.', '\n'.join(state), re.M))
    depth = len(blocks) or 17
    last = 'mlp.fc2' if attention else 'linear2'
    hidden = _shape(state, f'blocks.0.{last}.weight', 2, 4 * embed_dims)[1]
    arch = dict(
        embed_dims=embed_dims, depth=depth, mlp_ratio=hidden / embed_dims)
    if attention:
        return arch
    dynamic = [i for i in range(depth) if f'blocks.{i}.linear1.w' in state]
    every = dynamic[1] - dynamic[0] if len(dynamic) > 1 else 3
    offset = dynamic[0] if dynamic else -2 % every
    arch.update(dynamic_every=max(every, offset + 1), dynamic_offset=offset)
    rank = _shape(state, f'blocks.{offset}.linear1.w1', 2, 0)[0]
    arch['reduction'] = embed_dims // rank if 0 < rank <= embed_dims else 4
    kernel = 'w' if offset == 0 else 'weight'
    arch['kernel_size'] = _shape(state, f'blocks.0.dwc.{kernel}', 4, 3)[-1]
    return arch


def _official_name(name: str, model: BaseModule) -> str:
    """The published name of a parameter of ours."""
    if not name.startswith('layers.'):
        around = _BACKBONE if isinstance(model, WeightFormer) else _DENOISER
        for ours, published in around.items():
            name = name.replace(ours, published)
        return name
    _, i, module, *rest = name.split('.')
    names = _DIT_BLOCK if isinstance(model, DiT) else _WEIGHTFORMER_BLOCK
    if module in ('dwconv', 'fc1') and isinstance(model.layers[int(i)].fc1,
                                                  DynamicLinear):
        rest[0] = _DYNAMIC_LAYER.get(rest[0], rest[0])
    return '.'.join(['blocks', i, names.get(module, module), *rest])


def _check(state: Dict[str, Tensor], expected: Dict[str, Tuple[int, ...]],
           model: BaseModule, arch: dict) -> None:
    """Raise unless ``state`` has the expected names and shapes."""
    misshapen = [
        f'{name}: {tuple(state[name].shape)} in place of {tuple(shape)}'
        for name, shape in expected.items()
        if name in state and state[name].shape != shape
    ]
    problems = dict(
        missing=[name for name in expected if name not in state],
        unexpected=[name for name in state if name not in expected],
        misshapen=misshapen)
    if not any(problems.values()):
        return
    lines = [
        f'this is no published {type(model).__name__}; the nearest has '
        f"embed_dims={arch['embed_dims']}, depth={arch['depth']} "
        f'({_arch_name(model, arch)})'
    ]
    for problem, names in problems.items():
        if names:
            lines.append(f'{len(names)} {problem}: ' + ', '.join(names[:8]) +
                         (', …' if len(names) > 8 else ''))
    raise ValueError('\n  '.join(lines))


def _arch_name(model: BaseModule, arch: dict) -> str:
    # What no shape depends on is not in arch.
    names = [
        repr(name) for name, known in model.arch_zoo.items() if all(
            arch.get(key, value) == value for key, value in known.items())
    ]
    return f"arch {' or '.join(names)}" if names else 'no published arch'
