# Copyright (c) mmweightformer contributors. All rights reserved.
"""Draw a grid of samples of a class-conditional diffusion model."""
import argparse
import os
import os.path as osp
import sys
import textwrap
from copy import deepcopy
from typing import List, Sequence

import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import DATASETS, MODELS, DefaultScope
from mmengine.utils import ProgressBar
from torch import nn

from mmweightformer.models.generators.class_conditional_diffusion import \
    noise_seed
from mmweightformer.utils import load_state_dict

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
import common  # noqa: E402

GAP = 2  # pixels between samples


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Draw samples of a class-conditional diffusion model, a '
        'row for each class',
        epilog='The noise of a sample depends on the seed, its class and its '
        'column alone, so that it stays the same among other classes and in '
        'batches of another size. A training with EMAHook saves the averaged '
        'weights as those of the model; it is they that are taken.')
    common.add_config_arguments(parser)
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        '--out',
        default='work_dirs/samples.png',
        help='the figure to write, its suffix (.png, .pdf or .svg) is the '
        'format. Defaults to %(default)s')
    parser.add_argument(
        '--classes',
        type=int,
        nargs='+',
        metavar='INDEX',
        help='the classes. Defaults to the first 8')
    parser.add_argument(
        '--num-per-class',
        type=int,
        default=8,
        help='samples of each class. Defaults to %(default)s')
    parser.add_argument(
        '--seed', type=int, help='of the noise. Defaults to that of test_cfg')
    parser.add_argument(
        '--guidance',
        type=float,
        help='scale of classifier-free guidance, 1 for none. This and the '
        "next two default to the config's model.test_cfg")
    parser.add_argument('--steps', type=int, help='number of denoising steps')
    parser.add_argument('--sampler', choices=['ddpm', 'ddim'])
    parser.add_argument(
        '--batch-size',
        type=int,
        default=32,
        help='samples at a time. Defaults to %(default)s')
    parser.add_argument(
        '--device',
        default=get_device(),
        help='such as cpu or cuda:1. Defaults to the accelerator, if there '
        'is one')
    args = parser.parse_args()
    common.check_at_least(parser, args, num_per_class=1, batch_size=1, seed=0)
    common.check_suffix(parser, args.out, common.FIGURE_SUFFIXES)
    return args


def load_model(cfg: Config, args: argparse.Namespace) -> nn.Module:
    """The model with all weights of the checkpoint, ready to sample."""
    if not osp.isfile(args.checkpoint):
        sys.exit(f'{args.checkpoint}: there is no such file')
    common.check_checkpoint(args.checkpoint)
    try:
        with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
            model = MODELS.build(cfg.model)
    except Exception as error:
        # What a model raises is up to its code.
        sys.exit(f'{args.config}: the model cannot be built: '
                 f'{type(error).__name__}: {error}')
    if not hasattr(model, 'sample'):
        sys.exit(f'{args.config}: a {cfg.model.type} generates no images, as '
                 'a ClassConditionalDiffusion does')
    try:
        model.load_state_dict(load_state_dict(args.checkpoint))
    except ValueError as error:
        sys.exit(str(error))
    except RuntimeError as error:
        # The first line is a heading; names may be many.
        reason = str(error).splitlines()[1].strip()
        sys.exit(f'{args.checkpoint} does not fit the model of {args.config}: '
                 f'{textwrap.shorten(reason, 300)}')
    try:
        model.to(args.device)
        if model.autoencoder:
            # Now, and not behind the first batch.
            model.autoencoder.load(next(model.parameters()))
    except (AssertionError, RuntimeError) as error:
        sys.exit(f'--device {args.device} cannot be used: {error}')
    except (FileNotFoundError, ImportError, ValueError) as error:
        sys.exit(f'{args.config}: {error}')
    return model.eval()


def choose_classes(model: nn.Module, args: argparse.Namespace) -> List[int]:
    number = model.denoiser.num_classes
    classes = args.classes or list(range(min(8, number)))
    wrong = [index for index in classes if not 0 <= index < number]
    if wrong:
        sys.exit(f'--classes must be from 0 to {number - 1}, as the model '
                 f'has {number} of them, got {wrong[0]}')
    return classes


