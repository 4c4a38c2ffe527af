"""Literal transcription of WeightFormer's formulas, as a test oracle.

Written from the description of the network alone, without the package, one
statement a formula and in the description's order. It is slow on purpose.
Parameters go by their official names; grids are explicit, B x h x w x C.
"""

import math
import pathlib

import numpy as np
import torch
from torch.nn import functional as F

DATA = pathlib.Path(__file__).parent / 'data'
EPS = 1e-6


def select(state, prefix):
    """Returns the entries of `state` under `prefix`, without the prefix."""
    return {
        name[len(prefix):]: value
        for name, value in state.items() if name.startswith(prefix)
    }


def layer_norm(x, params):
    """LayerNorm over the last axis, with `weight` and `bias`."""
    channels = x.shape[-1]
    return F.layer_norm(x, (channels, ), params['weight'], params['bias'], EPS)


def dynamic_linear(x, params, reduction=4):
    """Linear layer with a weight update predicted from its input.

    Args:
        x: Input grid, B x h x w x C.
        params: Official entries `w`, `b`, `wfm.weight`, `wfm.bias`, `w1` and
            `w2` of the layer.
        reduction: Ratio r of the bilateral factors' widths.

    Returns:
        Output grid, B x h x w x O.
    """
    batch, height, width, channels = x.shape
    tokens = height * width
    # An axis of length 1 is not pooled; an odd last row or column is dropped.
    window = (min(2, height), min(2, width))
    outputs = []
    for sample in range(batch):
        grid = x[sample].permute(2, 0, 1).unsqueeze(0)
        pooled = F.avg_pool2d(grid, kernel_size=window, stride=window)
        xp = pooled[0].flatten(1).transpose(0, 1)
        ab = xp @ params['wfm.weight'].transpose(0, 1) + params['wfm.bias']
        a = ab[:, :channels // reduction]
        b = ab[:, channels // reduction:]
        u = F.silu(a) @ params['w1']
        v = F.silu(b) @ params['w2']
        delta = u.transpose(0, 1) @ v * channels**-0.5 / tokens
        norm = torch.linalg.vector_norm(delta, dim=0, keepdim=True)
        delta = delta / (norm + 1)
        outputs.append(x[sample] @ (params['w'] + delta) + params['b'])
    return torch.stack(outputs)


def dynamic_depthwise_conv(x, params):
    """Depthwise convolution with a kernel update predicted from its input.

    Args:
        x: Input grid, B x h x w x C.
        params: Official entries `w`, `b`, `wfm.0.weight`, `wfm.0.bias` and
            `wfm.2.weight` of the layer. K is taken from the shape of `w`.

    Returns:
        Output grid, B x h x w x C.
    """
    batch, _, _, channels = x.shape
    size = params['w'].shape[-1]
    outputs = []
    for sample in range(batch):
        grid = x[sample].permute(2, 0, 1).unsqueeze(0)
        xp = F.adaptive_avg_pool2d(grid, size)
        hidden = F.conv2d(xp, params['wfm.0.weight'], params['wfm.0.bias'])
        k = F.conv2d(F.gelu(hidden), params['wfm.2.weight'])[0]
        norm = torch.linalg.vector_norm(k, dim=(1, 2), keepdim=True)
        k = k / (norm + 1)
        kernel = params['w'] + k.unsqueeze(1)
        y = F.conv2d(
            grid, kernel, params['b'], padding=size // 2, groups=channels)
        outputs.append(y[0].permute(1, 2, 0))
    return torch.stack(outputs)


def static_depthwise_conv(x, params):
    """Plain depthwise convolution of a B x h x w x C grid."""
    weight = params['weight']
    y = F.conv2d(
        x.permute(0, 3, 1, 2),
        weight,
        params['bias'],
        padding=weight.shape[-1] // 2,
        groups=x.shape[-1])
    return y.permute(0, 2, 3, 1)


def block(x, params, dynamic):
    """One block, without drop path.

    Args:
        x: Input grid, B x h x w x C.
        params: Official entries of the block, without `blocks.i.`.
        dynamic: Whether the block is a dynamic one.

    Returns:
        Output grid, B x h x w x C.
    """
    norm2 = select(params, 'norm2.')
    dwc = select(params, 'dwc.')
    linear1 = select(params, 'linear1.')
    linear2 = select(params, 'linear2.')
    if dynamic:
        x = layer_norm(x, select(params, 'norm1.'))
        x = x + dynamic_depthwise_conv(x, dwc)
        hidden = dynamic_linear(layer_norm(x, norm2), linear1)
    else:
        x = x + static_depthwise_conv(x, dwc)
        hidden = F.linear(
            layer_norm(x, norm2), linear1['weight'], linear1['bias'])
    return x + F.linear(F.gelu(hidden), linear2['weight'], linear2['bias'])


def embed(image, state):
    """Patch embedding and its LayerNorm.

    Args:
        image: Images, B x 3 x H x W, H and W multiples of the patch size.
        state: Official state dict.

    Returns:
        Grid, B x h x w x C.
    """
    weight = state['patch_embed.proj.weight']
    x = F.conv2d(
        image, weight, state['patch_embed.proj.bias'], stride=weight.shape[-1])
    return layer_norm(x.permute(0, 2, 3, 1), select(state, 'init_norm.'))


def forward(image, state, dynamic_every=3):
    """The whole network, without drop path.

    Args:
        image: Images, B x 3 x H x W, H and W multiples of the patch size.
        state: Official state dict; the depth is inferred from its names.
        dynamic_every: Block i is dynamic where (i + 2) mod this is 0.

    Returns:
        Dict of `embed`, `block0`, `block1`, ..., `norm` (each B x N x C) and
        `logits` (B x classes).
    """
    depth = 1 + max(
        int(name.split('.')[1])
        for name in state if name.startswith('blocks.'))
    x = embed(image, state)
    result = {'embed': x.flatten(1, 2)}
    for i in range(depth):
        dynamic = (i + 2) % dynamic_every == 0
        x = block(x, select(state, f'blocks.{i}.'), dynamic)
        result[f'block{i}'] = x.flatten(1, 2)
    tokens = layer_norm(x.flatten(1, 2), select(state, 'norm.'))
    result['norm'] = tokens
    result['logits'] = F.linear(
        tokens.mean(1), state['head.weight'], state['head.bias'])
    return result


def random_state(embed_dims,
                 depth,
                 num_classes=10,
                 patch_size=16,
                 seed=0,
                 dtype=torch.float64,
                 dynamic_every=3):
    """An official state dict with every entry random, of sensible size.

    Args:
        embed_dims: Channels C, a multiple of 4.
        depth: Number of blocks.
        num_classes: Width of the head.
        patch_size: Patch size p.
        seed: Seed of the draw, which is made in float64 for every dtype.
        dtype: Type of the entries.
        dynamic_every: Block i is dynamic where (i + 2) mod this is 0.

    Returns:
        Dict from official names to tensors.
    """
    c = embed_dims
    shapes = {
        'patch_embed.proj.weight': (c, 3, patch_size, patch_size),
        'patch_embed.proj.bias': (c, ),
        'init_norm.weight': (c, ),
        'init_norm.bias': (c, ),
    }
    for i in range(depth):
        if (i + 2) % dynamic_every == 0:
            entries = {
                'norm1.weight': (c, ),
                'norm1.bias': (c, ),
                'linear1.w': (c, 4 * c),
                'linear1.b': (4 * c, ),
                'linear1.wfm.weight': (c // 4 + c, c),
                'linear1.wfm.bias': (c // 4 + c, ),
                'linear1.w1': (c // 4, c),
                'linear1.w2': (c, 4 * c),
                'dwc.w': (c, 1, 3, 3),
                'dwc.b': (c, ),
                'dwc.wfm.0.weight': (c, c, 1, 1),
                'dwc.wfm.0.bias': (c, ),
                'dwc.wfm.2.weight': (c, c, 1, 1),
            }
        else:
            entries = {
                'linear1.weight': (4 * c, c),
                'linear1.bias': (4 * c, ),
                'dwc.weight': (c, 1, 3, 3),
                'dwc.bias': (c, ),
            }
        entries['norm2.weight'] = (c, )
        entries['norm2.bias'] = (c, )
        entries['linear2.weight'] = (c, 4 * c)
        entries['linear2.bias'] = (c, )
        for name, shape in entries.items():
            shapes[f'blocks.{i}.{name}'] = shape
    shapes['norm.weight'] = (c, )
    shapes['norm.bias'] = (c, )
    shapes['head.weight'] = (num_classes, c)
    shapes['head.bias'] = (num_classes, )
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) > 1:
            value = value * 1.5 / math.sqrt(math.prod(shape[1:]))
        elif name.endswith('.weight'):
            value = 1 + 0.1 * value
        else:
            value = 0.1 * value
        state[name] = value.to(dtype)
    return state


def load_golden(name):
    """Loads a file of golden arrays as tensors.

    Args:
        name: Name of the file in `tests/data`, without `.npz`.

    Returns:
        Dict of tensors; `state.*` and `grad.*` are gathered, under their
        official names, in dicts at the keys `state` and `grad` (empty where
        the file has none).
    """
    with np.load(DATA / f'{name}.npz') as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files}
    golden = {
        key: value
        for key, value in arrays.items()
        if not key.startswith(('state.', 'grad.'))
    }
    golden['state'] = select(arrays, 'state.')
    golden['grad'] = select(arrays, 'grad.')
    return golden
