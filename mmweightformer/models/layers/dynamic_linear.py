# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Tuple, Union

import torch.nn.functional as F
from torch import Tensor

from .factored_linear import FactoredLinear
from .tracing import is_traced


class DynamicLinear(FactoredLinear):
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
        normalize (bool): Whether :math:`\Delta W` is divided by its norm plus
            one, as published. Defaults to True.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If a size is not positive, or ``reduction`` does not
            divide ``in_features`` and ``out_features``.

    Shape:
        - Input: :math:`(B, h, w, C)`, any grid from 1×1, or a sequence
          :math:`(B, N, C)`, which is a grid of height 1.
        - Output: :math:`(B, h, w, O)` or :math:`(B, N, O)`.

    Attributes:
        weight (Tensor): :math:`W_0`, input by output: :math:`(C, O)`.
        bias (Tensor): :math:`b`, :math:`(O,)`.
        proj (nn.Linear): :math:`W_p, b_p`, from C to C/r + O/r.
        w1 (Tensor): :math:`W_1`, :math:`(C/r, C)`.
        w2 (Tensor): :math:`W_2`, :math:`(O/r, O)`.
    """

    def predict_core(self, a: Tensor, b: Tensor,
                     scale: Union[float, Tensor]) -> Tensor:
        return (F.silu(a) * scale).mT @ F.silu(b)

    def factorize(self, a: Tensor, b: Tensor,
                  scale: Union[float, Tensor]) -> Tuple[Tensor, Tensor]:
        if is_traced() or a.shape[1] > a.shape[2]:
            return super().factorize(a, b, scale)
        w1, w2 = self.w1.to(a.dtype), self.w2.to(b.dtype)
        return (F.silu(a) * scale) @ w1, F.silu(b) @ w2
