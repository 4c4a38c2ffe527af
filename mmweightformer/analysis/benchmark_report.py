# Copyright (c) mmweightformer contributors. All rights reserved.
"""Tables and plots of a benchmark."""
import csv
import os
import platform
from pathlib import Path
from statistics import median, quantiles
from typing import Dict, List, Optional, Sequence

import torch

from .benchmark import Result, Setting
from .tables import markdown
from .timing import growth_exponent, speed_ratio

# Below, what does not grow with the image tells on time and memory.
GROWTH_FROM = 512


def result_rows(results: Sequence[Result], baseline: str,
                peaks: Dict[Setting, float]) -> List[dict]:
    """All figures of a benchmark, a row for each result.

    Args:
        results (Sequence[Result]): What :func:`benchmark` yielded.
        baseline (str): Name of the backbone that the others are compared
            with.
        peaks (dict[Setting, float]): Multiply-adds a second of matrix
            products, by setting.

    Returns:
        list[dict]: A key for each column. What is not known is None.
    """
    found = {(r.model, r.setting, r.size): r for r in results}
    rows = []
    for result in results:
        row = dict(model=result.model, **result.setting._asdict())
        row.update(dict.fromkeys(COLUMNS[len(row):]))
        row.update(size=result.size, left_out=result.left_out)
        base = found.get((baseline, result.setting, result.size))
        if result.seconds:
            low, mid, high = _quartiles(result.seconds)
            row.update(
                rounds=len(result.seconds),
                seconds=mid,
                seconds_low=low,
                seconds_high=high,
                images_per_second=result.images_per_second,
                memory_mib=result.memory,
                macs=result.macs)
            if result.macs:
                row['share_of_peak'] = result.macs / mid / peaks[
                    result.setting]
            if base and base.seconds:
                row['speed_ratio'] = speed_ratio(result.seconds, base.seconds)
                if result.memory and base.memory:
                    row['memory_ratio'] = result.memory / base.memory
        rows.append(row)
    return rows


COLUMNS = [
    'model', *Setting._fields, 'size', 'rounds', 'seconds', 'seconds_low',
    'seconds_high', 'images_per_second', 'speed_ratio', 'memory_mib',
    'memory_ratio', 'macs', 'share_of_peak', 'left_out'
]


def _quartiles(values: Sequence[float]) -> List[float]:
    if len(values) == 1:
        return [values[0]] * 3
    return quantiles(values, n=4, method='inclusive')


def write_csv(rows: Sequence[dict], path: Path) -> None:
    """Write the rows of :func:`result_rows`."""
    with open(path, 'w', newline='') as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def machine(device: str, threads: int) -> str:
    """The class of the machine, in words."""
    if torch.device(device).type == 'cuda':
        name = torch.cuda.get_device_name(device)
    else:
        memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
        name = (f'{threads} of {os.cpu_count()} cores of a CPU '
                f'({platform.machine()}) with {memory / 2**30:.0f} GiB')
    return f'{name}, PyTorch {torch.__version__}'


def as_markdown(rows: Sequence[dict], baseline: str,
                peaks: Dict[Setting, float]) -> str:
    """The tables for people: a line a backbone, a column an image size.

    Args:
        rows (Sequence[dict]): What :func:`result_rows` returned.
        baseline (str): As given to it.
        peaks (dict[Setting, float]): As given to it.

    Returns:
        str: Markdown.
    """
    lines: List[str] = []
    if len({row['model'] for row in rows}) > 1:
        lines += [*_summary(rows, baseline), '']
    for setting, peak in peaks.items():
        part = [row for row in rows if _setting(row) == setting]
        if not part:
            continue  # it was stopped before
        lines += [
            f'## {setting}', '',
            f'Images a second (times the speed of {baseline}); p: time grows '
            f'as pixels^p, from {GROWTH_FROM}² on.', '',
            *_table(part, 'images_per_second', 'speed_ratio', 'seconds'), ''
        ]
        if any(row['memory_mib'] for row in part):
            lines += [
                f'Peak memory in MiB (times that of {baseline}), over weights '
                'and images; p likewise.', '',
                *_table(part, 'memory_mib', 'memory_ratio', 'memory_mib'), ''
            ]
        if any(row['share_of_peak'] for row in part):
            lines += [
                'Multiply-adds a second, as a share of the '
                f'{peak / 1e9:.0f} G of matrix products alone.', '',
                *_table(part, 'share_of_peak'), ''
            ]
        left_out = [
            f"- {row['model']} at {row['size']}²: {row['left_out']}"
            for row in part if row['left_out']
        ]
        if left_out:
            lines += ['Left out:', '', *left_out, '']
    spreads = [(row['seconds_high'] - row['seconds_low']) / row['seconds'] / 2
               for row in rows if (row['rounds'] or 0) > 1]
    if spreads:
        lines += [
            'Figures are medians. Half the distance of the quartiles, over '
            f'the median, is {median(spreads):.1%} in the median, '
            f'{max(spreads):.1%} at most.', ''
        ]
    return '\n'.join(lines)


