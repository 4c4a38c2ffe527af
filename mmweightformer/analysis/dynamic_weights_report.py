# Copyright (c) mmweightformer contributors. All rights reserved.
"""Figures of what predicted layers add to their weights."""
from pathlib import Path
from typing import Dict, Sequence, Tuple, Union

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .dynamic_weights import CONV, LINEAR, ClassContrast, LayerWeights

NAMES = {LINEAR: 'dynamic linear', CONV: 'dynamic convolution'}
COLOURS = {LINEAR: 'C0', CONV: 'C1'}


def block_name(layer: str) -> str:
    """The name of what a layer lies in, by its number if it has one."""
    parent = layer.rpartition('.')[0] or layer
    last = parent.rpartition('.')[2]
    return last if last.isdecimal() else parent


Row = Tuple[Union[str, Tensor], Sequence[Tensor]]


def draw_kernels(rows: Sequence[Row], blocks: Sequence[str], title: str,
                 path: Path) -> None:
    """Draw kernels: a column a block, whose channels lie in a grid.

    Args:
        rows (Sequence[tuple]): For each row its name, or an image (3, H, W)
            from 0 to 1, and the kernels (n, K, K) of each block.
        blocks (Sequence[str]): The names of the blocks.
        title (str): The figure's.
        path (Path): The file, whose suffix is its format.
    """
    from matplotlib.figure import Figure
    figure = Figure((1.6 + 1.5 * len(blocks), 1.1 + 1.55 * len(rows)),
                    layout='constrained')
    figure.suptitle(title, fontsize=11)
    grid = figure.subplots(
        len(rows) + 1,
        len(blocks) + 1,
        squeeze=False,
        height_ratios=[1] * len(rows) + [0.07])
    for line, (name, _) in zip(grid, rows):
        if isinstance(name, Tensor):
            line[0].imshow(name.permute(1, 2, 0).numpy())
        else:
            line[0].text(0.5, 0.5, name, ha='center', va='center', fontsize=13)
        line[0].set_axis_off()
    grid[-1, 0].set_axis_off()
    for j, block in enumerate(blocks):
        column = grid[:, j + 1]
        column[0].set_title(f'block {block}', fontsize=10)
        limit = max(kernels[j].abs().max().item() for _, kernels in rows)
        limit = limit or 1.
        for axes, (_, kernels) in zip(column, rows):
            image = axes.imshow(
                _tile(kernels[j]), cmap='RdBu_r', vmin=-limit, vmax=limit)
            axes.set_axis_off()
        bar = figure.colorbar(
            image,
            cax=column[-1],
            orientation='horizontal',
            ticks=[-limit, 0, limit])
        bar.ax.set_xticklabels([f'{-limit:.2g}', '0', f'{limit:.2g}'],
                               fontsize=8)
    figure.savefig(path, dpi=120)


