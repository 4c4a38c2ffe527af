# Copyright (c) mmweightformer contributors. All rights reserved.
from zipfile import BadZipFile

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS

from ..models.checks import check_number


@TRANSFORMS.register_module()
class LoadLatents(BaseTransform):
    r"""Draw a latent image from what an autoencoder's encoder predicts.

    A file holds the mean :math:`\mu` and the standard deviation
    :math:`\sigma` of the latents of one image and of its mirror image, as
    ``tools/dataset_converters/imagenet_latents.py`` writes them. Drawn is
    :math:`\mu + \sigma \varepsilon` with
    :math:`\varepsilon \sim \mathcal{N}(0, 1)`, by NumPy's global generator,
    which MMEngine seeds in each worker.

    Required keys:

    - ``img_path``: a .npy file of shape (2, 2, C, h, w): image and mirror
      image; mean and standard deviation.

    Added keys:

    - ``img`` (Tensor): the latent image, float32, (C, h, w).
    - ``img_shape`` (tuple[int]): (h, w).
    - ``flip`` (bool): whether it is the mirror image.

    Args:
        flip_prob (float): The probability of the mirror image. Defaults
            to 0.5.

    Raises:
        TypeError: If ``flip_prob`` is not a number.
        ValueError: If it is not in [0, 1]; when it loads, if a file does not
            hold such an array.
    """

    def __init__(self, flip_prob: float = 0.5) -> None:
        check_number('flip_prob', flip_prob, '[0, 1]')
        self.flip_prob = flip_prob

    def transform(self, results: dict) -> dict:
        path = results['img_path']
        try:
            moments = np.load(path)
            if not isinstance(moments, np.ndarray):
                raise ValueError('it is an archive of arrays')
        except (BadZipFile, EOFError, ValueError) as error:
            raise ValueError(f'{path} cannot be read as latents: '
                             f'{error}') from error
        if moments.dtype.kind != 'f':
            raise ValueError(f'{path} must hold floating-point latents, got '
                             f'{moments.dtype}')
        if moments.ndim != 5 or moments.shape[:2] != (2, 2):
            raise ValueError(f'{path} must hold latents of shape '
                             f'(2, 2, C, h, w), got {moments.shape}')
        flip = bool(np.random.random() < self.flip_prob)
        mean, std = moments[int(flip)].astype(np.float32)
        if not (np.isfinite(mean).all() and np.isfinite(std).all() and
                (std >= 0).all()):
            raise ValueError(f'{path} must hold finite means and standard '
                             'deviations of 0 or more')
        noise = np.random.standard_normal(mean.shape).astype(np.float32)
        # A tensor, since an array would be taken for (H, W, C).
        results['img'] = torch.from_numpy(mean + std * noise)
        results['img_shape'] = mean.shape[1:]
        results['flip'] = flip
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(flip_prob={self.flip_prob})'
