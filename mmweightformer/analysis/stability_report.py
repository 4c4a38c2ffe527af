# Copyright (c) mmweightformer contributors. All rights reserved.
"""The tables and plots of tools/analysis_tools/stability.py."""
import csv
import math
from pathlib import Path
from statistics import fmean
from typing import Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from .stability import LAST, MARGIN, NORMALIZE, Record
from .tables import Table, markdown

SCALED = dict(
    both='both scaled',
    none='none scaled',
    linear='linear scaled',
    conv='convolution scaled')
COLOURS = dict(
    both='tab:blue', none='tab:red', linear='tab:green', conv='tab:purple')
CHANCE = math.log(10)
SMOOTHED = 10  # steps

Groups = Dict[tuple, List[Record]]


class Condition(NamedTuple):
    """What a network is trained under; a column of the tables."""
    normalize: str
    clip: Optional[float]
    dtype: str

    @classmethod
    def of(cls, record: Record) -> 'Condition':
        return cls(*(getattr(record.run, name) for name in cls._fields))

    @property
    def title(self) -> str:
        return f'{SCALED[self.normalize]}, {_clip(self.clip)}, {self.dtype}'

    @property
    def order(self) -> tuple:
        return (NORMALIZE.index(self.normalize), self.clip
                or math.inf, self.dtype != 'float32')


def _clip(clip: Optional[float]) -> str:
    return 'no clipping' if clip is None else f'clip {clip:g}'


def describe(record: Record) -> str:
    """A record in a line."""
    run, step = record.run, record.failed_at
    end = f'not finite at step {step}' if step is not None else (
        f'loss {record.end:.2f}')
    return (f'{run.network}, {Condition.of(record).title}, '
            f'{run.lr_factor:g}× lr, warm-up {run.warmup}, seed {run.seed}: '
            f'{record.outcome()}, {end}')


def write_report(records: Sequence[Record], out: Path) -> None:
    """Write ``stability.csv``, ``stability.md`` and the plots.

    Args:
        records (Sequence[Record]): At least one, of trainings on ten classes.
        out (Path): The folder to write to.
    """
    write_csv(records, out / 'stability.csv')
    groups = _grouped(records, lambda r:
                      (r.run.lr_factor, r.run.warmup, r.run.steps))
    text = [
        'Made by `tools/analysis_tools/stability.py`. Each figure is the mean '
        f'loss of the last {LAST} steps, over the seeds. A training has '
        f'diverged if a loss or a gradient was not finite or this lies '
        f'{MARGIN:g} above chance, ln 10 = {CHANCE:.2f}; it has learned if '
        f'this lies {MARGIN:g} below; else it is stuck.'
    ]
    for key, members in sorted(groups.items()):
        text += [
            '', f'## {_title(key)}', '', *markdown(outcome_table(members)), '',
            'The largest values that were seen: losses, norms of gradients '
            'before clipping, and norms of the columns of linear deltas and '
            'the kernels of convolutional ones before scaling.', '',
            *markdown(extremes_table(members))
        ]
        draw_curves(members, _title(key), out / f'curves_{_name(key)}.png')
    (out / 'stability.md').write_text('\n'.join(text) + '\n')
    draw_outcomes(groups, out / 'outcomes.png')


def _grouped(records: Sequence[Record], key) -> Groups:
    groups: Groups = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def _title(key: tuple) -> str:
    factor, warmup, steps = key
    return (f'{factor:g} times the published learning rate, warm-up of '
            f'{warmup} steps, {steps} steps')


def _name(key: tuple) -> str:
    return '{:g}x_warmup{}_steps{}'.format(*key)


def _networks(records: Sequence[Record]) -> List[str]:
    return list(dict.fromkeys(record.run.network for record in records))


def _cells(records: Sequence[Record]) -> Groups:
    """Records of the seeds, by network and condition."""
    return _grouped(records, lambda r: (r.run.network, Condition.of(r)))


def _conditions(records: Sequence[Record]) -> List[Condition]:
    return sorted({Condition.of(r) for r in records}, key=lambda c: c.order)


def outcome_table(records: Sequence[Record]) -> Table:
    """A row a network, a column a condition."""
    cells, conditions = _cells(records), _conditions(records)
    table = [['linear + convolution', *(c.title for c in conditions)]]
    for network in _networks(records):
        table.append([
            network,
            *(_outcome(cells.get((network, c), [])) for c in conditions)
        ])
    return table


def _outcome(seeds: Sequence[Record]) -> str:
    if not seeds:
        return ''
    bad = [r.outcome() for r in seeds if r.outcome() != 'learned']
    failed = [r.failed_at for r in seeds if r.failed_at is not None]
    text = f'{fmean(r.end for r in seeds):.2f}'
    if failed:
        text = f'not finite at {min(failed)}'
    for word in sorted(set(bad)):
        share = f' {bad.count(word)} of {len(seeds)}' if len(seeds) > 1 else ''
        text += f', **{word}**{share}'
    return text


def extremes_table(records: Sequence[Record]) -> Table:
    """The largest values of each network, scaled or not."""
    kinds = sorted({r.run.normalize for r in records}, key=NORMALIZE.index)
    columns = [(name, kind) for name in ('loss', 'gradient', 'linear', 'conv')
               for kind in kinds]
    table = [[
        'linear + convolution',
        *(f'{name}, {SCALED[kind]}' for name, kind in columns)
    ]]
    for network in _networks(records):
        row = [network]
        for name, kind in columns:
            values = [
                value for r in records
                if r.run.network == network and r.run.normalize == kind
                for value in _seen(r, name)
            ]
            row.append(f'{max(values):.3g}' if values else '')
        table.append(row)
    return table