def class_names(cfg: Config, classes: Sequence[int]) -> List[str]:
    """The dataset's names of classes; without any, their indices."""
    dataset = (cfg.get('test_dataloader') or cfg.get('train_dataloader')
               or {}).get('dataset')
    try:
        with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
            # No data are needed.
            dataset = DATASETS.build(dict(deepcopy(dataset), lazy_init=True))
        names = dataset.metainfo.get('classes') or ()
    except Exception:
        # What a dataset raises is up to its code.
        names = ()
    # Of synonyms, the first.
    return [
        names[index].split(',')[0] if index < len(names) else str(index)
        for index in classes
    ]


def sample(model: nn.Module, classes: Sequence[int],
           args: argparse.Namespace) -> np.ndarray:
    """Samples of each class.

    Returns:
        np.ndarray: RGB in uint8, (classes, num_per_class, H, W, 3).
    """
    pairs = [(label, column) for label in classes
             for column in range(args.num_per_class)]
    batches = [
        pairs[start:start + args.batch_size]
        for start in range(0, len(pairs), args.batch_size)
    ]
    bar = ProgressBar(len(batches) * args.steps)
    images = []
    for batch in batches:
        seeds = [noise_seed(args.seed, *pair) for pair in batch]
        images.append(
            model.sample(
                torch.tensor([label for label, _ in batch]),
                seeds,
                guidance_scale=args.guidance,
                num_steps=args.steps,
                sampler=args.sampler,
                on_step=bar.update).cpu())
    print()
    images = torch.cat(images).permute(0, 2, 3, 1)
    return images.unflatten(0, (len(classes), -1)).numpy()


def draw(images: np.ndarray, names: Sequence[str], title: str,
         path: str) -> None:
    """Write a row of samples for each name."""
    from matplotlib.figure import Figure
    rows, columns, height, width = images.shape[:4]
    pitch_y, pitch_x = height + GAP, width + GAP
    sheet = np.full((rows * pitch_y - GAP, columns * pitch_x - GAP, 3), 255,
                    np.uint8)
    for row, line in enumerate(images):
        for column, image in enumerate(line):
            y, x = row * pitch_y, column * pitch_x
            sheet[y:y + height, x:x + width] = image
    # An inch across a sample.
    figure = Figure((columns + 1.2, rows * pitch_y / pitch_x + 0.5))
    ax = figure.subplots()
    ax.imshow(sheet)
    ax.set_xticks([])
    centres = np.arange(rows) * pitch_y + (height - 1) / 2
    ax.set_yticks(centres, [textwrap.fill(name, 14) for name in names])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    # Lines of the title that fit narrow grids as well.
    ax.set_title(textwrap.fill(title, 14 * (columns + 1)), fontsize=10)
    # No fewer pixels than the samples have.
    figure.savefig(
        path,
        dpi=max(150, 1.5 * width),
        bbox_inches='tight',
        metadata=dict(Title=title))


def main() -> None:
    args = parse_args()
    with common.plain_errors():
        os.makedirs(osp.dirname(args.out) or '.', exist_ok=True)
        cfg = common.load_config(args)
    common.require_fields(cfg, args.config, 'model')
    model = load_model(cfg, args)
    classes = choose_classes(model, args)
    for name, key in dict(
            seed='seed',
            guidance='guidance_scale',
            steps='num_steps',
            sampler='sampler').items():
        if getattr(args, name) is None:
            setattr(args, name, model.test_cfg[key])
    try:
        images = sample(model, classes, args)
    except (TypeError, ValueError) as error:
        sys.exit(f'\n{error}')
    title = (f'{osp.splitext(osp.basename(args.config))[0]}: seed '
             f'{args.seed}, guidance {args.guidance:g}, {args.steps} steps of '
             f'{args.sampler.upper()}')
    with common.plain_errors():
        draw(images, class_names(cfg, classes), title, args.out)
    print(f'{args.out}: {title}')


if __name__ == '__main__':
    main()
