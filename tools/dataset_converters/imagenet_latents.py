# Copyright (c) mmweightformer contributors. All rights reserved.
"""Cache the latents of a folder of images, for training of diffusion models.

Every image becomes a .npy file in the same place below DST, with .npy added to
its name: in float16 and of shape (2, 2, C, h, w), the mean and the standard
deviation of the latents of the image and of its mirror image, times the
autoencoder's scaling factor. LoadLatents draws from them.

Images that have their file are left out, so that a stopped run goes on where
it was.

    python tools/dataset_converters/imagenet_latents.py \\
        checkpoints/sd-vae-ft-ema data/imagenet/train \\
        data/imagenet_latents/train
"""
import argparse
import json
import os
import sys
from pathlib import Path
from typing import List, Optional, Tuple

import numpy as np
import torch
from mmengine.dataset import Compose
from mmengine.device import get_device
from mmengine.registry import DefaultScope
from mmengine.utils import ProgressBar
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mmweightformer.models.generators.autoencoder import Autoencoder

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402

SUFFIXES = ('.jpg', '.jpeg', '.png', '.ppm', '.bmp', '.pgm', '.tif')
Batch = Tuple[Optional[Tensor], List[Path], List[Path]]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'autoencoder',
        type=Path,
        metavar='AUTOENCODER_DIR',
        help="the folder of an AutoencoderKL as diffusers' save_pretrained "
        'writes it')
    parser.add_argument(
        'src', type=Path, metavar='SRC', help='the folder of images')
    parser.add_argument(
        'dst', type=Path, metavar='DST', help='the folder of latents')
    parser.add_argument(
        '--size',
        type=int,
        default=256,
        help='height and width in pixels: the shorter side is resized to it '
        'and the middle cut out. Defaults to %(default)s')
    parser.add_argument(
        '--batch-size',
        type=int,
        default=32,
        help='images at a time. Defaults to %(default)s')
    parser.add_argument(
        '--num-workers',
        type=int,
        default=4,
        help='processes that load images. Defaults to %(default)s')
    parser.add_argument(
        '--device',
        default=get_device(),
        help='such as cpu or cuda:1. Defaults to the accelerator, if there '
        'is one')
    args = parser.parse_args()
    common.check_at_least(parser, args, size=1, batch_size=1, num_workers=0)
    return args


def load_autoencoder(args: argparse.Namespace) -> nn.Module:
    try:
        device = torch.empty(0, device=args.device)
    except (RuntimeError, AssertionError) as error:
        sys.exit(f'--device {args.device} cannot be used: {error}')
    try:
        model = Autoencoder(str(args.autoencoder)).load(device)
    except (FileNotFoundError, ImportError, ValueError) as error:
        sys.exit(str(error))
    stride = 2**(len(model.config.block_out_channels) - 1)
    if args.size % stride:
        sys.exit(f'--size must be a multiple of {stride}, as many pixels as '
                 f'a latent spans, got {args.size}')
    return model


def describe(args: argparse.Namespace, autoencoder: nn.Module) -> None:
    """Note how latents are made, and refuse a folder of other ones."""
    path = args.dst / 'latents.json'
    made = dict(
        autoencoder=args.autoencoder.resolve().name,
        scaling_factor=autoencoder.config.scaling_factor,
        size=args.size)
    try:
        args.dst.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(json.dumps(made))
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f'{path} cannot be used: {error}')
    if found != made:
        sys.exit(f'{args.dst} holds latents that were made by {found}, not '
                 f'by {made}: name another folder')


def latent_path(image: Path, args: argparse.Namespace) -> Path:
    path = args.dst / image.relative_to(args.src)
    return path.with_name(f'{path.name}.npy')


class Images(Dataset):
    """Files, and their images as training gets them, or None."""

    def __init__(self, paths: List[Path], size: int) -> None:
        self.paths = paths
        with DefaultScope.overwrite_default_scope('mmpretrain'):
            self.pipeline = Compose([
                dict(type='LoadImageFromFile'),
                dict(
                    type='ResizeEdge',
                    scale=size,
                    edge='short',
                    backend='pillow',
                    interpolation='bicubic'),
                dict(type='CenterCrop', crop_size=size),
                dict(type='PackInputs'),
            ])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Tuple[Path, Optional[Tensor]]:
        path = self.paths[i]
        try:
            return path, self.pipeline(dict(img_path=str(path)))['inputs']
        except Exception:
            # What decoding raises is up to the file.
            return path, None


def collate(items: List[Tuple[Path, Optional[Tensor]]]) -> Batch:
    """The images, their paths, and the paths of those without one."""
    images = [image for _, image in items if image is not None]
    return (torch.stack(images) if images else None,
            [path for path, image in items if image is not None
             ], [path for path, image in items if image is None])


@torch.no_grad()
def encode(autoencoder: nn.Module, images: Tensor) -> np.ndarray:
    """Moments of the latents of images and of their mirror images.

    Args:
        autoencoder (nn.Module): An AutoencoderKL.
        images (Tensor): uint8, (B, 3, H, W), BGR.

    Returns:
        np.ndarray: float16, (B, 2, 2, C, h, w).
    """
    images = images.flip(1).to(autoencoder.device).float() / 127.5 - 1
    both = torch.stack([images, images.flip(-1)], dim=1).flatten(0, 1)
    latents = autoencoder.encode(both).latent_dist
    moments = torch.stack([latents.mean, latents.std], dim=1)
    moments = moments * autoencoder.config.scaling_factor
    return moments.unflatten(0, (-1, 2)).half().cpu().numpy()


def save(array: np.ndarray, path: Path) -> None:
    """Save an array that appears under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix('.part')
    with open(part, 'wb') as file:
        np.save(file, array)
    os.replace(part, path)


@common.plain_errors()
def main() -> None:
    args = parse_args()
    if not args.src.is_dir():
        sys.exit(f'{args.src}: there is no such folder')
    autoencoder = load_autoencoder(args)
    images = sorted(
        path for path in args.src.rglob('*')
        if path.suffix.lower() in SUFFIXES and path.is_file())
    if not images:
        sys.exit(f'{args.src} holds no {", ".join(SUFFIXES)}')
    describe(args, autoencoder)
    todo = [path for path in images if not latent_path(path, args).exists()]
    print(f'{len(images)} images, {len(images) - len(todo)} of them done')
    loader = DataLoader(
        Images(todo, args.size),
        args.batch_size,
        num_workers=args.num_workers,
        collate_fn=collate)
    bad: List[Path] = []
    if todo:
        bar = ProgressBar(len(todo))
    for batch, paths, unreadable in loader:
        if batch is not None:
            for path, moments in zip(paths, encode(autoencoder, batch)):
                try:
                    save(moments, latent_path(path, args))
                except OSError as error:
                    sys.exit(f'\n{error}')
        bad += unreadable
        bar.update(len(paths) + len(unreadable))
    print(f'\n{args.dst}: latents of {len(images) - len(bad)} images')
    if bad:
        sys.exit(f'{len(bad)} images cannot be read and have none:\n  ' +
                 '\n  '.join(map(str, bad)))


if __name__ == '__main__':
    main()