def _tile(kernels: Tensor) -> np.ndarray:
    """(n, K, K) in a near square of kernels, with gaps that are no number."""
    columns = int(np.ceil(len(kernels)**0.5))
    rows = -(-len(kernels) // columns)
    nothing = kernels.new_full(
        (rows * columns - len(kernels), *kernels.shape[1:]), float('nan'))
    tiles = F.pad(
        torch.cat([kernels, nothing]), (0, 1, 0, 1), value=float('nan'))
    h, w = tiles.shape[1:]
    sheet = tiles.view(rows, columns, h, w).transpose(1, 2)
    return sheet.reshape(rows * h, columns * w)[:-1, :-1].numpy()


def draw_ratios(layers: Sequence[LayerWeights], title: str,
                path: Path) -> None:
    """Draw how large what is predicted is beside the weight.

    Args:
        layers (Sequence[LayerWeights]): The layers, in order of depth.
        title (str): The figure's.
        path (Path): The file, whose suffix is its format.
    """
    from matplotlib.figure import Figure
    figure = Figure((6, 4), layout='constrained')
    axes = figure.subplots()
    blocks = list(dict.fromkeys(block_name(layer.name) for layer in layers))
    for kind, shift in (LINEAR, -0.12), (CONV, 0.12):
        own = [layer for layer in layers if layer.kind == kind]
        if not own:
            continue
        x = [blocks.index(block_name(layer.name)) + shift for layer in own]
        for place, layer in zip(x, own):
            axes.plot(
                [place] * len(layer.ratios),
                layer.ratios,
                '.',
                color=COLOURS[kind],
                alpha=0.2,
                markersize=4)
        low, median, high = (
            torch.stack([layer.ratios.quantile(q) for layer in own])
            for q in (0.1, 0.5, 0.9))
        axes.errorbar(
            x,
            median, [median - low, high - median],
            color=COLOURS[kind],
            fmt='o-',
            capsize=4,
            label=NAMES[kind])
    axes.set(
        title=title,
        xlabel='dynamic block',
        ylabel=r'$\Vert\Delta W\Vert_F\;/\;\Vert W_0\Vert_F$',
        yscale='log')
    axes.set_xticks(range(len(blocks)), blocks)
    axes.grid(alpha=0.3, which='both')
    axes.legend(title='median, 10 to 90 % of the images, • each', fontsize=9)
    figure.savefig(path, dpi=120)


def draw_similarities(matrices: Dict[str, Tensor], title: str, path: Path,
                      classes: Sequence[Tuple[str, int]]) -> None:
    """Draw similarity matrices between images.

    Args:
        matrices (dict[str, Tensor]): Matrices (N, N) by their titles.
        title (str): The figure's.
        path (Path): The file, whose suffix is its format.
        classes (Sequence[tuple[str, int]]): Name and number of images of each
            class, in the order of the images; empty without classes.
    """
    from matplotlib.figure import Figure
    figure = Figure((5.2 * len(matrices), 4.9), layout='constrained')
    figure.suptitle(title)
    for axes, (name, matrix) in zip(
            figure.subplots(1, len(matrices), squeeze=False)[0],
            matrices.items()):
        others = matrix[~torch.eye(len(matrix), dtype=torch.bool)]
        # The diagonal is 1 and says nothing.
        if others.min() >= 0:
            image = axes.imshow(matrix, 'viridis', vmin=others.min(), vmax=1)
        else:
            limit = others.abs().quantile(0.99)
            image = axes.imshow(matrix, 'RdBu_r', vmin=-limit, vmax=limit)
        figure.colorbar(
            image, ax=axes, label='cosine similarity', extend='both')
        axes.set(title=name, xlabel='image', ylabel='image')
        if classes:
            ends = np.cumsum([number for _, number in classes])
            centres = ends - np.array([n for _, n in classes]) / 2 - 0.5
            names = [name for name, _ in classes]
            long = max(map(len, names)) > 3
            axes.set_xticks(centres, names, rotation=90 if long else 0)
            axes.set_yticks(centres, names)
            axes.tick_params(length=0, labelsize=8)
            axes.set(xlabel='class of image', ylabel='class of image')
            for end in ends[:-1] - 0.5:
                axes.axhline(end, color='k', linewidth=0.6)
                axes.axvline(end, color='k', linewidth=0.6)
    figure.savefig(path, dpi=120)


def draw_contrasts(layers: Sequence[Tuple[str, str]],
                   contrasts: Sequence[ClassContrast], title: str,
                   path: Path) -> None:
    """Draw whether images of one class get closer weights, by layer.

    Args:
        layers (Sequence[tuple[str, str]]): Name and kind of each layer, in
            order of depth.
        contrasts (Sequence[ClassContrast]): That of each layer.
        title (str): The figure's.
        path (Path): The file, whose suffix is its format.
    """
    from matplotlib.figure import Figure
    figure = Figure((10, 4.4), layout='constrained')
    figure.suptitle(title)
    kinds = [kind for kind in NAMES if kind in dict(layers).values()]
    all_axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(all_axes, kinds):
        own = [(name, contrast)
               for (name, other), contrast in zip(layers, contrasts)
               if other == kind]
        x = range(len(own))
        axes.axhline(0, color='grey', linewidth=0.8)
        for label, colour, marker in (('within', 'C2', 'o'), ('between', 'C3',
                                                              's')):
            axes.plot(
                x, [getattr(contrast, label) for _, contrast in own],
                color=colour,
                marker=marker,
                label=f'{label} classes')
        axes.fill_between(
            x,
            *zip(*(contrast.chance for _, contrast in own)),
            color='grey',
            alpha=0.3,
            linewidth=0,
            label='within classes of shuffled labels, 95 %')
        axes.set(title=NAMES[kind], xlabel='dynamic block')
        axes.set_xticks(x, [block_name(name) for name, _ in own])
        axes.grid(alpha=0.3)
        axes.label_outer()
    figure.axes[0].set_ylabel('mean cosine similarity of two images')
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(),
        loc='outside lower center',
        ncols=3)
    figure.savefig(path, dpi=120)
