# Copyright (c) mmweightformer contributors. All rights reserved.
"""Compare the speed of whole models in the loop of tools/test.py.

    python tools/dataset_converters/digits.py data/digits
    python tools/analysis_tools/benchmark_test_loop.py \
        configs/digits/mask_rcnn_wf_t_digits.py \
        configs/digits/mask_rcnn_deit_t_digits.py
"""
import argparse
import csv
import io
import json
import os
import os.path as osp
import sys
import tempfile
import textwrap
import warnings
from contextlib import contextmanager, redirect_stdout
from typing import Iterator, List, NoReturn

import torch
from mmengine.device import get_device
from mmengine.runner import Runner
from tqdm import tqdm

from mmweightformer.analysis.stages import (STAGES, LoopSpeed,
                                            compare_test_loops,
                                            drop_pretrained, keep_first_images,
                                            set_image_size)

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
import common  # noqa: E402

RANDOM = 'random'


def whole_number(low: int):
    """An argument type for whole numbers from ``low``."""

    def convert(text: str) -> int:
        if text.isdecimal() and int(text) >= low:
            return int(text)
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a whole number of at least {low}')

    return convert


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Compare the speed of whole models in the loop of '
        'tools/test.py, and the share of each stage. They take turns in one '
        'process',
        epilog='Stages: data is what the loop waits for its loader, whose '
        "workers run beside it, and the model's data_preprocessor; "
        'post-processing is all that makes predictions of the output of heads '
        '(boxes, NMS, pasted masks, resized maps); metrics is what the '
        'evaluator does of each batch. Its final sum over the test set is '
        'left out. Predictions are brought to the size of the image files: '
        'what that costs at 1024×1024 takes files of that size.')
    parser.add_argument(
        'configs',
        nargs='+',
        metavar='CONFIG',
        help='config file paths; the first is compared with the others')
    parser.add_argument(
        '--checkpoints',
        nargs='+',
        metavar='FILE',
        help=f'one for each config, or {RANDOM}. Defaults to random weights')
    parser.add_argument(
        '--num-images',
        type=whole_number(1),
        default=16,
        metavar='N',
        help='first images of the test set (default: %(default)s)')
    parser.add_argument(
        '--size',
        nargs='+',
        type=whole_number(1),
        metavar=('H', 'W'),
        help="height and width that the test pipeline's Resize and Pad bring "
        'images to, or one number for both. Defaults to those of the configs')
    parser.add_argument(
        '--rounds',
        type=whole_number(1),
        default=5,
        metavar='N',
        help='measurements of each config (default: %(default)s)')
    parser.add_argument(
        '--warmup',
        type=whole_number(0),
        default=1,
        metavar='N',
        help='rounds before them (default: %(default)s)')
    common.add_cfg_options(parser)
    parser.add_argument('--out', help='a .json, .csv or .md file')
    args = parser.parse_args()
    if args.checkpoints is None:
        args.checkpoints = [RANDOM] * len(args.configs)
    if len(args.checkpoints) != len(args.configs):
        parser.error(f'--checkpoints must be {len(args.configs)}, one for '
                     f'each config, got {len(args.checkpoints)}')
    if args.size is not None:
        if len(args.size) > 2:
            parser.error('--size must be one or two numbers, got ' +
                         ' '.join(map(str, args.size)))
        args.size = (args.size * 2)[:2]
    if args.out and not args.out.endswith(('.json', '.csv', '.md')):
        parser.error(f'--out must end with .json, .csv or .md, got {args.out}')
    if args.out and osp.isdir(args.out):
        parser.error(f'--out must name a file, got the folder {args.out}')
    return args


@contextmanager
def quiet() -> Iterator[None]:
    """Without what the packages print past the log."""
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        yield


def prepare(args: argparse.Namespace, index: int, folder: str) -> Runner:
    """Build a config's runner as tools/test.py does, with little to log."""
    config, checkpoint = args.configs[index], args.checkpoints[index]
    cfg = common.load_config(
        argparse.Namespace(
            config=config,
            cfg_options=args.cfg_options,
            work_dir=osp.join(folder, str(index)),
            launcher='none',
            local_rank=0))
    common.require_fields(cfg, config, 'model', 'test_dataloader', 'test_cfg',
                          'test_evaluator')
    cfg.load_from = None if checkpoint == RANDOM else checkpoint
    cfg.log_level = 'ERROR'
    # Loggers and visualizers go by names, and live as long as the process.
    cfg.experiment_name = f'{osp.basename(folder)}_{index}'
    cfg.visualizer = None
    cfg.randomness = {**(cfg.get('randomness') or {}), 'seed': 0}
    keep_first_images(cfg, args.num_images)
    if args.size is not None:
        set_image_size(cfg, args.size)
    if checkpoint == RANDOM:
        drop_pretrained(cfg)
    runner = common.build_runner(cfg, ['test'])
    if checkpoint == RANDOM:
        runner.model.init_weights()
    else:
        try:
            # tools/test.py names what does not fit in its log.
            runner.load_checkpoint(checkpoint, strict=True)
        except RuntimeError as error:
            stop(f'{checkpoint} does not fit {config}: {error}')
    try:
        runner.test_loop
    except IndexError:
        sys.exit(f'--num-images must be at most the test images of {config}, '
                 f'got {args.num_images}')
    return runner


