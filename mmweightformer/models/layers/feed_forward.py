# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

# So many tokens at a time that their hidden layer stays in a CPU's cache.
PART = 1024


def feed_forward(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor,
                 b2: Tensor) -> Tensor:
    r"""The MLP :math:`\mathrm{GELU}(x W_1 + b_1) W_2^T + b_2` for CPUs.

    It is computed for a part of the tokens after the other. So the hidden
    layer, the largest array of the network, is not written to memory and read
   XX
    Args:
        x (Tensor): Tokens, :math:`(B, N, C)`.
        w1 (Tensor): A weight for each sample, :math:`(B, C, O)`.
        b1 (Tensor): :math:`(O,)`.
        w2 (Tensor): As of :class:`torch.nn.Linear`, :math:`(C', O)`.
        b2 (Tensor): :math:`(C',)`.

    Returns:
        Tensor: :math:`(B, N, C')`.
    """
    inputs = x, w1, b1, w2, b2
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        return _FeedForward.apply(*inputs)
    return _forward(*inputs)


def _parts(x: Tensor) -> Tuple[slice, ...]:
    batch, tokens = x.shape[:2]
    size = max(1, PART // max(1, batch))
    return tuple(slice(i, i + size) for i in range(0, tokens, size))


def _forward(x: Tensor,
             w1: Tensor,
             b1: Tensor,
             w2: Tensor,
             b2: Tensor,
             hidden: Optional[Tensor] = None) -> Tensor:
    out = x.new_empty(*x.shape[:2], len(w2))
    for part in _parts(x):
        kept = None if hidden is None else hidden[:, part]
        h = torch.baddbmm(b1, x[:, part], w1, out=kept)
        out[:, part] = F.linear(F.gelu(h), w2, b2)
    return out


class _FeedForward(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2):
        hidden = x.new_empty(*x.shape[:2], len(b1))
        ctx.save_for_backward(x, w1, b1, w2, b2, hidden)
        return _forward(x, w1, b1, w2, b2, hidden)

    @staticmethod
    def backward(ctx, grad):
        *inputs, hidden = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            return _differentiable_backward(inputs, grad)
        x, w1, _, w2, _ = inputs
        grad_x = torch.empty_like(x)
        grad_w1, grad_w2 = torch.zeros_like(w1), torch.zeros_like(w2)
        grad_b1 = w1.new_zeros(w1.shape[2])
        for part in _parts(x):
            h, g = hidden[:, part], grad[:, part].flatten(0, 1)
            grad_w2.addmm_(g.mT, F.gelu(h).flatten(0, 1))
            grad_h = torch.ops.aten.gelu_backward((g @ w2).view_as(h), h)
            grad_b1 += grad_h.sum((0, 1))
            grad_w1.baddbmm_(x[:, part].mT, grad_h)
            grad_x[:, part] = grad_h @ w1.mT
        return grad_x, grad_w1, grad_b1, grad_w2, grad.sum((0, 1))


def _differentiable_backward(inputs: Sequence[Tensor],
                             grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    x, w1, b1, w2, b2 = inputs
    y = F.linear(F.gelu(torch.baddbmm(b1, x, w1)), w2, b2)
    needed = [t for t in inputs if t.requires_grad]
    grads = iter(torch.autograd.grad(y, needed, grad, create_graph=True))
    return tuple(next(grads) if t.requires_grad else None for t in inputs)
