# Copyright (c) mmweightformer contributors. All rights reserved.
import os.path as osp
from typing import Any

import torch
from torch import Tensor, nn

from ..optional import import_optional


class Autoencoder:
    """A frozen ``AutoencoderKL`` of diffusers, between images and latents.

    It is no part of the model, so neither checkpoints nor averages of the
    weights hold it. It is loaded when it is first used.

    Args:
        path (str): Local folder with its ``config.json`` and weights.

    Raises:
        TypeError: If ``path`` is not a str, or an empty one.
    """

    def __init__(self, path: str) -> None:
        if not isinstance(path, str) or not path:
            raise TypeError('autoencoder must be the path of a folder, got '
                            f'{path!r}')
        self.path = path
        self._module = None

    def __deepcopy__(self, memo: dict) -> 'Autoencoder':
        return self  # an average of the weights needs none of its own

    def __getstate__(self) -> dict:
        return dict(path=self.path, _module=None)

    def load(self, like: Tensor) -> nn.Module:
        """The module on the device of ``like``.

        Raises:
            FileNotFoundError: If there is no such folder.
            ImportError: If diffusers is not installed.
            ValueError: If it holds no autoencoder.
        """
        if self._module is None:
            if not osp.isdir(self.path):
                raise FileNotFoundError('the folder of the autoencoder is '
                                        f'missing: {self.path}')
            kind = import_optional('diffusers', 'an autoencoder').AutoencoderKL
            try:
                module = kind.from_pretrained(self.path, local_files_only=True)
            except Exception as error:  # as many kinds as file formats
                raise ValueError(
                    f'{self.path} holds no AutoencoderKL of diffusers: '
                    f'{error}') from error
            self._module = module.eval().requires_grad_(False)
        return self._module.to(like.device)

    def _config(self, like: Tensor) -> Any:
        return self.load(like).config

    def is_image(self, x: Tensor) -> bool:
        """Whether (B, C, H, W) has an image's channels, not a latent's."""
        return x.shape[1] == self._config(x).in_channels

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) in [-1, 1] → drawn latents, (B, 4, H/8, W/8)."""
        latents = self.load(images).encode(images).latent_dist.sample()
        return latents * self._config(images).scaling_factor

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """(B, 4, h, w) → images, (B, 3, 8 h, 8 w), about in [-1, 1]."""
        scaled = latents / self._config(latents).scaling_factor
        return self.load(latents).decode(scaled).sample
