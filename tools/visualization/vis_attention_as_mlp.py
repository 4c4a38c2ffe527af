# Copyright (c) mmweightformer contributors. All rights reserved.
"""Show attention as an MLP whose weights are predicted from its input."""
import argparse
import os.path as osp
import sys
from pathlib import Path
from typing import Dict, Sequence

from mmengine import track_progress

from mmweightformer.analysis.attention_as_mlp import (LayerSize, draw_sizes,
                                                      largest_difference,
                                                      layer_sizes)

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
from common import FIGURE_SUFFIXES, plain_errors  # noqa: E402

PATCH_SIZE = 16


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Count the weights that attention and the dynamic MLP of '
        'WeightFormer predict for an image and their multiply-adds, and '
        'compare attention with the MLP that it is. Prints tables and draws '
        'them')
    parser.add_argument(
        'out',
        nargs='?',
        default='work_dirs/attention_as_mlp.png',
        help=f'the figure, one of {", ".join(FIGURE_SUFFIXES)}. Defaults to '
        '%(default)s')
    parser.add_argument(
        '--sizes',
        type=int,
        nargs='+',
        default=[224, 320, 448, 640, 1024, 1536, 2048],
        help='heights of square images in pixels, multiples of the patch size '
        f'{PATCH_SIZE}. Defaults to %(default)s')
    parser.add_argument(
        '--channels', type=int, default=192, help='defaults to %(default)s')
    parser.add_argument(
        '--heads', type=int, default=3, help='defaults to %(default)s')
    args = parser.parse_args()
    args.sizes = sorted(set(args.sizes))
    for size in args.sizes:
        if size % PATCH_SIZE or not PATCH_SIZE <= size <= 2048:
            parser.error(f'--sizes must be multiples of {PATCH_SIZE} up to '
                         f'2048, got {size}')
    if args.heads < 1:
        parser.error(f'--heads must be positive, got {args.heads}')
    if args.channels < 1 or args.channels % 4 or args.channels % args.heads:
        parser.error('--channels must be a positive multiple of 4 and of '
                     f'--heads ({args.heads}), got {args.channels}')
    if not args.out.lower().endswith(FIGURE_SUFFIXES):
        parser.error(
            f'out must end with one of {", ".join(FIGURE_SUFFIXES)}, got '
            f'{args.out}')
    return args


def as_markdown(sizes: Sequence[LayerSize], differences: Dict[int,
                                                              float]) -> str:
    """A row for each layer and number of tokens."""
    table = [[
        'tokens', 'layer', 'hidden units', 'predicted weights',
        'MACs to predict (M)', 'MACs to apply (M)', 'MACs (M)'
    ], ['---:', '---'] + ['---:'] * 5]
    for size in sizes:
        macs = size.predict_macs, size.apply_macs
        table.append([
            f'{size.tokens:,}', size.layer, f'{size.width:,}',
            f'{size.weights:,}',
            *(f'{count / 1e6:,.1f}' for count in (*macs, sum(macs)))
        ])
    lines = ['| ' + ' | '.join(row) + ' |' for row in table]
    lines += [
        '', '| tokens | largest difference, relative |', '| ---: | ---: |'
    ]
    lines += [
        f'| {tokens:,} | {difference:.1e} |'
        for tokens, difference in differences.items()
    ]
    return '\n'.join(lines)


def main() -> None:
    args = parse_args()
    with plain_errors():
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        open(args.out, 'ab').close()  # before the work
        sides = [size // PATCH_SIZE for size in args.sizes]
        sizes = [
            size for side in sides
            for size in layer_sizes(side, args.channels, args.heads)
        ]
        print('Comparing attention with the MLP', flush=True)
        differences = track_progress(
            lambda side: largest_difference(side**2, args.channels, args.heads
                                            ), sides)
        differences = dict(zip((side**2 for side in sides), differences))
        draw_sizes(sizes, differences,
                   f'{args.channels} channels, {args.heads} heads',
                   Path(args.out))
    print(f'\n\n{as_markdown(sizes, differences)}\n\nWritten to {args.out}')


if __name__ == '__main__':
    main()