def _seen(record: Record, name: str) -> List[float]:
    if name == 'loss':
        return record.losses
    if name == 'gradient':
        return record.grad_norms
    return record.deltas.get(name, dict(norm=[]))['norm']


def write_csv(records: Sequence[Record], path: Path) -> None:
    """A line a training, with its settings and what was seen."""
    rows = []
    for record in records:
        step = record.failed_at
        row = dict(
            record.run.__dict__,
            outcome=record.outcome(),
            first_step_not_finite='' if step is None else step,
            end_loss='' if step is not None else f'{record.end:.4f}',
            max_loss=max(record.losses, default=''),
            max_grad_norm=max(record.grad_norms, default=''))
        for kind in 'linear', 'conv':
            for name in 'norm', 'ratio':
                values = record.deltas.get(kind, {}).get(name, [])
                row[f'max_{kind}_delta_{name}'] = max(values, default='')
        rows.append(row)
    with open(path, 'w', newline='') as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)


def draw_curves(records: Sequence[Record], title: str, path: Path) -> None:
    """A panel a network, a line a training."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogFormatter
    networks = _networks(records)
    columns = min(4, len(networks))
    rows = -(-len(networks) // columns)
    figure = Figure((3.2 * columns, 2.5 * rows + 1.2), layout='constrained')
    axes = figure.subplots(
        rows, columns, sharex=True, sharey=True, squeeze=False)
    shown: Dict[str, dict] = {}
    for network, axis in zip(networks, axes.flat):
        axis.axhline(CHANCE, color='gray', linewidth=0.8, linestyle=':')
        for record in records:
            if record.run.network != network or not record.losses:
                continue
            condition = Condition.of(record)
            style = dict(
                color=COLOURS[condition.normalize],
                linestyle='-' if condition.clip else '--',
                linewidth=1.8 if condition.dtype == 'float32' else 0.9)
            width = min(SMOOTHED, len(record.losses))
            losses = np.convolve(record.losses,
                                 np.ones(width) / width, 'valid')
            steps = np.arange(width - 1, len(record.losses))
            axis.plot(steps, losses, **style)
            shown[condition.title] = style
            if record.failed_at is not None:
                axis.plot(
                    steps[-1], losses[-1], 'x', color=style['color'], ms=8)
        axis.set_title(network, fontsize=10)
        axis.set_yscale('log')
        axis.yaxis.set_major_formatter(LogFormatter())
        axis.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, .5)))
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(networks):]:
        axis.set_axis_off()
    for column in range(columns):
        lowest = axes.flat[range(len(networks))[column::columns][-1]]
        lowest.set_xlabel('step')
        lowest.tick_params(labelbottom=True)
    figure.supylabel(f'training loss, mean of {SMOOTHED} steps')
    figure.suptitle(title[0].upper() + title[1:])
    order = [c.title for c in _conditions(records) if c.title in shown]
    figure.legend([Line2D([], [], **shown[name]) for name in order],
                  order,
                  loc='outside lower center',
                  ncols=min(4, len(order)),
                  fontsize=8)
    figure.savefig(path, dpi=110)


def draw_outcomes(groups: Groups, path: Path) -> None:
    """A matrix for each learning rate and warm-up: how networks ended."""
    from matplotlib.figure import Figure
    networks = _networks([r for members in groups.values() for r in members])
    keys = sorted(groups)
    heights = [len(_conditions(groups[key])) for key in keys]
    figure = Figure((4.2 + 0.62 * len(networks),
                     1.6 + 0.3 * sum(heights) + 0.35 * len(keys)),
                    layout='constrained')
    axes = figure.subplots(
        len(keys), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, key in zip(axes, keys):
        cells, conditions = _cells(groups[key]), _conditions(groups[key])
        ends = np.full((len(conditions), len(networks)), np.nan)
        for y, condition in enumerate(conditions):
            for x, network in enumerate(networks):
                seeds = cells.get((network, condition))
                if not seeds:
                    continue
                end = fmean(record.end for record in seeds)
                ends[y, x] = min(end, 99.)
                pale = 0.3 * CHANCE < end < 1.7 * CHANCE
                axis.text(
                    x,
                    y,
                    '∞' if math.isinf(end) else f'{end:.2f}',
                    ha='center',
                    va='center',
                    fontsize=8,
                    color='black' if pale else 'white')
        axis.set_facecolor('lightgray')  # where nothing was trained
        image = axis.imshow(
            ends, cmap='RdBu_r', vmin=0, vmax=2 * CHANCE, aspect='auto')
        axis.set_yticks(
            range(len(conditions)), [c.title for c in conditions], fontsize=8)
        axis.set_title(
            '{:g}× learning rate, warm-up {}, {} steps'.format(*key),
            fontsize=9)
    axes[-1].set_xticks(
        range(len(networks)),
        networks,
        rotation=35,
        ha='right',
        rotation_mode='anchor',
        fontsize=9)
    bar = figure.colorbar(image, ax=axes, pad=0.01, extend='max', aspect=40)
    bar.set_label(f'loss, mean of the last {LAST} steps')
    bar.set_ticks([0, 1, CHANCE, 3, 4], labels=['0', '1', 'chance', '3', '4'])
    figure.savefig(path, dpi=110)
