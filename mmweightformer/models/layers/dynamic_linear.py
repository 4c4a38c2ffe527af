# Copyright (c) mmweightformer contributors. All rights reserved.
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_int
from .precision import autocast_disabled
from .tracing import is_traced


class DynamicLinear(nn.Module):
    r"""Linear layer whose weight is predicted from its input.

    The bilateral activation of WeightFormer: for each sample, with
    :math:`N = hw` tokens of :math:`C` channels and :math:`X_p` the 2×2
    average-pooled grid,

    .. math::
        [A \mid B] &= X_p W_p + b_p \\
        \Delta W &= W_1^T \, \sigma(A)^T \sigma(B) \, W_2 / (N \sqrt{C}) \\
        y &= x \, (W_0 + \Delta W / (\lVert \Delta W \rVert_2 + 1)) + b

    where :math:`\sigma` is SiLU and the norm runs down each column of
    :math:`\Delta W`, that is over the inputs of one output. The product is
    formed from where it is narrowest: from both ends, as published, where
    there are no more pooled tokens than :math:`A` is wide, else from the
    middle.

    The 2×2 pooling drops an odd last row or column, as published. Along an
    axis of one token, where nothing would be left, it does not pool.

    Args:
        in_features (int): C, the size of each input token.
        out_features (int): O, the size of each output token.
        reduction (int): r, both predicted factors are 1/r as wide as the side
            of the weight that they span. Defaults to 4.

    Raises:
        TypeError: If a size is not an int.
        ValueError: If a size is not positive, or ``reduction`` does not
            divide ``in_features`` and ``out_features``.

    Shape:
        - Input: :math:`(B, h, w, C)`, any grid from 1×1.
        - Output: :math:`(B, h, w, O)`.

    Attributes:
        weight (Tensor): :math:`W_0`, input by output: :math:`(C, O)`.
        bias (Tensor): :math:`b`, :math:`(O,)`.
        proj (nn.Linear): :math:`W_p, b_p`, from C to C/r + O/r.
        w1 (Tensor): :math:`W_1`, :math:`(C/r, C)`.
        w2 (Tensor): :math:`W_2`, :math:`(O/r, O)`.
    """

    def __init__(self,
                 in_features: int,
                 out_features: int,
                 reduction: int = 4) -> None:
        super().__init__()
        check_int('in_features', in_features, 1)
        check_int('out_features', out_features, 1)
        check_int('reduction', reduction, 1)
        if in_features % reduction or out_features % reduction:
            raise ValueError(
                f'reduction ({reduction}) must divide in_features '
                f'({in_features}) and out_features ({out_features})')
        self.in_features = in_features
        self.out_features = out_features
        self.reduction = reduction
        ranks = in_features // reduction, out_features // reduction
        self.ranks = ranks
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.proj = nn.Linear(in_features, sum(ranks))
        self.w1 = nn.Parameter(torch.empty(ranks[0], in_features))
        self.w2 = nn.Parameter(torch.empty(ranks[1], out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for param in (self.weight, self.bias, self.w1, self.w2,
                      self.proj.weight):
            nn.init.trunc_normal_(param, std=0.02)
        nn.init.zeros_(self.proj.bias)

    def predict(self, x: Tensor) -> Tensor:
        r"""The weight of each sample.

        Args:
            x (Tensor): Grid of tokens, :math:`(B, h, w, C)`.

        Returns:
            Tensor: The sum of :math:`W_0` and the normalised delta,
            :math:`(B, C, O)`.
        """
        factors = self.proj(_pool(x))
        # A sum over 10^4 tokens leaves the range of float16; the one over
        # products of bfloat16 is done in float32.
        dtype = x.dtype
        if dtype != torch.bfloat16:
            dtype = torch.promote_types(dtype, torch.float32)
        with autocast_disabled(x.device):
            w1, w2 = self.w1.to(dtype), self.w2.to(dtype)
            a, b = F.silu(factors.to(dtype)).split(self.ranks, dim=-1)
            a = a * self.in_features**-0.5 / (x.shape[1] * x.shape[2])
            # The delta is LᵀR, from where the product is narrowest.
            if not is_traced() and a.shape[1] <= a.shape[2]:
                left, right = a @ w1, b @ w2
            else:
                left = w1.expand(a.shape[0], -1, -1)
                right = (a.mT @ b) @ w2
            weight = self.weight.to(dtype)
            return _add_product(weight, left.mT, _normalise(left,
                                                            right)).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        y = _add_product(self.bias, x.flatten(1, 2), self.predict(x))
        return y.unflatten(1, x.shape[1:3])

    def extra_repr(self) -> str:
        return (f'in_features={self.in_features}, '
                f'out_features={self.out_features}, '
                f'reduction={self.reduction}')


def _pool(x: Tensor) -> Tensor:
    """2×2 average pooling of the grid, (B, h, w, C) → (B, N', C)."""
    if not is_traced():
        window = [min(size, 2) for size in x.shape[1:3]]
        return F.avg_pool2d(x.permute(0, 3, 1, 2), window).flatten(2).mT
    # avg_pool2d would be compiled for even sizes and for odd ones.
    if x.shape[1] > 1:
        x = (x[:, :-1:2] + x[:, 1::2]) / 2
    if x.shape[2] > 1:
        x = (x[:, :, :-1:2] + x[:, :, 1::2]) / 2
    return x.flatten(1, 2)


def _normalise(left: Tensor, right: Tensor) -> Tensor:
    """``right``, scaled so that the columns of LᵀR have a norm n/(n + 1).

    Their squares are the diagonal of Rᵀ(LLᵀ)R, so LᵀR is not formed, which is
    by far the largest of these matrices.
    """
    wide = torch.promote_types(right.dtype, torch.float32)
    square = (right.to(wide) * (left @ left.mT @ right)).sum(1, keepdim=True)
    # Rounding may have left some below zero; and at zero, where the root has
    # no gradient, there shall be none.
    norm = square.clamp_min(torch.finfo(wide).tiny).sqrt()
    return (right / (norm + 1)).to(right.dtype)


def _add_product(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``bias + a @ b`` of batches of matrices."""
    if is_traced():
        # Exporters and MMEngine's counter of FLOPs know this better.
        product = a @ b
        return product + bias.to(product.dtype)
    return torch.baddbmm(bias, a, b)
