# Copyright (c) mmweightformer contributors. All rights reserved.
"""Draw the effective receptive fields of backbones, side by side."""
import argparse
import json
import os
import os.path as osp
import sys
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import MMLogger
from mmengine.runner import find_latest_checkpoint
from mmengine.utils import track_iter_progress
from torch import Tensor, nn

from mmweightformer.analysis.config_model import load_backbone
from mmweightformer.analysis.receptive_field import (Panel, build_for_field,
                                                     draw_receptive_fields,
                                                     load_images, local_reach,
                                                     normalize,
                                                     receptive_field)

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
import common  # noqa: E402


class Model(NamedTuple):
    label: str
    config: str
    checkpoint: Optional[str]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Draw the effective receptive fields of backbones side '
        "by side: how strongly the centre of a backbone's last feature map "
        'depends on each pixel. That is the absolute gradient of the sum of '
        "the centre's channels, each behind a ReLU, with respect to the "
        'normalized image, summed over the channels of the image, mean over '
        'images. A JSON file of the same name has the figures.',
        epilog='Images are test images of the first config, spread evenly '
        'over its classes, or else its data, behind its test pipeline; then '
        "the shorter side is resized and the middle cut out. Each model's own "
        'data preprocessor normalizes them. Random weights are those that '
        'training from scratch starts from, with seed 0.')
    parser.add_argument(
        'models',
        nargs='+',
        metavar='MODEL',
        help='CONFIG for random weights; CONFIG:CHECKPOINT for random and for '
        'trained ones; or the work directory of a training, which holds its '
        'config and last_checkpoint')
    parser.add_argument(
        '--labels',
        nargs='+',
        help='a name for each model. Defaults to the names of their configs, '
        'or work directories')
    parser.add_argument(
        '--num-images',
        type=int,
        default=50,
        help='number of images. Defaults to %(default)s')
    parser.add_argument(
        '--size',
        type=int,
        default=224,
        help='height and width of the images in pixels, a multiple of the '
        'strides. Defaults to %(default)s')
    parser.add_argument(
        '--noise',
        action='store_true',
        help='white noise (mean 0, standard deviation 1) in place of images; '
        'no data are needed')
    parser.add_argument(
        '--cone',
        type=int,
        metavar='TOKENS',
        help='how many tokens to each side the local cone reaches, for all '
        'models. Defaults to what the depthwise convolutions of a '
        'WeightFormer reach together; for other backbones, that of the first '
        'WeightFormer here')
    parser.add_argument(
        '--out',
        default='work_dirs/erf.png',
        help='the figure to write, its suffix (.png, .pdf or .svg) is the '
        'format. Defaults to %(default)s')
    common.add_cfg_options(parser)
    # What load_config reads of a runner's tool.
    parser.set_defaults(launcher='none', local_rank=0, work_dir=None)
    args = parser.parse_args()
    for name in 'num_images', 'size':
        if getattr(args, name) < 1:
            parser.error(f'--{name.replace("_", "-")} must be positive, got '
                         f'{getattr(args, name)}')
    common.check_at_least(parser, args, cone=0)
    common.check_suffix(parser, args.out, common.FIGURE_SUFFIXES)
    if args.labels is not None and len(args.labels) != len(args.models):
        parser.error(f'--labels must be one for each of {len(args.models)} '
                     f'models, got {len(args.labels)}')
    args.labels = args.labels or [
        Path(model.partition(':')[0]).stem for model in args.models
    ]
    if len(set(args.labels)) < len(args.labels):
        parser.error('--labels must be given, each another, where names of '
                     f'models repeat, got {args.labels}')
    return args


def find_model(label: str, name: str) -> Model:
    """What a MODEL argument names."""
    if not osp.isdir(name):
        config, _, checkpoint = name.partition(':')
        if checkpoint:
            if not osp.isfile(checkpoint):
                sys.exit(f'{checkpoint}: there is no such file')
            common.check_checkpoint(checkpoint)
        return Model(label, config, checkpoint or None)
    configs = sorted(Path(name).glob('*.py'))
    if len(configs) != 1:
        sys.exit(f'{name} must hold the config of one training, got '
                 f'{len(configs)} .py files')
    if not osp.isfile(osp.join(name, 'last_checkpoint')):
        sys.exit(f'{name} holds no last_checkpoint, which training leaves')
    checkpoint = find_latest_checkpoint(name)
    if not osp.exists(checkpoint):
        # The directory may have been moved.
        checkpoint = osp.join(name, osp.basename(checkpoint))
    common.check_checkpoint(checkpoint)
    return Model(label, str(configs[0]), checkpoint)


def build(model: Model, cfg: Config, size: int) -> Dict[str, nn.Module]:
    """The model at random weights and trained, tried out on noise."""
    nets = dict(random=build_for_field(cfg))
    if model.checkpoint is not None:
        nets['trained'] = build_for_field(cfg)
        load_backbone(nets['trained'].backbone, model.checkpoint)
    for net in nets.values():
        net.to(get_device())
        noise = torch.randn(1, 3, size, size, device=get_device())
        receptive_field(net.backbone, [noise])
    return nets


