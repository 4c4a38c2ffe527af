# Copyright (c) mmweightformer contributors. All rights reserved.
"""Checkpoints of the published implementation, under our names."""
import argparse
import re
from typing import Dict, Tuple

import torch
from torch import Tensor

from ..models import DynamicLinear, WeightFormer
from .checkpoint import find_state_dict, reading


def load_official(path: str) -> Dict[str, Tensor]:
    """Load a published checkpoint, a state dict or one under ``model``.

    Args:
        path (str): A ``.safetensors`` or a PyTorch file. Of the latter only
            tensors and plain values are loaded, no code.

    Returns:
        dict[str, Tensor]: The state dict, under its published names.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a file of tensors.
    """
    with reading(path, 'a checkpoint of tensors'):
        if path.endswith('.safetensors'):
            from safetensors.torch import load_file
            checkpoint = load_file(path)
        else:
            # Training scripts save their arguments along.
            with torch.serialization.safe_globals([argparse.Namespace]):
                checkpoint = torch.load(path, 'cpu', weights_only=True)
    return find_state_dict(checkpoint, path, 'model')


def official_to_mm(state: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Rename a published state dict to that of an mmpretrain classifier.

    Args:
        state (dict[str, Tensor]): A published state dict of any size, with
            or without the classifier's head.

    Returns:
        dict[str, Tensor]: The same tensors, as ``backbone.*`` and, for
        mmpretrain's ``LinearClsHead``, ``head.fc.*``.

    Raises:
        ValueError: If it is not that of a WeightFormer. The message says
            which names are missing, unexpected or misshapen.
    """
    arch = _infer_arch(state)
    patch_size = _shape(state, 'patch_embed.proj.weight', 4, 16)[-1]
    in_channels = _shape(state, 'patch_embed.proj.weight', 4, 3)[1]
    with torch.device('meta'):
        model = WeightFormer(
            arch, patch_size=patch_size, in_channels=in_channels)
    expected = {
        f'backbone.{name}': (_official_name(name, model), value.shape)
        for name, value in model.state_dict().items()
    }
    if 'head.weight' in state or 'head.bias' in state:
        num_classes = _shape(state, 'head.weight', 2, 1000)[0]
        expected['head.fc.weight'] = ('head.weight', (num_classes,
                                                      model.embed_dims))
        expected['head.fc.bias'] = 'head.bias', (num_classes, )
    _check(state, dict(expected.values()), arch)
    return {name: state[official] for name, (official, _) in expected.items()}


def _shape(state: Dict[str, Tensor], name: str, ndim: int,
           default: int) -> Tuple[int, ...]:
    """Shape of an entry, or a default where it has not that many axes."""
    value = state.get(name)
    if value is None or value.ndim != ndim or 0 in value.shape:
        return (default, ) * ndim
    return tuple(value.shape)


def _infer_arch(state: Dict[str, Tensor]) -> dict:
    """The architecture that a published state dict looks most like."""
    embed_dims = _shape(state, 'patch_embed.proj.weight', 4, 192)[0]
    # Distinct ones are counted: a stray index asks for no giant model.
    blocks = set(re.findall(r'^blocks\.(\d+)\.', '\n'.join(state), re.M))
    depth = len(blocks) or 17
    dynamic = [i for i in range(depth) if f'blocks.{i}.linear1.w' in state]
    every = dynamic[1] - dynamic[0] if len(dynamic) > 1 else 3
    offset = dynamic[0] if dynamic else -2 % every
    arch = dict(
        embed_dims=embed_dims,
        depth=depth,
        dynamic_every=max(every, offset + 1),
        dynamic_offset=offset)
    hidden = _shape(state, 'blocks.0.linear2.weight', 2, 4 * embed_dims)[1]
    arch['mlp_ratio'] = hidden / embed_dims
    rank = _shape(state, f'blocks.{offset}.linear1.w1', 2, 0)[0]
    arch['reduction'] = embed_dims // rank if 0 < rank <= embed_dims else 4
    kernel = 'w' if offset == 0 else 'weight'
    arch['kernel_size'] = _shape(state, f'blocks.0.dwc.{kernel}', 4, 3)[-1]
    return arch


def _official_name(name: str, model: WeightFormer) -> str:
    """The published name of a parameter of ours."""
    if not name.startswith('layers.'):
        return name.replace('patch_embed.projection', 'patch_embed.proj') \
            .replace('patch_embed.norm', 'init_norm')
    _, i, module, *rest = name.split('.')
    dynamic = isinstance(model.layers[int(i)].fc1, DynamicLinear)
    module = dict(
        dwconv='dwc', fc1='linear1', fc2='linear2').get(module, module)
    if dynamic and module in ('dwc', 'linear1'):
        rest[0] = dict(
            weight='w', bias='b', proj='wfm', conv1='wfm.0',
            conv2='wfm.2').get(rest[0], rest[0])
    return '.'.join(['blocks', i, module, *rest])


def _check(state: Dict[str, Tensor], expected: Dict[str, Tuple[int, ...]],
           arch: dict) -> None:
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
        'this is no published WeightFormer; the nearest has embed_dims='
        f"{arch['embed_dims']}, depth={arch['depth']} ({_arch_name(arch)})"
    ]
    for problem, names in problems.items():
        if names:
            lines.append(f'{len(names)} {problem}: ' + ', '.join(names[:8]) +
                         (', …' if len(names) > 8 else ''))
    raise ValueError('\n  '.join(lines))


def _arch_name(arch: dict) -> str:
    names = [
        repr(name) for name, known in WeightFormer.arch_zoo.items()
        if known.items() <= arch.items()
    ]
    return f"arch {' or '.join(names)}" if names else 'no published arch'
