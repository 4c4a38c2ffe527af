# Copyright (c) mmweightformer contributors. All rights reserved.
import warnings
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS, MODELS
from torch import Tensor, nn

from ..models.checks import check_cfg, check_choice, check_type
from ..models.optional import import_optional
from ..utils.checkpoint import reading
from .image_features import check_file

# mmengine has gathered already, and one process alone computes: torchmetrics
# would wait for the others.
ALONE = dict(sync_on_compute=False)
# Of mmengine's collect_results.
COLLECT_DEVICES = ('cpu', 'gpu', 'npu')
# Images of a split of the Inception score: 10 splits of the usual 50,000.
SPLIT_SIZE = 5000


@METRICS.register_module()
class GenerationMetric(BaseMetric):
    r"""Fréchet distance, Inception score and accuracy of generated images.

    For features of real and generated images with means :math:`\mu` and
    covariances :math:`\Sigma`, and for predicted classes :math:`p(y|x)` of
    generated images,

    .. math::
        \mathrm{FID} &= \lVert \mu_r - \mu_g \rVert^2
            + \mathrm{tr}(\Sigma_r + \Sigma_g - 2 (\Sigma_r\Sigma_g)^{1/2}) \\
        \mathrm{IS} &= \exp \mathbb{E}_x \mathrm{KL}(p(y|x) \,\Vert\, p(y))

    The score is the mean over splits of about 5,000 images. ``accuracy``, in
    %, is the share of generated images in which the feature network sees the
    class that they were generated of. It is given where its classes are those
    of the labels: by :class:`ClassifierFeatures`.

    Args:
        features (dict): Config of the feature network,
            :class:`ClassifierFeatures`, :class:`InceptionFeatures` or another
            one of ``MODELS`` that takes uint8 RGB images (B, 3, H, W) and
            returns features (B, C) and logits (B, classes), with the bool
            ``predicts_labels``.
        reference (str, optional): An ``.npz`` file with ``mu`` (C) and
            ``sigma`` (C, C), the statistics of real images. Defaults to None:
            they are those of the test images.
        collect_device (str): Where results of processes are gathered, 'cpu',
            'gpu' or 'npu'. Defaults to 'cpu'.
        prefix (str, optional): Defaults to None, which is 'generation'.

    Raises:
        FileNotFoundError: If ``reference`` or a checkpoint is missing.
        ImportError: If torchmetrics is not installed.
        TypeError: If an argument has a wrong type.
        ValueError: If ``reference`` holds no such arrays, ``features`` is no
            feature network, or another argument has a wrong value.
    """

    default_prefix = 'generation'

    def __init__(self,
                 features: dict,
                 reference: Optional[str] = None,
                 collect_device: str = 'cpu',
                 prefix: Optional[str] = None) -> None:
        check_choice('collect_device', collect_device, COLLECT_DEVICES)
        check_type('prefix', prefix, (str, type(None)), 'a str or None')
        super().__init__(collect_device, prefix)
        # Not after hours of sampling.
        import_optional('torchmetrics', 'GenerationMetric')
        self.reference = None if reference is None else _read_statistics(
            reference)
        self.network: nn.Module = check_cfg('features', features, MODELS.build)
        if not hasattr(self.network, 'predicts_labels'):
            raise ValueError('features must be a feature network, such as '
                             f'ClassifierFeatures, got {features["type"]!r}')
        self.network.eval()

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Keep the features of one batch.

        Args:
            data_batch (dict): ``inputs``, uint8 BGR images (3, H, W), in a
                list or a tensor. Not needed with a ``reference``.
            data_samples (Sequence[dict]): ``pred_img``, uint8 RGB (3, H, W),
                and ``gt_label`` of each. The feature network is moved to
                where the former are.

        Raises:
            ValueError: If images are missing or not such, if there are not
                as many inputs as samples, if a label is none
                of the network's classes, if features are not finite or if
                their number is not that of ``reference``.
        """
        for sample in data_samples:
            if not {'pred_img', 'gt_label'} <= sample.keys():
                raise ValueError('data samples must have pred_img, the '
                                 'generated image, and gt_label, got '
                                 f'{list(sample)}')
        images = [sample['pred_img'] for sample in data_samples]
        features, logits = self._extract('pred_img', images)
        results = dict(fake=features, logits=logits)
        if self.reference is None:
            inputs = (data_batch or {}).get('inputs', ())
            if len(inputs) != len(images):
                raise ValueError('the data must have as many inputs as there '
                                 f'are samples, {len(images)}, got '
                                 f'{len(inputs)}')
            real = [image.to(images[0].device).flip(0) for image in inputs]
            results['real'] = self._extract('inputs', real)[0]
        elif features.shape[1:] != self.reference[0].shape:
            raise ValueError(f'reference has {len(self.reference[0])} '
                             f'features, the network {features.shape[1]}')
        for i, sample in enumerate(data_samples):
            label = int(sample['gt_label'])
            if self.network.predicts_labels and not (0 <= label <
                                                     logits.shape[1]):
                raise ValueError(f'the feature network has {logits.shape[1]} '
                                 f'classes, and gt_label is {label}')
            self.results.append(
                dict(
                    label=label,
                    **{
                        name: rows[i]
                        for name, rows in results.items()
                    }))

    def _extract(self, name: str,
                 images: List[Tensor]) -> Tuple[np.ndarray, np.ndarray]:
        for image in images:
            if image.dtype != torch.uint8 or image.dim() != 3 or len(
                    image) != 3:
                raise ValueError(f'{name} must be uint8 images (3, H, W), got '
                                 f'{image.dtype} {tuple(image.shape)}')
        network = self.network.to(images[0].device)
        if len({image.shape for image in images}) == 1:
            batches = [torch.stack(images)]
        else:
            batches = [image[None] for image in images]
        with torch.no_grad():
            outputs = [network(batch) for batch in batches]
        features, logits = (torch.cat(parts).cpu() for parts in zip(*outputs))
        if not (features.isfinite().all() and logits.isfinite().all()):
            raise ValueError(f'the feature network made of {name} values that '
                             'are not finite')
        return features.numpy(), logits.numpy()

    def compute_metrics(self, results: List[dict]) -> Dict[str, float]:
        """Compute the metrics of all samples.

        Args:
            results (list[dict]): What ``process`` kept of each.

        Returns:
            dict[str, float]: ``FID``, ``IS`` and, in % and if the network
            predicts labels, ``accuracy``.

        Raises:
            ValueError: If there are fewer than 2 samples.
        """
        if len(results) < 2:
            raise ValueError('a covariance takes at least 2 samples, got '
                             f'{len(results)}')

        def column(name: str) -> Tensor:
            return torch.from_numpy(np.stack([row[name] for row in results]))

        fake, logits = column('fake').double(), column('logits').double()
        if self.reference is None:
            fid = _fid(column('real').double(), fake)
        else:
            fid = frechet_distance(*self.reference, fake.mean(0), fake.T.cov())
        metrics = {'FID': fid, 'IS': _inception_score(logits)}
        if self.network.predicts_labels:
            hits = logits.argmax(1) == column('label')
            metrics['accuracy'] = 100 * hits.double().mean().item()
        return metrics


def frechet_distance(mean1: Tensor, cov1: Tensor, mean2: Tensor,
                     cov2: Tensor) -> float:
    """The squared Fréchet distance of two Gaussians.

    Args:
        mean1 (Tensor): Mean (C) of the first.
        cov1 (Tensor): Covariance (C, C) of the first.
        mean2 (Tensor): Mean of the second.
        cov2 (Tensor): Covariance of the second.

    Returns:
        float: The distance.
    """
    # The product has the real, non-negative eigenvalues of the symmetric
    # cov1^(1/2) cov2 cov1^(1/2); rounding may add imaginary parts.
    root = torch.linalg.eigvals(cov1 @ cov2).sqrt().real.sum()
    shift = (mean1 - mean2).square().sum()
    return (shift + cov1.trace() + cov2.trace() - 2 * root).item()


def _fid(real: Tensor, fake: Tensor) -> float:
    from torchmetrics.image.fid import FrechetInceptionDistance
    metric = FrechetInceptionDistance(_identity(real.shape[1]), **ALONE)
    metric.update(real, real=True)
    metric.update(fake, real=False)
    return metric.compute().item()


def _inception_score(logits: Tensor) -> float:
    from torchmetrics.image.inception import InceptionScore
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        # Of its memory, and of the deviation of one split.
        warnings.simplefilter('ignore', UserWarning)
        # It shuffles before it splits.
        torch.manual_seed(0)
        metric = InceptionScore(
            _identity(logits.shape[1]),
            splits=max(1,
                       len(logits) // SPLIT_SIZE),
            **ALONE)
        metric.update(logits)
        return metric.compute()[0].item()


def _identity(num_features: int) -> nn.Module:
    """What torchmetrics takes for a feature network."""
    identity = nn.Identity()
    identity.num_features = num_features
    return identity


def _read_statistics(path: str) -> Tuple[Tensor, Tensor]:
    check_file('reference', path)
    with reading(path, 'statistics of features'):
        with np.load(path) as file:
            arrays: Any = [file['mu'], file['sigma']]
        mean, cov = (torch.from_numpy(array).double() for array in arrays)
    if mean.dim() != 1 or cov.shape != (len(mean), len(mean)):
        raise ValueError(f'reference must have mu (C) and sigma (C, C), got '
                         f'{tuple(mean.shape)} and {tuple(cov.shape)}')
    if not (mean.isfinite().all() and cov.isfinite().all()):
        raise ValueError(f'reference must be finite, and {path} is not')
    return mean, cov