def make_images(args: argparse.Namespace, cfg: Config) -> Sequence[Tensor]:
    """The images of all models; noise is not normalized any more."""
    if not args.noise:
        return load_images(cfg, args.num_images, args.size)
    generator = torch.Generator().manual_seed(0)
    shape = args.num_images, 3, args.size, args.size
    return list(torch.randn(shape, generator=generator).split(1))


def measure(label: str, weights: str, net: nn.Module, images: Sequence[Tensor],
            args: argparse.Namespace) -> Panel:
    print(f'{label}, {weights} weights')
    field = receptive_field(
        net.backbone,
        (image.to(get_device()) if args.noise else normalize(net, image)
         for image in track_iter_progress(images)))
    print()
    reach = local_reach(net.backbone)
    if args.cone is not None:
        reach = args.cone * field.stride
    return Panel(label, weights, field, reach)


def as_table(panels: Sequence[Panel]) -> str:
    """A Markdown table of the figures that tell most."""

    def percent(share: Optional[float]) -> str:
        return '' if share is None else f'{100 * share:.2f} %'

    lines = [
        '| model | weights | 50 % within (px) | 90 % within (px) | outside '
        '3×3 tokens | outside the cone |',
        '| --- | --- | ---: | ---: | ---: | ---: |'
    ]
    for panel in panels:
        data = panel.summary()
        half, most = (data[f'side_of_{n}_percent_pixels'] for n in (50, 90))
        lines.append(f'| {panel.label} | {panel.weights} | {half}² | {most}² '
                     f"| {percent(data['share_outside_3x3_tokens'])} "
                     f"| {percent(data['share_outside_cone'])} |")
    return '\n'.join(lines)


def notes(panels: Sequence[Panel]) -> List[str]:
    """Why some have no share outside the cone."""
    without = [panel.label for panel in panels if panel.reach is None]
    covered = [
        panel for panel in panels if panel.reach is not None
        and panel.field.share_outside(panel.reach) is None
    ]
    lines = []
    if without:
        lines.append(f'No local cone is known of {unique(without)}: name it '
                     'by --cone, or compare with a WeightFormer.')
    if covered:
        # The centre token of an even grid has one more before than behind.
        size = max(2 * stride * (panel.reach // stride + 1)
                   for panel in covered for stride in [panel.field.stride])
        labels = unique(panel.label for panel in covered)
        lines.append('The local cone covers the image, so that no share is '
                     f'outside of it, of {labels}: take --size {size} or '
                     'larger.')
    return lines


def unique(labels: Iterable[str]) -> str:
    return ', '.join(dict.fromkeys(labels))


def main() -> None:
    args = parse_args()
    # Where each weight's initial value comes from is for training to tell.
    MMLogger.get_instance('vis_erf', log_level='WARNING')
    with common.plain_errors():
        os.makedirs(osp.dirname(args.out) or '.', exist_ok=True)
    models = [find_model(*pair) for pair in zip(args.labels, args.models)]
    cfgs = [
        common.load_config(
            argparse.Namespace(**vars(args), config=model.config))
        for model in models
    ]
    try:
        images = make_images(args, cfgs[0])
    except Exception as error:
        # What a dataset raises is up to its code.
        sys.exit(f'{models[0].config}: no images: {type(error).__name__}: '
                 f'{error}\nOther data are named by --cfg-options, such as '
                 'test_dataloader.dataset.data_root=FOLDER; --noise needs '
                 'none.')
    nets = {}
    for model, cfg in zip(models, cfgs):
        try:
            nets[model.label] = build(model, cfg, args.size)
        except Exception as error:
            # What a model raises is up to its code.
            sys.exit(f'{model.config} cannot be used at {args.size}×'
                     f'{args.size}: {type(error).__name__}: {error}')
    panels = [
        measure(label, weights, net, images, args)
        for label, row in nets.items() for weights, net in row.items()
    ]
    known = [panel.reach for panel in panels if panel.reach is not None]
    if known:
        panels = [
            panel if panel.reach is not None else panel._replace(
                reach=known[0]) for panel in panels
        ]
    print(as_table(panels))
    for note in notes(panels):
        print(f'\n{note}')
    what = 'noise images' if args.noise else 'images'
    with common.plain_errors():
        write(
            panels, models, f'Effective receptive field: {len(images)} {what} '
            f'of {args.size}×{args.size}', args)


def write(panels: Sequence[Panel], models: Sequence[Model], title: str,
          args: argparse.Namespace) -> None:
    sources = {model.label: model for model in models}
    rows = []
    for panel in panels:
        source = sources[panel.label]
        trained = panel.weights == 'trained'
        rows.append(
            dict(
                panel.summary(),
                config=source.config,
                checkpoint=source.checkpoint if trained else None))
    out = Path(args.out)
    with open(out.with_suffix('.json'), 'w') as file:
        json.dump(
            dict(
                images='white noise'
                if args.noise else f'test images of {models[0].config}',
                models=rows),
            file,
            indent=2)
    draw_receptive_fields(panels, title, out)
    print(f"\n{out}, {out.with_suffix('.json')}")


if __name__ == '__main__':
    main()