def _setting(row: dict) -> Setting:
    return Setting(*(row[field] for field in Setting._fields))


def _summary(rows: Sequence[dict], baseline: str) -> List[str]:
    table = [[
        f'against {baseline}', 'speed: median', 'least', 'most',
        'memory: median', 'least', 'most'
    ]]
    for model in dict.fromkeys(row['model'] for row in rows):
        if model == baseline:
            continue
        line = [model]
        for field in 'speed_ratio', 'memory_ratio':
            values = [
                row[field] for row in rows
                if row['model'] == model and row[field]
            ]
            line += [
                f'{pick(values):.2f}' if values else '—'
                for pick in (median, min, max)
            ]
        table.append(line)
    return markdown(table)


def _table(rows: Sequence[dict],
           field: str,
           ratio: Optional[str] = None,
           grows: Optional[str] = None) -> List[str]:
    sizes = sorted({row['size'] for row in rows})
    table = [['', *(f'{size}²' for size in sizes)] + ['p'] * bool(grows)]
    for model in dict.fromkeys(row['model'] for row in rows):
        own = {row['size']: row for row in rows if row['model'] == model}
        line = [model]
        for size in sizes:
            row = own.get(size, {})
            value = row.get(field)
            if value is None:
                line.append('—')
            elif ratio is None:
                line.append(f'{value:.0%}')
            else:
                text = f'{value:.0f}' if value >= 100 else f'{value:#.3g}'
                if row[ratio] is not None:
                    text += f' ({row[ratio]:.2f})'
                line.append(text)
        if grows:
            line.append(_growth(own, grows))
        table.append(line)
    return markdown(table)


def _growth(rows: Dict[int, dict], field: str) -> str:
    """The exponent over the sizes that were measured."""
    points = {
        size: row[field]
        for size, row in rows.items() if size >= GROWTH_FROM and row[field]
    }
    if len(points) < 2:
        return '—'
    return f'{growth_exponent(list(points), list(points.values())):.2f}'


def profile_markdown(title: str, parts: Dict[str, Dict[str, float]],
                     operators: Dict[str, Dict[str, float]]) -> str:
    """Shares of time by operators and by parts, by model, from 0.5 %."""
    groups = dict.fromkeys(group for shares in operators.values()
                           for group, share in shares.items()
                           if share >= 0.005)
    table = [['operators', *operators]]
    table += [[
        group, *(f'{shares.get(group, 0):.1%}'
                 for shares in operators.values())
    ] for group in groups]
    lines = [f'## Where time goes: {title}', '', *markdown(table), '']
    for model, shares in parts.items():
        table = [[f'parts of {model}', 'share']]
        table += [[part, f'{share:.1%}'] for part, share in shares.items()
                  if share >= 0.005]
        lines += [*markdown(table), '']
    return '\n'.join(lines)


def draw(rows: Sequence[dict], title: str, path: Path) -> None:
    """Throughput and memory against the image size, a column a setting."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator
    settings = list(dict.fromkeys(map(_setting, rows)))
    models = list(dict.fromkeys(row['model'] for row in rows))
    sizes = sorted({row['size'] for row in rows})
    figure = Figure((max(7, 4.5 * len(settings)), 8), layout='constrained')
    figure.suptitle(title)
    grid = figure.subplots(2, len(settings), squeeze=False)
    for setting, (above, below) in zip(settings, grid.T):
        above.set_title(str(setting))
        for axes, field, label in [
            (above, 'images_per_second', 'images a second'),
            (below, 'memory_mib', 'peak memory (MiB)'),
        ]:
            for i, model in enumerate(models):
                own = [
                    row for row in rows if row['model'] == model
                    and _setting(row) == setting and row[field]
                ]
                axes.plot([row['size'] for row in own],
                          [row[field] for row in own],
                          color=f'C{i}',
                          marker='os^vD<>'[i % 7],
                          markersize=4,
                          label=model)
            axes.set(
                xscale='log',
                yscale='log',
                ylabel=label,
                xlabel='image size (pixels a side)')
            axes.set_xticks(sizes, map(str, sizes), rotation=45)
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter('{x:g}')
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.grid(alpha=0.3)
    grid[0, 0].legend()
    figure.savefig(path, dpi=120)
