# Copyright (c) mmweightformer contributors. All rights reserved.
"""The denoisers of tools/analysis_tools/generate.py, and its report."""
import json
from pathlib import Path
from typing import Dict, NamedTuple, Sequence

import numpy as np
from mmengine.config import Config

from .complexity import model_complexity
from .tables import Table, markdown, spread
from .training_log import read_training_log

GUIDANCE = (1., 6.)
METRICS = ['generation/FID', 'generation/IS', 'generation/accuracy']


class Denoiser(NamedTuple):
    """A denoiser of the comparison.

    Attributes:
        title (str): Its name in the report.
        config (str): Its config.
        minutes (float): About how long its training takes on one core.
        colour (str): Its colour in plots.
    """
    title: str
    config: str
    minutes: float
    colour: str


DENOISERS = dict(
    dit_wf=Denoiser('WeightFormerDiT', 'configs/digits/dit_wf_digits.py', 25,
                    'tab:blue'),
    dit=Denoiser('DiT', 'configs/digits/dit_digits.py', 15, 'tab:orange'))


def write_report(work_dir: Path, runs: Sequence, out: Path) -> None:
    """Write ``generation.md`` and ``loss.png``.

    Args:
        work_dir (Path): Holds a work directory for each run, by its name,
            with its ``result.json``.
        runs (Sequence): Runs with ``name``, ``guidance`` and ``start``.
        out (Path): The folder to write to.
    """
    out.mkdir(parents=True, exist_ok=True)
    results = {
        run.name: json.loads((work_dir / run.name / 'result.json').read_text())
        for run in runs
    }
    lines = [
        '# Generation of digits', '', 'Each figure is the mean and the range '
        'over the sampling seeds, of one training.', '',
        *markdown(_table(runs, results), right=6), '',
        'The classifier in whose features images are compared has an accuracy '
        'of {:.3f} on validation images.'.format(
            results['classifier']['metrics']['accuracy/top1'] / 100), '',
        '![Training loss](loss.png)', ''
    ]
    (out / 'generation.md').write_text('\n'.join(lines))
    _draw_losses(work_dir, out / 'loss.png')


def _table(runs: Sequence, results: Dict[str, dict]) -> Table:
    table = [[
        'denoiser', 'guidance', 'FID', 'Inception score', 'class accuracy',
        'parameters', 'MACs a step'
    ]]
    for guidance in GUIDANCE:
        for name, denoiser in DENOISERS.items():
            own = [
                results[run.name] for run in runs
                if run.start == name and run.guidance == guidance
            ]
            fid, inception, accuracy = ([r['metrics'][m] for r in own]
                                        for m in METRICS)
            total = model_complexity(
                Config.fromfile(denoiser.config), (16, 16)).rows[-1]
            table.append([
                denoiser.title, f'{guidance:g}',
                spread(fid),
                spread(inception),
                spread([a / 100 for a in accuracy]),
                f'{total.params / 1e6:.2f} M', f'{total.macs / 1e6:.1f} M'
            ])
    return table


def _draw_losses(work_dir: Path, path: Path) -> None:
    from matplotlib.figure import Figure
    figure = Figure((6, 4), layout='constrained')
    axes = figure.subplots()
    for name, denoiser in DENOISERS.items():
        losses = np.array(read_training_log(work_dir / name, []).losses)
        iterations, values = losses.T
        axes.plot(
            iterations, values, label=denoiser.title, color=denoiser.colour)
    axes.set(xlabel='iteration', ylabel='training loss', yscale='log')
    axes.grid(alpha=0.3, which='both')
    axes.legend()
    figure.savefig(path, dpi=110)
