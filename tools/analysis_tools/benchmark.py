# Copyright (c) mmweightformer contributors. All rights reserved.
"""Compare the speed and the memory of backbones, side by side."""
import argparse
import itertools
import os.path as osp
import shlex
import sys
from pathlib import Path
from typing import Dict, List, Sequence

import torch
from tqdm import tqdm

from mmweightformer.analysis.benchmark import (DTYPES, MODES, Result, Run,
                                               Setting, benchmark, explain,
                                               matmul_peak)
from mmweightformer.analysis.benchmark_report import (as_markdown, draw,
                                                      machine,
                                                      profile_markdown,
                                                      result_rows, write_csv)
from mmweightformer.analysis.profiling import operator_shares, part_shares
from mmweightformer.analysis.zoo import ZOO, build_backbone

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
from common import plain_errors  # noqa: E402


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Compare the speed and the memory of backbones. They take '
        'turns in one process; on the CPU, memory is measured in another, and '
        'one that needs more than there is is left out. Writes benchmark.csv '
        'with all figures, benchmark.md with tables, and a plot.')
    parser.add_argument(
        'models',
        nargs='*',
        default=['wf_t', 'deit_t', 'deit_t_naive', 'deit_t_windowed'],
        help=f'names ({", ".join(ZOO)}) or config files, of which the '
        'backbone is taken. Defaults to: %(default)s')
    parser.add_argument(
        '--sizes',
        type=int,
        nargs='+',
        default=[224, 512, 1024],
        help='heights of the square images. Defaults to: %(default)s')
    parser.add_argument(
        '--batch',
        type=int,
        nargs='+',
        default=[1],
        help='numbers of images. Defaults to: %(default)s')
    parser.add_argument(
        '--dtype',
        nargs='+',
        choices=DTYPES,
        default=['float32'],
        help='of images and parameters. Defaults to: %(default)s')
    parser.add_argument(
        '--mode',
        nargs='+',
        choices=MODES,
        default=['inference'],
        help='train is a whole step: forward, backward and AdamW. Defaults '
        'to: %(default)s')
    parser.add_argument(
        '--device', default='cpu', help="'cpu' (default) or a CUDA device")
    parser.add_argument(
        '--compile',
        nargs='?',
        const='default',
        choices=['default', 'reduce-overhead', 'max-autotune'],
        help='compile the backbones, in this mode of torch.compile')
    parser.add_argument(
        '--baseline',
        help='the model that the others are compared with. Defaults to the '
        'first')
    parser.add_argument(
        '--threads',
        type=int,
        default=torch.get_num_threads(),
        help='number of CPU threads. Defaults to %(default)s here')
    parser.add_argument(
        '--budget',
        type=float,
        default=10.,
        help='about how many seconds to spend on the rounds at each size, '
        'after a first one. Defaults to %(default)s')
    parser.add_argument(
        '--profile',
        type=int,
        metavar='SIZE',
        help='add the shares of time by part and by operator at this size')
    parser.add_argument(
        '--title',
        default='Benchmark of backbones',
        help="the report's. Defaults to: %(default)s")
    parser.add_argument(
        '--out-dir',
        default='work_dirs/benchmark',
        help='folder of the report. Defaults to %(default)s')
    parser.add_argument(
        '--format',
        choices=['png', 'pdf', 'svg'],
        default='png',
        help='format of the plot. Defaults to %(default)s')
    args = parser.parse_args()
    check(args, parser)
    return args


