# Copyright (c) mmweightformer contributors. All rights reserved.
"""Count the parameters and multiply-adds of a config of any task."""
import argparse
import json
import os
import os.path as osp
import sys
from typing import Optional, Sequence

from mmengine.config import Config

from mmweightformer.analysis import Complexity, model_complexity

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
import common  # noqa: E402

# What the published comparisons are made at.
SHAPES = dict(mmpretrain=(224, 224), mmseg=(512, 512), mmdet=(1024, 1024))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Count the parameters and multiply-adds (MACs) of a "
        "config's model in inference of one image, part by part; of a "
        'diffusion model, in one step of its denoiser',
        epilog="MACs are half of the operations that PyTorch's own counter "
        'counts: matrix products, attention and convolutions. Norms, '
        'activations, poolings, RoIAlign and post-processing are not counted. '
        'Neither data nor checkpoints are needed.')
    common.add_config_arguments(parser)
    parser.add_argument(
        '--shape',
        type=int,
        nargs='+',
        metavar=('H', 'W'),
        help='height and width of the image as the backbone or the denoiser '
        "gets it, or one number for both. Defaults to the model's input_size "
        "if it has a denoiser, else to 224, 512 or 1024 by the config's "
        'default_scope: mmpretrain, mmseg or mmdet')
    parser.add_argument('--out', help='a .json file for the exact figures')
    args = parser.parse_args()
    if args.shape is not None:
        if len(args.shape) > 2 or min(args.shape) < 1:
            parser.error('--shape must be one or two positive numbers, got ' +
                         ' '.join(map(str, args.shape)))
        args.shape = (args.shape * 2)[:2]
    if args.out is not None and not args.out.endswith('.json'):
        parser.error(f'--out must end with .json, got {args.out}')
    return args


def default_shape(cfg: Config) -> Optional[Sequence[int]]:
    if 'denoiser' not in cfg.model:
        return SHAPES.get(cfg.get('default_scope'))
    size = cfg.model.get('input_size', 32)
    return size if isinstance(size, (list, tuple)) else [size] * 2


def as_table(complexity: Complexity) -> str:
    """A Markdown table, with a column for the published order if it differs.
    """
    header = [
        'part', 'parameters (M)', 'MACs (G)', 'MACs, published order (G)'
    ]
    rows = [[row.name, f'{row.params / 1e6:.2f}'] +
            [f'{macs / 1e9:.2f}' for macs in row[2:]]
            for row in complexity.rows]
    total = complexity.rows[-1]
    columns = 3 if total.macs == total.macs_published else 4
    table = [header, ['---'] + ['---:'] * 3, *rows]
    return '\n'.join('| ' + ' | '.join(row[:columns]) + ' |' for row in table)


def main() -> None:
    args = parse_args()
    with common.plain_errors():
        cfg = common.load_config(args)
        common.require_fields(cfg, args.config, 'model')
        shape = args.shape or default_shape(cfg)
        if shape is None:
            sys.exit(f'--shape is needed: {args.config} has none of the '
                     f'default scopes {list(SHAPES)}')
        size = '×'.join(map(str, shape))
        try:
            complexity = model_complexity(cfg, shape)
        except Exception as error:
            # What a model raises is up to its code.
            sys.exit(f'{args.config} cannot be counted at {size}: '
                     f'{type(error).__name__}: {error}')
        print(f'{args.config}, {size}\n')
        print(as_table(complexity))
        for note in complexity.notes:
            print(f'\n{note}')
        if args.out is not None:
            os.makedirs(osp.dirname(args.out) or '.', exist_ok=True)
            with open(args.out, 'w') as file:
                json.dump(
                    dict(
                        config=args.config,
                        shape=list(shape),
                        rows=[row._asdict() for row in complexity.rows],
                        notes=complexity.notes),
                    file,
                    indent=2)


if __name__ == '__main__':
    main()
