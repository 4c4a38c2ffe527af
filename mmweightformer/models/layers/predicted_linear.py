# Copyright (c) mmweightformer contributors. All rights reserved.
import torch
from torch import Tensor, nn

from ..checks import check_bool, check_int
from .precision import autocast_disabled
from .tracing import is_traced


class PredictedLinear(nn.Module):
    r"""Base of the linear layers whose weight is predicted from the input.

    .. math::
        y = x \, (W_0 + \Delta W(X) / (\lVert \Delta W(X) \rVert_2 + 1)) + b

    where the norm runs down each column of :math:`\Delta W`, that is over the
    inputs of one output. A subclass says in :meth:`predict_delta` how
    :math:`\Delta W` comes from the grid :math:`X`. It takes part in a config
    once it is registered in MMEngine's ``MODELS``, as ``dynamic_linear`` of
    :class:`~mmweightformer.models.WeightFormer`, which builds it from these
    arguments.

    Args:
        in_features (int): C, the size of each input token.
        out_features (int): O, the size of each output token.
        reduction (int): r, by how much what a subclass predicts is narrower
            than the weight. Defaults to 4.
        normalize (bool): Whether :math:`\Delta W` is divided by its norm plus
            one, as published. Defaults to True.

    Raises:
        TypeError: If a size is not an int or ``normalize`` not a bool.
        ValueError: If a size is not positive.

    Shape:
        - Input: :math:`(B, h, w, C)`, any grid from 1×1, or a sequence
          :math:`(B, N, C)`, which is a grid of height 1.
        - Output: :math:`(B, h, w, O)` or :math:`(B, N, O)`.

    Attributes:
        weight (Tensor): :math:`W_0`, input by output: :math:`(C, O)`.
        bias (Tensor): :math:`b`, :math:`(O,)`.
    """

    def __init__(self,
                 in_features: int,
                 out_features: int,
                 reduction: int = 4,
                 normalize: bool = True) -> None:
        super().__init__()
        check_int('in_features', in_features, 1)
        check_int('out_features', out_features, 1)
        check_int('reduction', reduction, 1)
        check_bool('normalize', normalize)
        self.in_features = in_features
        self.out_features = out_features
        self.reduction = reduction
        self.normalize = normalize
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        for param in self.weight, self.bias:
            nn.init.trunc_normal_(param, std=0.02)

    def predict_delta(self, x: Tensor) -> Tensor:
        r"""What the weight of each sample changes by, not yet normalized.

        Args:
            x (Tensor): Grid of tokens, :math:`(B, h, w, C)`.

        Returns:
            Tensor: :math:`\Delta W`, :math:`(B, C, O)`, best in float32 or
            wider, since a sum over tokens leaves the range of float16.
        """
        raise NotImplementedError

    def predict(self, x: Tensor) -> Tensor:
        r"""The weight of each sample.

        Args:
            x (Tensor): Grid of tokens, :math:`(B, h, w, C)`.

        Returns:
            Tensor: The sum of :math:`W_0` and the normalized delta,
            :math:`(B, C, O)`.
        """
        delta = self.predict_delta(x)
        with autocast_disabled(x.device):
            delta = delta.to(torch.promote_types(x.dtype, torch.float32))
            if self.normalize:
                norm = torch.linalg.vector_norm(delta, dim=1, keepdim=True)
                delta = delta / (norm + 1)
            return (self.weight + delta).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            return self.forward(x.unsqueeze(1)).squeeze(1)
        if x.ndim != 4:
            raise ValueError('the input must be (B, h, w, C) or (B, N, C), '
                             f'got {tuple(x.shape)}')
        y = add_product(self.bias, x.flatten(1, 2), self.predict(x))
        return y.unflatten(1, x.shape[1:3])

    def extra_repr(self) -> str:
        text = (f'in_features={self.in_features}, '
                f'out_features={self.out_features}, '
                f'reduction={self.reduction}')
        return text if self.normalize else f'{text}, normalize=False'


def add_product(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``bias + a @ b`` of batches of matrices."""
    if is_traced():
        # Exporters and MMEngine's counter of FLOPs know this better.
        product = a @ b
        return product + bias.to(product.dtype)
    return torch.baddbmm(bias, a, b)