def check(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuse what would fail after minutes."""
    for option in 'models', 'sizes', 'batch', 'dtype', 'mode':
        values = getattr(args, option)
        if len(set(values)) < len(values):
            parser.error(f'{option} must not repeat, got {values}')
    for option in 'sizes', 'batch', 'threads', 'budget', 'profile':
        value = getattr(args, option)
        values = value if isinstance(value, list) else [value]
        if value is not None and not 0 < min(values) <= max(values) < 1e6:
            parser.error(f'--{option} must be positive, got {value}')
    if args.baseline is None:
        args.baseline = args.models[0]
    elif args.baseline not in args.models:
        parser.error(f'--baseline must be one of {args.models}, got '
                     f'{args.baseline}')
    if args.profile is not None and args.compile is not None:
        parser.error('--profile is of backbones that are not compiled: leave '
                     'out --compile')
    try:
        torch.empty(1, device=args.device)
        if torch.device(args.device).type not in ('cpu', 'cuda'):
            raise RuntimeError('it is neither CPU nor CUDA')
    except Exception as error:
        parser.error(f'--device {args.device} cannot be used: '
                     f'{explain(error)}')
    if args.profile is not None and args.profile not in args.sizes:
        parser.error(f'--profile must be one of the sizes {args.sizes}, got '
                     f'{args.profile}')
    for name in args.models:
        try:
            build_backbone(name, min(args.sizes))
        except Exception as error:
            parser.error(f'{name} cannot be built: {explain(error)}')


def measure(args: argparse.Namespace,
            settings: Sequence[Setting]) -> List[Result]:
    """All results, or those until it was stopped."""
    results = []
    with tqdm(
            total=len(settings),
            smoothing=0,
            bar_format='{percentage:3.0f}%|{bar}| {elapsed}<{remaining} {desc}'
    ) as bar:

        def advance(what: str, share: float) -> None:
            bar.set_description_str(what)
            bar.update(share)

        try:
            for setting in settings:
                for result in benchmark(args.models, args.sizes, setting,
                                        args.threads, args.budget, advance):
                    results.append(result)
        except KeyboardInterrupt:
            bar.write('Stopped. The report is of what was measured before.')
    return results


def profile(args: argparse.Namespace, settings: Sequence[Setting],
            results: Sequence[Result]) -> str:
    """Where the time goes, of all that ran at the size of --profile."""
    text = ''
    for setting in settings:
        parts: Dict[str, Dict[str, float]] = {}
        operators: Dict[str, Dict[str, float]] = {}
        for result in results:
            if (result.setting == setting and result.size == args.profile
                    and result.seconds):
                run = Run(result.model, args.profile, setting, args.threads)
                operators[result.model] = operator_shares(run)
                parts[result.model] = part_shares(run)
        if parts:
            text += profile_markdown(f'{setting}, {args.profile}²', parts,
                                     operators)
    return text


def main() -> None:
    args = parse_args()
    settings = [
        Setting(mode, batch, dtype, args.device,
                args.compile) for mode, dtype, batch in itertools.product(
                    args.mode, args.dtype, args.batch)
    ]
    out = Path(args.out_dir)
    with plain_errors():
        out.mkdir(parents=True, exist_ok=True)
        plot = out / f'benchmark.{args.format}'
        command = shlex.join(['python', *sys.argv])
        by_dtype = {
            setting.dtype: matmul_peak(setting, args.threads)
            for setting in settings
        }
        peaks = {setting: by_dtype[setting.dtype] for setting in settings}
        results = measure(args, settings)
        if not any(result.seconds for result in results):
            sys.exit('\n'.join(['Nothing was measured'] + [
                f'{result.model} at {result.size}²: {result.left_out}'
                for result in results
            ]))
        rows = result_rows(results, args.baseline, peaks)
        write_csv(rows, out / 'benchmark.csv')
        draw(rows, args.title, plot)
        text = (f'# {args.title}\n\n{machine(args.device, args.threads)}, '
                f'`{command}`\n\n![]({plot.name})\n\n'
                f'{as_markdown(rows, args.baseline, peaks)}')
        if args.profile is not None:
            text += '\n' + profile(args, settings, results)
        (out / 'benchmark.md').write_text(text)
        print(f'{text}\nWritten to {out}: benchmark.csv, benchmark.md, '
              f'{plot.name}')


if __name__ == '__main__':
    main()
