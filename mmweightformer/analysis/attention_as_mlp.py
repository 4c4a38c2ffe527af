# Copyright (c) mmweightformer contributors. All rights reserved.
"""Attention as an MLP whose weights are predicted from its input."""
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..models import DynamicLinear
from ..models.checks import check_int

# Of layer_sizes, in its order.
ATTENTION, FOLDED, DYNAMIC = ('attention, as computed', 'attention, as an MLP',
                              'dynamic MLP')


def predict_mlp(context: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor,
                w_o: Tensor, num_heads: int) -> Tuple[Tensor, Tensor]:
    r"""The weights of the two-layer MLP that attention is.

    With :math:`K_i = X W_K^i` and :math:`V_i = X W_V^i` of head i of h,

    .. math::
        W_1(X) &= [W_Q^1 K_1^T \mid \dots \mid W_Q^h K_h^T] / \sqrt{d} \\
        W_2(X) &= [V_1 W_O^1; \dots; V_h W_O^h]

    so each token of X gives one hidden unit to each head.

    Args:
        context (Tensor): X, the tokens that are attended to, (B, N, C).
        w_q (Tensor): Projection to queries, input by output, (C, h·d).
        w_k (Tensor): Projection to keys, (C, h·d).
        w_v (Tensor): Projection to values, (C, h·e).
        w_o (Tensor): Projection of the heads' outputs, (h·e, O).
        num_heads (int): h.

    Returns:
        tuple[Tensor, Tensor]: W1, (B, C, h·N), and W2, (B, h·N, O).

    Raises:
        TypeError: If ``num_heads`` is not an int.
        ValueError: If it does not divide the width of a projection.
    """
    k, v = (_split_heads(context @ w, num_heads) for w in (w_k, w_v))
    w_q, w_o = _split_heads(w_q, num_heads), _split_heads(w_o.mT, num_heads).mT
    w1 = w_q @ k.mT * w_q.shape[-1]**-0.5
    w2 = v @ w_o
    return w1.transpose(1, 2).flatten(2), w2.flatten(1, 2)


def apply_mlp(x: Tensor, w1: Tensor, w2: Tensor, num_heads: int) -> Tensor:
    r"""The two-layer MLP :math:`\sigma(x W_1) W_2` of each sample.

    Its activation :math:`\sigma` is the softmax over each head's hidden units.

    Args:
        x (Tensor): Tokens, (B, M, C), each of which is mapped by itself.
        w1 (Tensor): (B, C, h·N).
        w2 (Tensor): (B, h·N, O).
        num_heads (int): h.

    Returns:
        Tensor: (B, M, O).

    Raises:
        TypeError: If ``num_heads`` is not an int.
        ValueError: If it does not divide the number of hidden units.
    """
    hidden = _split_heads(x @ w1, num_heads).softmax(-1)
    return hidden.transpose(1, 2).flatten(2) @ w2


def attention(x: Tensor, context: Tensor, w_q: Tensor, w_k: Tensor,
              w_v: Tensor, w_o: Tensor, num_heads: int) -> Tensor:
    """The same by PyTorch's own attention.

    Args:
        x (Tensor): Tokens that attend, (B, M, C): in self-attention, those of
            ``context``.
        context (Tensor): Tokens that are attended to, (B, N, C).
        w_q (Tensor): (C, h·d).
        w_k (Tensor): (C, h·d).
        w_v (Tensor): (C, h·e).
        w_o (Tensor): (h·e, O).
        num_heads (int): h.

    Returns:
        Tensor: (B, M, O).

    Raises:
        TypeError: If ``num_heads`` is not an int.
        ValueError: If it does not divide the width of a projection.
    """
    q, k, v = (_split_heads(tokens @ w, num_heads)
               for tokens, w in [(x, w_q), (context, w_k), (context, w_v)])
    y = F.scaled_dot_product_attention(q, k, v)
    return y.transpose(1, 2).flatten(2) @ w_o