def measure(args: argparse.Namespace, folder: str) -> List[LoopSpeed]:
    runners = []
    for index, config in enumerate(args.configs):
        try:
            with quiet():
                runners.append(prepare(args, index, folder))
        except Exception as error:
            # What a config builds is up to its code.
            stop(f'{config} cannot be built: {type(error).__name__}: {error}')
    total = args.num_images * len(runners) * (args.warmup + args.rounds)
    with tqdm(total=total, unit='image', leave=False) as bar, quiet():
        try:
            return compare_test_loops(
                runners, args.rounds, args.warmup, progress=bar.update)
        except (ValueError, RuntimeError) as error:
            stop(str(error))


def stop(message: str) -> NoReturn:
    """Exit with the beginning of a message that may be very long."""
    lines = [textwrap.shorten(line, 300) for line in message.splitlines()]
    sys.exit('\n'.join(lines[:8]))


def as_row(config: str, checkpoint: str, speed: LoopSpeed) -> dict:
    ends = dict.fromkeys((speed.sizes[0], speed.sizes[-1]))
    return dict(
        config=config,
        weights=checkpoint,
        input=' to '.join(f'{h}×{w}' for h, w in ends),
        images_per_second=speed.images_per_second,
        slowest=speed.slowest,
        fastest=speed.fastest,
        ratio=speed.ratio,
        detections=speed.detections,
        **speed.shares)


def as_table(rows: List[dict]) -> str:
    """A Markdown table."""
    header = ['config', 'input', 'images/s (range)', 'ratio', *STAGES]
    table = [header, ['---', '---'] + ['---:'] * (len(header) - 2)]
    for row in rows:
        table.append([
            osp.splitext(osp.basename(row['config']))[0], row['input'],
            '{images_per_second:.3g} ({slowest:.3g}–{fastest:.3g})'.format(
                **row), f"{row['ratio']:.2f}"
        ] + [f'{row[stage]:.1%}' for stage in STAGES])
    return '\n'.join('| ' + ' | '.join(cells) + ' |' for cells in table)


def notes_on(args: argparse.Namespace, rows: List[dict]) -> List[str]:
    device = torch.cuda.get_device_name() if get_device() == 'cuda' else \
        f'{get_device()}, threads: {torch.get_num_threads()}'
    notes = [
        f'Images: {args.num_images}; rounds: {args.rounds} after '
        f'{args.warmup} to warm up; torch {torch.__version__} on {device}; '
        f"weights: {', '.join(args.checkpoints)}.",
        "ratio: the first config's images/s over this one's, the median of "
        "the rounds' ratios."
    ]
    found = [row['detections'] for row in rows]
    if any(number is not None for number in found):
        notes.append('Detections an image: ' +
                     ', '.join('–' if number is None else f'{number:.1f}'
                               for number in found) + '.')
        if RANDOM in args.checkpoints:
            notes.append('Random weights detect more or less than trained '
                         'ones, and heads and post-processing cost '
                         'accordingly.')
    return notes


def write(path: str, rows: List[dict], notes: List[str], text: str) -> None:
    with open(path, 'w', newline='') as file:
        if path.endswith('.json'):
            json.dump(dict(rows=rows, notes=notes), file, indent=2)
        elif path.endswith('.csv'):
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.write(text + '\n')


def main() -> None:
    args = parse_args()
    with common.plain_errors(), tempfile.TemporaryDirectory() as folder:
        if args.out:
            # Not only when the work is done.
            os.makedirs(osp.dirname(args.out) or '.', exist_ok=True)
        speeds = measure(args, folder)
        rows = list(map(as_row, args.configs, args.checkpoints, speeds))
        notes = notes_on(args, rows)
        text = '\n\n'.join([as_table(rows), *notes])
        print(text)
        if args.out:
            write(args.out, rows, notes, text)


if __name__ == '__main__':
    main()
