# Copyright (c) mmweightformer contributors. All rights reserved.
"""The predictions that WeightFormer's bilateral one is compared with.

The paper describes each by a line. The forms here are readings of these
lines, which differ from :class:`DynamicLinear` by what the line says and have
its arguments, shapes and parameters.
"""
from typing import Tuple, Union

import torch.nn.functional as F
from torch import Tensor, nn

from .dynamic_linear import DynamicLinear
from .factored_linear import FactoredLinear


class GAPDynamicLinear(DynamicLinear):
    r"""'GAP': the weight is predicted from a globally pooled vector.

    A reading: the bilateral prediction from one token, the grid's mean.

    .. math::
        [a \mid b] &= \bar{x} W_p + b_p \\
        \Delta W &= W_1^T \, \sigma(a)^T \sigma(b) \, W_2 / \sqrt{C}

    So :math:`\Delta W` has rank 1.
    """

    def predict_factors(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        return super().predict_factors(x.mean(dim=(1, 2), keepdim=True))


class UnactivatedDynamicLinear(FactoredLinear):
    r"""'Linear': the bilateral prediction without activation.

    A reading of :math:`\Delta W = W_1 X^T X W_2`, with the two weights
    factored as those of the bilateral one are.

    .. math::
        [A \mid B] &= X_p W_p + b_p \\
        \Delta W &= W_1^T \, A^T B \, W_2 / (N \sqrt{C})
    """

    def predict_core(self, a: Tensor, b: Tensor,
                     scale: Union[float, Tensor]) -> Tensor:
        return (a * scale).mT @ b


class NonlinearDynamicLinear(FactoredLinear):
    r"""'Nonlinear': one activation on the product.

    A reading: the product is that of the tokens, as it is in the bilateral
    prediction, whose two activations are in front of it.

    .. math::
        [A \mid B] &= X_p W_p + b_p \\
        \Delta W &= W_1^T \, \sigma(A^T B / (N \sqrt{C})) \, W_2
    """

    def predict_core(self, a: Tensor, b: Tensor,
                     scale: Union[float, Tensor]) -> Tensor:
        return F.silu((a * scale).mT @ b)


class DeepDynamicLinear(DynamicLinear):
    r"""'Deep': predictors of more layers.

    A reading: one more layer on either side of the bilateral prediction.

    .. math::
        [A \mid B] &= X_p W_p + b_p \\
        A' &= \sigma(A) W_a + b_a, \quad B' = \sigma(B) W_b + b_b \\
        \Delta W &= W_1^T \, \sigma(A')^T \sigma(B') \, W_2 / (N \sqrt{C})

    Attributes:
        deep1 (nn.Linear): :math:`W_a, b_a`, from C/r to C/r.
        deep2 (nn.Linear): :math:`W_b, b_b`, from O/r to O/r.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.deep1, self.deep2 = (nn.Linear(rank, rank) for rank in self.ranks)
        for layer in self.deep1, self.deep2:
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def factorize(self, a: Tensor, b: Tensor,
                  scale: Union[float, Tensor]) -> Tuple[Tensor, Tensor]:
        a, b = (F.linear(
            F.silu(x), layer.weight.to(x.dtype), layer.bias.to(x.dtype))
                for x, layer in ((a, self.deep1), (b, self.deep2)))
        return super().factorize(a, b, scale)
