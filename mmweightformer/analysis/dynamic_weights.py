# Copyright (c) mmweightformer contributors. All rights reserved.
"""What predicted layers add to their weights, image by image."""
from contextlib import contextmanager
from typing import (Dict, Iterable, Iterator, List, NamedTuple, Optional,
                    Sequence, Tuple)

import numpy as np
import torch
from torch import Tensor, nn

from ..models import PredictedLinear
from ..models.checks import check_int
from ..models.predicted_weights import (PredictedLayer, predicted_delta,
                                        predicted_layers)

LINEAR, CONV = 'linear', 'conv'
# A matrix of all images is multiplied in so many pieces.
PIECES = 16


@contextmanager
def recorded_inputs(
        layers: Dict[str, PredictedLayer]) -> Iterator[Dict[str, Tensor]]:
    """Note what layers get as their input while the context is open.

    Args:
        layers (dict[str, PredictedLinear | PredictedDepthwiseConv2d]): The
            layers by name.

    Yields:
        dict[str, Tensor]: The input of the last call of each layer by name,
        without its graph.
    """
    inputs: Dict[str, Tensor] = {}

    def recorder(name: str):

        def record(layer: nn.Module, args: tuple) -> None:
            inputs[name] = args[0].detach()

        return record

    handles = [
        layer.register_forward_pre_hook(recorder(name))
        for name, layer in layers.items()
    ]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


class LayerWeights(NamedTuple):
    r"""What one layer adds to its weight, for N images.

    Attributes:
        name (str): The layer's name.
        kind (str): 'linear' or 'conv'.
        ratios (Tensor): :math:`\lVert \Delta W \rVert_F / \lVert W_0
            \rVert_F`, (N,) in float64.
        gram (Tensor): Inner products of the images' :math:`\Delta W`, (N, N)
            in float64.
        weight (Tensor, optional): :math:`w_0` of a convolution, (C, K, K).
        kernels (Tensor, optional): :math:`\Delta w` of a convolution,
            (N, C, K, K).
    """
    name: str
    kind: str
    ratios: Tensor
    gram: Tensor
    weight: Optional[Tensor] = None
    kernels: Optional[Tensor] = None

    def similarity(self, centred: bool) -> Tensor:
        r"""Cosine similarity of :math:`\Delta W` between images.

        Args:
            centred (bool): Whether the mean over the images is taken off,
                after each :math:`\Delta W` was scaled to norm 1, so that no
                image outweighs the others. The mean is what images share, a
                large part of each; what is left says how they differ. Two
                images have then a similarity of about -1/(N - 1) in the mean.

        Returns:
            Tensor: (N, N) in float64; 0 where there is nothing to compare.
        """
        similarity = _normalize(self.gram, 0.)
        if not centred:
            return similarity
        # The Gram matrix of what is left, without forming that.
        mean = similarity.mean(0, keepdim=True)
        gram = similarity - mean - mean.mT + mean.mean()
        # Images that are all alike leave nothing but rounding.
        return _normalize(gram, 1e-6)


def _normalize(gram: Tensor, least: float) -> Tensor:
    """Cosines of vectors by their Gram matrix, 0 for those of least norm."""
    norm = gram.diagonal().clamp_min(0).sqrt()
    norm = norm.masked_fill(norm <= least, float('inf'))
    return gram / (norm[:, None] * norm)


def dynamic_weights(module: nn.Module,
                    images: Iterable[Tensor]) -> List[LayerWeights]:
    r"""Run a network and look at what its predicted layers add.

    The :math:`\Delta W` of all images are kept until the end, in the
    computer's memory: :math:`4 C O` bytes an image and linear layer, 14 MB an
    image in all for WeightFormer-S.

    Args:
        module (nn.Module): A backbone, or any module that takes images.
        images (Iterable[Tensor]): Batches of images (B, 3, H, W) as
            ``module`` gets them, on its device. Sizes may differ between
            batches.

    Returns:
        list[LayerWeights]: Each predicted layer, in the module's order, with
        all images in their order.

    Raises:
        ValueError: If the module has no predicted layer, one of them is not
            called or predicts what is not finite, or there is no image.
    """
    layers = predicted_layers(module)
    deltas: Dict[str, List[Tensor]] = {name: [] for name in layers}
    for batch in images:
        with torch.no_grad(), recorded_inputs(layers) as inputs:
            module(batch)
        for name, layer in layers.items():
            if name not in inputs:
                raise ValueError(f'{name} of {type(module).__name__} is not '
                                 'called for an image')
            deltas[name].append(predicted_delta(layer, inputs[name]).cpu())
    if not all(deltas.values()):
        raise ValueError('images must be at least one, got none')
    # Each is let go when it has been looked at.
    return [
        _summarize(name, layer, torch.cat(deltas.pop(name)))
        for name, layer in layers.items()
    ]


