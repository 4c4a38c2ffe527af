# Copyright (c) mmweightformer contributors. All rights reserved.
"""Networks whose features and classes judge generated images."""
import os.path as osp
from typing import Tuple, Union

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..analysis.config_model import build_model
from ..models.checks import check_type
from ..models.optional import import_optional
from ..utils import load_state_dict
from ..utils.checkpoint import load_checkpoint, reading


def check_file(name: str, path: str) -> None:
    """Raise unless ``path`` is a file."""
    check_type(name, path, str, 'the path of a file')
    if not osp.isfile(path):
        raise FileNotFoundError(f'{name} must be the path of a file, got '
                                f'{path!r}, where there is none')


@MODELS.register_module()
class ClassifierFeatures(nn.Module):
    """Features and logits of a classifier of mmpretrain.

    Images are resized, bicubic with antialiasing, and cropped to the size of
    the config's test pipeline, and normalized by its data preprocessor.

    Args:
        config (str): Config of the classifier, with a ``test_dataloader``.
        checkpoint (str): Its trained weights, a local file.

    Raises:
        FileNotFoundError: If there is no such config or checkpoint.
        TypeError: If one of them is not a str.
        ValueError: If the config is not one of a classifier or its test
            pipeline has no size, or if the checkpoint does not fit.
    """

    # The classes are those of the images' labels.
    predicts_labels = True

    def __init__(self, config: str, checkpoint: str) -> None:
        super().__init__()
        check_file('checkpoint', checkpoint)
        check_file('config', config)
        cfg = Config.fromfile(config)
        self.resize, self.crop = _test_size(cfg, config)
        self.model = build_model(cfg)
        if not hasattr(getattr(self.model, 'head', None), 'pre_logits'):
            raise ValueError('config must be one of a classifier of '
                             f'mmpretrain, got {config}')
        try:
            self.model.load_state_dict(load_state_dict(checkpoint))
        except RuntimeError as error:
            # The first line is a heading.
            raise ValueError(
                f'checkpoint {checkpoint} does not fit {config}: '
                f'{str(error).splitlines()[-1].strip()}') from error

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tuple[Tensor, Tensor]:
        """Compute features and logits.

        Args:
            images (Tensor): uint8 RGB images (B, 3, H, W).

        Returns:
            tuple[Tensor, Tensor]: The backbone's features behind the neck,
            averaged over positions, (B, C), and logits (B, classes).
        """
        images = _resize(images, self.resize)
        if self.crop:
            images = _center_crop(images, self.crop)
        # Its own method, since data preprocessors keep their device.
        self.model.to(images.device)
        # They take images as mmcv loads them, BGR.
        batch = dict(inputs=images.flip(1))
        feats = self.model.extract_feat(
            self.model.data_preprocessor(batch, False)['inputs'])
        features = feats[-1]
        if features.dim() > 2:
            features = features.flatten(2).mean(2)
        return features, self.model.head(feats)


@MODELS.register_module()
class InceptionFeatures(nn.Module):
    """Features and logits of the Inception network of the FID.

    It is torch-fidelity's port of the original one of TensorFlow, resizing
    included. Features are its 2048 pooled ones, logits are without bias.

    Args:
        checkpoint (str): Its weights as torch-fidelity publishes them,
            ``weights-inception-2015-12-05-6726825d.pth``, a local file.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If torch-fidelity is not installed.
        TypeError: If ``checkpoint`` is not a str.
        ValueError: If the file does not hold the weights.
    """

    # It has classes of its own.
    predicts_labels = False

    def __init__(self, checkpoint: str) -> None:
        super().__init__()
        check_file('checkpoint', checkpoint)
        port = import_optional('torch_fidelity.feature_extractor_inceptionv3',
                               'InceptionFeatures')
        with reading(checkpoint, 'the weights of Inception'):
            # torch-fidelity would run code in a file that fails this.
            load_checkpoint(checkpoint)
            self.model = port.FeatureExtractorInceptionV3(
                'inception', ['2048', 'logits_unbiased'],
                feature_extractor_weights_path=checkpoint)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tuple[Tensor, Tensor]:
        """Compute features and logits.

        Args:
            images (Tensor): uint8 RGB images (B, 3, H, W).

        Returns:
            tuple[Tensor, Tensor]: Features (B, 2048) and logits (B, 1008).
        """
        return self.model(images)


# Height and width, or the length of the shorter edge.
Size = Union[Tuple[int, int], int]


def _test_size(cfg: Config, config: str) -> Tuple[Size, Size]:
    """What the test pipeline resizes to and crops out; 0 for no crop."""
    loader = cfg.get('test_dataloader') or {}
    transforms = {
        str(transform['type']).split('.')[-1]: transform
        for transform in loader.get('dataset', {}).get('pipeline', [])
    }
    resize: Size = 0
    if 'Resize' in transforms and not transforms['Resize'].get('keep_ratio'):
        resize = _height_width(transforms['Resize'].get('scale', 0))
    elif transforms.get('ResizeEdge', {}).get('edge') == 'short':
        resize = transforms['ResizeEdge']['scale']
    if not resize:
        raise ValueError(f'the test pipeline of {config} must have a Resize '
                         'with a scale, or a ResizeEdge of the short edge, '
                         f'got {list(transforms)}')
    crop = transforms.get('CenterCrop', {}).get('crop_size', 0)
    return resize, crop and _height_width(crop)


def _height_width(size: Size) -> Size:
    """Of mmcv's width and height, or one length for both."""
    if isinstance(size, int):
        return size and (size, size)
    return size[1], size[0]


def _resize(images: Tensor, size: Size) -> Tensor:
    """uint8 images, so that they are as a pipeline would make them."""
    height, width = images.shape[-2:]
    if isinstance(size, int):
        short = min(height, width)
        size = round(height * size / short), round(width * size / short)
    if size == (height, width):
        return images
    images = F.interpolate(
        images.float(), size, mode='bicubic', antialias=True)
    # Bicubic overshoots at edges.
    return images.round().clamp(0, 255).to(torch.uint8)


def _center_crop(images: Tensor, size: Tuple[int, int]) -> Tensor:
    top, left = ((full - part) // 2
                 for full, part in zip(images.shape[-2:], size))
    return images[..., top:top + size[0], left:left + size[1]]
