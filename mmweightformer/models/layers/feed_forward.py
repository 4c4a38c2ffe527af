# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Iterator, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

# So many tokens at a time that their hidden layer stays in a CPU's cache.
PART = 2048


def feed_forward(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor,
                 b2: Tensor) -> Tensor:
    r"""The MLP :math:`\mathrm{GELU}(x W_1 + b_1) W_2^T + b_2` for CPUs.

    It is computed for a part of the tokens after the other. So the hidden
    layer, the largest array of the network, is not written to memory and read
    again. For the backward pass it is kept once, before the activation, which
    is computed again.

    Args:
        x (Tensor): Tokens, :math:`(N, C)`, or :math:`(B, N, C)`.
        w1 (Tensor): One weight for all, :math:`(C, O)`, or one for each
            sample, :math:`(B, C, O)`.
        b1 (Tensor): :math:`(O,)`.
        w2 (Tensor): As of :class:`torch.nn.Linear`, :math:`(C', O)`.
        b2 (Tensor): :math:`(C',)`.

    Returns:
        Tensor: :math:`(N, C')`, or :math:`(B, N, C')`.
    """
    inputs = x, w1, b1, w2, b2
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        return _FeedForward.apply(*inputs)
    return _forward(*inputs)


def _parts(x: Tensor) -> Iterator[Tuple[tuple, tuple]]:
    """Indices of some of the tokens, and of their samples.

    Each part lies in one piece of memory: it is some samples, or a part of
    one.
    """
    *batch, tokens, _ = x.shape
    some = [slice(i, i + PART) for i in range(0, tokens, PART)]
    if not batch:
        yield from (((part, ), ()) for part in some)
        return
    size = max(1, PART // max(1, tokens))
    for start in range(0, batch[0], size):
        samples = slice(start, start + size)
        yield from (((samples, part), (samples, )) for part in some)


def _rows(x: Tensor) -> Tensor:
    return x.flatten(0, -2)


def _add_product(bias: Tensor, a: Tensor, b: Tensor,
                 out: Optional[Tensor]) -> Tensor:
    product = torch.addmm if a.ndim == 2 else torch.baddbmm
    return product(bias, a, b, out=out)


def _forward(x: Tensor,
             w1: Tensor,
             b1: Tensor,
             w2: Tensor,
             b2: Tensor,
             hidden: Optional[Tensor] = None) -> Tensor:
    out = x.new_empty(*x.shape[:-1], len(w2))
    for part, samples in _parts(x):
        kept = None if hidden is None else hidden[part]
        h = _add_product(b1, x[part], w1[samples], kept)
        # In its place, if it is not kept.
        a = F.gelu(h) if kept is not None else torch.ops.aten.gelu_(h)
        torch.addmm(b2, _rows(a), w2.mT, out=_rows(out[part]))
    return out


class _FeedForward(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2):
        hidden = x.new_empty(*x.shape[:-1], len(b1))
        ctx.save_for_backward(x, w1, b1, w2, b2, hidden)
        return _forward(x, w1, b1, w2, b2, hidden)

    @staticmethod
    def backward(ctx, grad):
        *inputs, hidden = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            return _differentiable_backward(inputs, grad)
        x, w1, _, w2, _ = inputs
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        # Parts are summed in no less than float32.
        wide = torch.promote_types(x.dtype, torch.float32)
        grad_w1, grad_w2 = (torch.zeros_like(w, dtype=wide) for w in (w1, w2))
        grad_b1, grad_b2 = (
            w2.new_zeros(n, dtype=wide) for n in reversed(w2.shape))
        for part, samples in _parts(x):
            h, g = hidden[part], _rows(grad[part])
            grad_b2 += g.sum(0)
            _accumulate(grad_w2, g.mT, _rows(F.gelu(h)))
            grad_h = (g @ w2).view_as(h)
            torch.ops.aten.gelu_backward(grad_h, h, grad_input=grad_h)
            grad_b1 += _rows(grad_h).sum(0)
            _accumulate(grad_w1[samples], x[part].mT, grad_h)
            torch.matmul(grad_h, w1[samples].mT, out=grad_x[part])
        return grad_x, *(
            total.to(x.dtype)
            for total in (grad_w1, grad_b1, grad_w2, grad_b2))


def _accumulate(total: Tensor, a: Tensor, b: Tensor) -> None:
    if total.dtype == a.dtype:
        _add_product(total, a, b, out=total)
    else:
        total += a @ b


def _differentiable_backward(inputs: Sequence[Tensor],
                             grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    # Views of them, of which none depends on another.
    views = [t.view_as(t) for t in inputs]
    x, w1, b1, w2, b2 = views
    y = F.linear(F.gelu(x @ w1 + b1), w2, b2)
    needed = [t for t in views if t.requires_grad]
    grads = iter(torch.autograd.grad(y, needed, grad, create_graph=True))
    return tuple(next(grads) if t.requires_grad else None for t in views)
