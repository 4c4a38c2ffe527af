# Copyright (c) mmweightformer contributors. All rights reserved.
"""Costs, tables and figure of sequence_classification.py."""
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Callable, Dict, List, NamedTuple, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmweightformer.analysis.timing import speed_ratio, time_in_turns

COLOURS = {'WeightFormer': 'tab:blue', 'Transformer': 'tab:orange'}
SECONDS = 10.  # for all rounds of a length

Build = Callable[[str, int], nn.Module]
Curves = Dict[str, List[List[float]]]


class Cost(NamedTuple):
    """What sequences of a length cost in inference.

    Attributes:
        length (int): N, the tokens of a sequence.
        macs (dict[str, int]): Multiply-adds for one sequence.
        speedup (float): How many times as fast as the last model the first
            is.
    """
    length: int
    macs: Dict[str, int]
    speedup: float


def measure_costs(build: Build, names: Sequence[str],
                  lengths: Sequence[int]) -> List[Cost]:
    """Count and time two models on sequences of several lengths.

    Times are of as many sequences as have the tokens of the longest, and the
    models take turns.

    Args:
        build (Callable): Makes a model by its name and the length.
        names (Sequence[str]): The two models.
        lengths (Sequence[int]): N of each row.

    Returns:
        list[Cost]: One for each length.
    """
    fastpath = torch.backends.mha.get_fastpath_enabled()
    # On a CPU, it forms N×N matrices, unlike PyTorch's fused attention.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        costs = []
        for length in lengths:
            print(f'Costs at {length} tokens')
            batch = max(lengths) // length
            costs.append(_measure_cost(build, names, length, batch))
        return costs
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)


@torch.no_grad()
def _measure_cost(build: Build, names: Sequence[str], length: int,
                  batch: int) -> Cost:
    models = {name: build(name, length).eval() for name in names}
    values = torch.zeros(batch, length, dtype=torch.long)
    times = time_in_turns(
        {
            name: partial(model, values)
            for name, model in models.items()
        }, SECONDS)
    first, last = times.values()
    macs = {
        name: _count_macs(model.to('meta'), length)
        for name, model in models.items()
    }
    return Cost(length, macs, speed_ratio(first, last))


def _count_macs(model: nn.Module, length: int) -> int:
    values = torch.zeros(1, length, dtype=torch.long, device='meta')
    # The counter knows the products that attention is made of.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as meter:
        model(values)
    return meter.get_total_flops() // 2


def tables(params: Dict[str, int], curves: Curves,
           costs: Sequence[Cost]) -> str:
    """Parameters, accuracies after the last epoch, and costs, in Markdown."""
    lines = ['| model | parameters | test accuracy |', '| --- | ---: | --- |']
    for name, runs in curves.items():
        final = [run[-1] for run in runs]
        lines.append(
            f'| {name} | {params[name]:,} | '
            f'{mean(final):.3f} ({min(final):.3f}–{max(final):.3f}) |')
    first, last = curves
    lines += [
        '', f'| tokens N | M MACs, {first} | M MACs, {last} | '
        f'MACs, {last} over {first} | speed, {first} over {last} |',
        '| ---: | ---: | ---: | ---: | ---: |'
    ]
    for cost in costs:
        macs = [cost.macs[name] for name in (first, last)]
        lines.append(f'| {cost.length:,} | {macs[0] / 1e6:,.1f} | '
                     f'{macs[1] / 1e6:,.1f} | {macs[1] / macs[0]:.2f} | '
                     f'{cost.speedup:.2f} |')
    return '\n'.join(lines) + '\n'


def draw(curves: Curves, costs: Sequence[Cost], path: Path) -> None:
    """Accuracy against epochs, and MACs and speed against tokens."""
    from matplotlib.figure import Figure
    figure = Figure((13, 4), layout='constrained')
    left, middle, right = figure.subplots(1, 3)
    for name, runs in curves.items():
        values = np.array(runs)
        epochs = np.arange(1, values.shape[1] + 1)
        left.plot(
            epochs,
            values.mean(axis=0),
            color=COLOURS[name],
            marker='.',
            label=name)
        left.fill_between(
            epochs,
            values.min(axis=0),
            values.max(axis=0),
            color=COLOURS[name],
            alpha=0.2,
            linewidth=0)
    left.set(
        title=f'Digits as sequences, mean and range of {len(runs)} seeds',
        xlabel='epoch',
        ylabel='test accuracy',
        ylim=(0, 1))
    lengths = [cost.length for cost in costs]
    for name in curves:
        middle.loglog(
            lengths, [cost.macs[name] for cost in costs],
            color=COLOURS[name],
            marker='o',
            label=name)
    middle.set(
        title='Multiply-adds of one sequence',
        xlabel='tokens N',
        ylabel='MACs')
    first, last = curves
    right.loglog(
        lengths, [cost.speedup for cost in costs],
        color=COLOURS[first],
        marker='o',
        label=f'{first} over {last}')
    right.axhline(1, color='grey', linestyle='--', linewidth=1)
    right.set(
        title='Speed of inference, measured in turns',
        xlabel='tokens N',
        ylabel='speed ratio')
    for axes in left, middle, right:
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
