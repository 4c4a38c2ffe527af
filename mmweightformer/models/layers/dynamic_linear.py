# Copyright (c) mmweightformer contributors. All rights reserved.
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_int
from .precision import autocast_disabled


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
    :math:`\Delta W`, that is over the inputs of one output. With more tokens
    than :math:`A` is wide the product is formed from the middle, where every
    factor is narrow, else from both ends, as published.

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
        """The normalised weight delta of each sample.

        Args:
            x (Tensor): Grid of tokens, :math:`(B, h, w, C)`.

        Returns:
            Tensor: :math:`(B, C, O)`, in float32 or wider.
        """
        h, w = x.shape[1:3]
        window = min(h, 2), min(w, 2)
        pooled = F.avg_pool2d(x.permute(0, 3, 1, 2), window).flatten(2)
        factors = self.proj(pooled.transpose(1, 2))
        # A sum over 10^4 tokens and a sum of squares leave the range of
        # float16 and the precision of bfloat16.
        dtype = torch.promote_types(x.dtype, torch.float32)
        w1, w2 = self.w1.to(dtype), self.w2.to(dtype)
        with autocast_disabled(x.device):
            a, b = F.silu(factors.to(dtype)).split((w1.shape[0], w2.shape[0]),
                                                   dim=-1)
            b = b * (self.in_features**-0.5 / (h * w))
            # Either order is exact; the cheaper one is a matter of N'.
            if a.shape[1] > a.shape[2]:
                delta = w1.mT @ (a.mT @ b @ w2)
            else:
                delta = (a @ w1).mT @ (b @ w2)
            norm = torch.linalg.vector_norm(delta, dim=1, keepdim=True)
            return delta / (norm + 1)

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight + self.predict(x)).to(x.dtype)
        y = x.flatten(1, 2) @ weight
        # Under autocast the product is narrower than the bias.
        return (y + self.bias.to(y.dtype)).unflatten(1, x.shape[1:3])

    def extra_repr(self) -> str:
        return (f'in_features={self.in_features}, '
                f'out_features={self.out_features}, '
                f'reduction={self.reduction}')
