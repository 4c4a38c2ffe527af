# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .precision import autocast_disabled
from .predicted_linear import PredictedLinear, add_product
from .tracing import is_traced


class FactoredLinear(PredictedLinear):
    r"""Base of the predictions that span the weight by two learned factors.

    .. math::
        [A \mid B] = X_p W_p + b_p, \qquad
        \Delta W = W_1^T \, S(A, B) \, W_2

    where :math:`X_p` is the 2×2 average-pooled grid. A subclass says in
    :meth:`predict_core` what the core :math:`S`, :math:`C/r \times O/r`, is.

    The 2×2 pooling drops an odd last row or column, as published. Along an
    axis of one token, where nothing would be left, it does not pool.

    Args:
        in_features (int): C, the size of each input token.
        out_features (int): O, the size of each output token.
        reduction (int): r, both predicted factors are 1/r as wide as the side
            of the weight that they span. Defaults to 4.
        normalize (bool): As of :class:`PredictedLinear`. Defaults to True.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If a size is not positive, or ``reduction`` does not
            divide ``in_features`` and ``out_features``.

    Shape:
        As of :class:`PredictedLinear`.

    Attributes:
        proj (nn.Linear): :math:`W_p, b_p`, from C to C/r + O/r.
        w1 (Tensor): :math:`W_1`, :math:`(C/r, C)`.
        w2 (Tensor): :math:`W_2`, :math:`(O/r, O)`.
    """

    def __init__(self,
                 in_features: int,
                 out_features: int,
                 reduction: int = 4,
                 normalize: bool = True) -> None:
        super().__init__(in_features, out_features, reduction, normalize)
        if in_features % reduction or out_features % reduction:
            raise ValueError(
                f'reduction ({reduction}) must divide in_features '
                f'({in_features}) and out_features ({out_features})')
        self.ranks = in_features // reduction, out_features // reduction
        self.proj = nn.Linear(in_features, sum(self.ranks))
        self.w1 = nn.Parameter(torch.empty(self.ranks[0], in_features))
        self.w2 = nn.Parameter(torch.empty(self.ranks[1], out_features))
        for param in self.w1, self.w2, self.proj.weight:
            nn.init.trunc_normal_(param, std=0.02)
        nn.init.zeros_(self.proj.bias)

    def predict_core(self, a: Tensor, b: Tensor,
                     scale: Union[float, Tensor]) -> Tensor:
        r"""The core of the prediction.

        Args:
            a (Tensor): :math:`A`, :math:`(B, N', C/r)`.
            b (Tensor): :math:`B`, :math:`(B, N', O/r)`.
            scale (float or Tensor): :math:`1 / (N \sqrt C)`, which makes a
                sum over tokens a mean.

        Returns:
            Tensor: :math:`S`, :math:`(B, C/r, O/r)`.
        """
        raise NotImplementedError

    def factorize(self, a: Tensor, b: Tensor,
                  scale: Union[float, Tensor]) -> Tuple[Tensor, Tensor]:
        r"""Matrices L and R of which :math:`\Delta W` is :math:`L^T R`."""
        core = self.predict_core(a, b, scale)
        left = self.w1.to(core.dtype).expand(core.shape[0], -1, -1)
        return left, core @ self.w2.to(core.dtype)

    def predict_factors(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        r"""L and R of :meth:`factorize`, for a grid (B, h, w, C)."""
        factors = self.proj(_pool(x))
        # A sum over 10^4 tokens leaves the range of float16; the one over
        # products of bfloat16 is done in float32.
        wide = torch.promote_types(x.dtype, torch.float32)
        dtype = x.dtype if x.dtype == torch.bfloat16 else wide
        with autocast_disabled(x.device):
            a, b = factors.to(dtype).split(self.ranks, dim=-1)
            scale = self.in_features**-0.5
            if is_traced():
                # torch.export saves no float that depends on a size.
                scale = x.new_full((), scale, dtype=wide)
            scale = scale / (x.shape[1] * x.shape[2])
            return self.factorize(a, b, scale)

    def predict_delta(self, x: Tensor) -> Tensor:
        left, right = self.predict_factors(x)
        with autocast_disabled(x.device):
            return left.mT @ right

    def predict(self, x: Tensor) -> Tensor:
        if type(self).predict_delta is not FactoredLinear.predict_delta:
            return super().predict(x)  # of a subclass that has its own delta
        left, right = self.predict_factors(x)
        with autocast_disabled(x.device):
            if self.normalize:
                right = _normalize(left, right)
            weight = self.weight.to(right.dtype)
            return add_product(weight, left.mT, right).to(x.dtype)


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


def _normalize(left: Tensor, right: Tensor) -> Tensor:
    """``right``, scaled so that the columns of LᵀR have a norm n/(n + 1).

    Their squares are the diagonal of Rᵀ(LLᵀ)R, so LᵀR is not formed, which is
    by far the largest of these matrices.
    """
    wide = torch.promote_types(right.dtype, torch.float32)
    # Products of four of their entries leave the range of float32 from 1e10.
    small_left, left_max = _shrink(left, (1, 2))
    small_right, right_max = _shrink(right, (1, ))
    square = (small_right.to(wide) *
              (small_left @ small_left.mT @ small_right)).sum(
                  1, keepdim=True)
    # Rounding may have left some below zero; and at zero, where the root has
    # no gradient, there shall be none.
    norm = square.clamp_min(torch.finfo(wide).tiny).sqrt()
    norm = norm * left_max.to(wide) * right_max.to(wide)
    return (right / (norm + 1)).to(right.dtype)


def _shrink(x: Tensor, dim: Tuple[int, ...]) -> Tuple[Tensor, Tensor]:
    """``x`` over its largest entries along ``dim``, and these, at least 1."""
    largest = x.detach().abs().amax(dim, keepdim=True).clamp_min(1)
    return x / largest, largest