def _split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(..., N, h·d) → (..., h, N, d)."""
    check_int('num_heads', num_heads, 1)
    if x.shape[-1] % num_heads:
        raise ValueError(f'num_heads must divide the width of each projection '
                         f'and the hidden layer, got {num_heads} for '
                         f'{x.shape[-1]}')
    width = x.shape[-1] // num_heads
    return x.unflatten(-1, (num_heads, width)).transpose(-3, -2)


def largest_difference(tokens: int,
                       channels: int = 192,
                       num_heads: int = 3) -> float:
    """How far the MLP is from PyTorch's attention, in float64.

    It is asked for the first tokens, up to 256 of them, of random data, whose
    queries, keys and values have a variance of about 1.

    Args:
        tokens (int): N, the tokens that the weights are predicted from.
        channels (int): C. Defaults to 192.
        num_heads (int): h. Defaults to 3.

    Returns:
        float: The largest absolute difference over the largest output.
    """
    generator = torch.Generator().manual_seed(0)
    context, *weights = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in [(1, tokens, channels)] + [(channels, channels)] * 4)
    weights = [w * channels**-0.5 for w in weights]
    x = context[:, :256]
    expected = attention(x, context, *weights, num_heads)
    y = apply_mlp(x, *predict_mlp(context, *weights, num_heads), num_heads)
    return ((y - expected).abs().max() / expected.abs().max()).item()


class LayerSize(NamedTuple):
    """How large a layer is whose weights are predicted.

    Attributes:
        layer (str): The layer, see :func:`layer_sizes`.
        tokens (int): N.
        width (int): Hidden units.
        weights (int): Predicted weights of one sample.
        predict_macs (int): Multiply-adds that predict them.
        apply_macs (int): All other multiply-adds of one sample.
    """
    layer: str
    tokens: int
    width: int
    weights: int
    predict_macs: int
    apply_macs: int


def layer_sizes(side: int,
                channels: int = 192,
                num_heads: int = 3) -> List[LayerSize]:
    r"""Count what is predicted from a grid of tokens, and what it costs.

    Three layers from C to C channels, each without its norm:

    - attention as it is computed: the keys and values of the heads are
      predicted, each head's are the weights of an MLP of its queries;
    - attention as an MLP of the tokens: :func:`predict_mlp` and
      :func:`apply_mlp`;
    - the MLP of WeightFormer's dynamic block: a :class:`DynamicLinear` from C
      to 4C, which is predicted, GELU, and a linear layer that is not.

    Multiply-adds are half of the operations that
    :class:`torch.utils.flop_counter.FlopCounterMode` counts, of matrix
    products alone. Nothing is computed.

    Args:
        side (int): Tokens along a side of the grid, N is its square.
        channels (int): C, a multiple of ``num_heads`` and of 4. Defaults to
            192.
        num_heads (int): h. Defaults to 3.

    Returns:
        list[LayerSize]: That of each of the three layers.

    Raises:
        TypeError: If an argument is not an int.
        ValueError: If one is not positive, or does not divide ``channels``.
    """
    check_int('side', side, 1)
    check_int('channels', channels, 1)
    with torch.device('meta'), torch.no_grad():
        grid = torch.empty(1, side, side, channels)
        x = grid.flatten(1, 2)
        w_q, w_k, w_v, w_o = weights = torch.empty(4, channels, channels)
        linear = DynamicLinear(channels, 4 * channels)
        mlp = nn.Sequential(linear, nn.GELU(),
                            nn.Linear(4 * channels, channels))
        hidden = num_heads * side**2
        return [
            _layer_size(ATTENTION, x, hidden, lambda: (x @ w_k, x @ w_v),
                        lambda: attention(x, x, *weights, num_heads)),
            _layer_size(
                FOLDED, x, hidden,
                lambda: predict_mlp(x, *weights, num_heads), lambda: apply_mlp(
                    x, *predict_mlp(x, *weights, num_heads), num_heads)),
            _layer_size(DYNAMIC, x, linear.out_features, lambda:
                        (linear.predict(grid), ), lambda: mlp(grid)),
        ]


def _layer_size(layer: str, x: Tensor, width: int,
                predict: Callable[[], Sequence[Tensor]],
                forward: Callable[[], Tensor]) -> LayerSize:
    weights, predicting = _count_macs(predict)
    _, all_macs = _count_macs(forward)
    return LayerSize(layer, x.shape[1], width, sum(w.numel() for w in weights),
                     predicting, all_macs - predicting)


def _count_macs(function: Callable) -> tuple:
    """What a function returns, and its multiply-adds."""
    # The counter does not know every fused kernel of attention.
    with sdpa_kernel(
            SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        result = function()
    return result, counter.get_total_flops() // 2


# How each layer is drawn.
STYLES = {
    ATTENTION: dict(color='C3', linestyle='-', marker='s', markersize=5),
    FOLDED: dict(color='C1', linestyle='--', marker='^', markersize=5),
    DYNAMIC: dict(color='C0', linestyle='-', marker='o', markersize=5),
}


def draw_sizes(sizes: Sequence[LayerSize], differences: Dict[int, float],
               title: str, path: Path) -> None:
    """Predicted weights, multiply-adds and the MLP's difference against N.

    Args:
        sizes (Sequence[LayerSize]): Those of :func:`layer_sizes`, of one N
            after the other.
        differences (dict[int, float]): That of :func:`largest_difference` for
            each N.
        title (str): The figure's.
        path (Path): The file, whose suffix is its format.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator
    figure = Figure((11, 4), layout='constrained')
    figure.suptitle(title)
    weights, macs, equality = figure.subplots(1, 3)
    for layer, style in STYLES.items():
        own = [size for size in sizes if size.layer == layer]
        tokens = [size.tokens for size in own]
        style = dict(style, label=layer)
        weights.plot(tokens, [size.weights for size in own], **style)
        macs.plot(tokens,
                  [size.predict_macs + size.apply_macs for size in own],
                  **style)
    weights.set(title='Predicted weights', ylabel='numbers an image')
    macs.set(title='Multiply-adds', ylabel='multiply-adds an image')
    equality.plot(
        list(differences),
        list(differences.values()),
        label=FOLDED,
        **STYLES[FOLDED])
    epsilon = torch.finfo(torch.float64).eps
    equality.axhline(
        epsilon, color='grey', linestyle=':', label='spacing of float64 at 1')
    equality.set(
        title='Attention: MLP against PyTorch',
        ylabel='largest relative difference (float64)',
        ylim=(epsilon / 4, 1e-12))
    for axes in (weights, macs, equality):
        axes.set(xscale='log', yscale='log', xlabel='tokens N')
        axes.set_xticks(tokens, map(str, tokens), rotation=45)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
        axes.legend(fontsize=9)
    figure.savefig(path, dpi=120)