def _summarize(name: str, layer: PredictedLayer,
               delta: Tensor) -> LayerWeights:
    gram = torch.zeros(len(delta), len(delta), dtype=torch.float64)
    flat = delta.flatten(1)
    for part in flat.split(-(-flat.shape[1] // PIECES), dim=1):
        gram += part.double() @ part.double().mT
    if not gram.isfinite().all():
        raise ValueError(f'what {name} predicts is not finite')
    norm = layer.weight.detach().double().norm().cpu()
    ratios = gram.diagonal().sqrt() / norm
    if isinstance(layer, PredictedLinear):
        return LayerWeights(name, LINEAR, ratios, gram)
    weight = layer.weight.detach().squeeze(1).cpu()
    return LayerWeights(name, CONV, ratios, gram, weight, delta)


class ClassContrast(NamedTuple):
    """Whether two images of one class get closer weights than others.

    Attributes:
        within (float): Mean similarity of two images of one class.
        between (float): Mean similarity of two images of different classes.
        chance (tuple[float, float]): The middle 95 % of ``within`` where
            labels are shuffled among the images.
        p_value (float): Share of such draws, this one among them, whose
            ``within`` is at least as large.
    """
    within: float
    between: float
    chance: Tuple[float, float]
    p_value: float


def class_contrasts(similarities: Sequence[Tensor],
                    labels: Sequence[int],
                    permutations: int = 2000,
                    seed: int = 0) -> List[ClassContrast]:
    """Compare similarity within classes with that between them.

    The uncertainty is that of a permutation test: labels are shuffled among
    the images, which keeps the sizes of the classes and the dependence of
    pairs that share an image.

    Args:
        similarities (Sequence[Tensor]): Symmetric matrices (N, N).
        labels (Sequence[int]): The class of each image.
        permutations (int): Number of draws. Defaults to 2000.
        seed (int): Seed of the draws. Defaults to 0.

    Returns:
        list[ClassContrast]: That of each matrix, from the same draws.

    Raises:
        TypeError: If ``permutations`` is not an int.
        ValueError: If it is not positive, or there are no two images of one
            class, or none of different ones.
    """
    check_int('permutations', permutations, 1)
    labels = np.asarray(labels)
    rows, columns = np.triu_indices(len(labels), 1)
    pairs = np.stack([np.asarray(s)[rows, columns] for s in similarities])
    same = labels[rows] == labels[columns]
    if not 0 < same.sum() < len(same):
        raise ValueError('labels must be of two classes or more, with two '
                         f'images or more in one, got {labels.tolist()}')
    within, between = pairs[:, same].mean(1), pairs[:, ~same].mean(1)
    generator, draws = np.random.default_rng(seed), []
    for _ in range(permutations):
        drawn = generator.permutation(labels)
        draws.append(pairs[:, drawn[rows] == drawn[columns]].mean(1))
    # Draws that are equal but for rounding count.
    reached = np.sum(draws >= within - 1e-12, axis=0)
    chance = np.quantile(draws, [0.025, 0.975], axis=0).T
    p_values = (1 + reached) / (1 + permutations)
    return [
        ClassContrast(float(w), float(b), tuple(map(float, c)), float(p))
        for w, b, c, p in zip(within, between, chance, p_values)
    ]


def varied_channels(layer: LayerWeights, number: int) -> List[int]:
    """The channels whose predicted kernels differ most between images.

    Args:
        layer (LayerWeights): A convolution.
        number (int): How many; all, if there are no more.

    Returns:
        list[int]: Channels, the one that varies most first. Of one image,
        those whose kernels are largest.
    """
    kernels = layer.kernels
    if len(kernels) > 1:
        kernels = kernels - kernels.mean(0)
    energy = kernels.square().sum((0, 2, 3))
    return energy.argsort(descending=True)[:number].tolist()
