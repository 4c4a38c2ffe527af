# Copyright (c) mmweightformer contributors. All rights reserved.
"""The layers of a network whose weights are predicted, and what is added."""
from typing import Dict, Union

import torch
from torch import Tensor, nn

from .layers import PredictedDepthwiseConv2d, PredictedLinear
from .layers.precision import autocast_disabled

PredictedLayer = Union[PredictedLinear, PredictedDepthwiseConv2d]

# So many samples' weights are predicted in one piece.
PART = 16


def predicted_layers(module: nn.Module) -> Dict[str, PredictedLayer]:
    """Find the layers whose weights are predicted.

    Args:
        module (nn.Module): A backbone, or any module.

    Returns:
        dict[str, PredictedLinear | PredictedDepthwiseConv2d]: The layers by
        their names in ``module``.

    Raises:
        ValueError: If there are none.
    """
    layers = {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, (PredictedLinear, PredictedDepthwiseConv2d))
    }
    if not layers:
        raise ValueError(
            f'{type(module).__name__} must have layers whose weights are '
            'predicted (PredictedLinear, PredictedDepthwiseConv2d), and has '
            'none')
    return layers


def predicted_delta(layer: PredictedLayer, x: Tensor) -> Tensor:
    r"""What a layer adds to its weight for an input.

    It is computed in the precision of the layer's parameters, also where
    autocast has another one, as the difference of the predicted weight and
    :math:`W_0`, whose rounding it has.

    Args:
        layer (PredictedLinear | PredictedDepthwiseConv2d): The layer.
        x (Tensor): What its ``forward`` takes, a grid or a sequence.

    Returns:
        Tensor: The normalized :math:`\Delta W` of each sample,
        :math:`(B, C, O)` of a linear layer, :math:`(B, C, K, K)` of a
        convolution.
    """
    if x.ndim == 3:  # a sequence
        x = x.unsqueeze(1 if isinstance(layer, PredictedLinear) else 2)
    with torch.no_grad(), autocast_disabled(x.device):
        weight = layer.predict(x.to(layer.weight.dtype))
        return weight - layer.weight.view(weight.shape[1:])


def delta_ratio(layer: PredictedLayer, x: Tensor) -> Tensor:
    r"""How large what a layer adds is beside the weight.

    Args:
        layer (PredictedLinear | PredictedDepthwiseConv2d): The layer.
        x (Tensor): What its ``forward`` takes, B samples.

    Returns:
        Tensor: :math:`\lVert \Delta W \rVert_F / \lVert W_0 \rVert_F` of each
        sample, :math:`(B,)`, not finite where :math:`W_0` is zero.
    """
    norms = [
        torch.linalg.vector_norm(
            predicted_delta(layer, part).flatten(1), dim=1)
        for part in x.split(PART)
    ]
    return torch.cat(norms) / layer.weight.detach().norm()
