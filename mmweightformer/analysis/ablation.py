# Copyright (c) mmweightformer contributors. All rights reserved.
"""The variants of tools/analysis_tools/ablate.py, and its table and plot."""
from pathlib import Path
from statistics import mean
from typing import Dict, List, NamedTuple, Sequence

from mmengine.config import Config

from .complexity import model_complexity
from .tables import Table, markdown, spread
from .training_log import TrainingLog, read_training_log

CONFIG = 'configs/digits/wf_ablation_digits.py'
DEIT = 'configs/digits/deit_ablation_digits.py'
SIZE = 64
METRIC = 'accuracy/top1'
# What is varied, and what the published network has there.
GROUPS = {
    'placement': 'every 3',
    'dynamic linear': 'bilateral',
    'dynamic convolution': 'adaptive'
}


class Variant(NamedTuple):
    """A network of the ablation.

    Attributes:
        name (str): Its name in files.
        group (str): What is varied.
        label (str): Its name in the report.
        settings (dict): What differs in the config's backbone.
        config (str): The config.
    """
    name: str
    group: str
    label: str
    settings: Dict[str, object] = {}
    config: str = CONFIG

    @property
    def options(self) -> List[str]:
        """The settings, as ``--cfg-options``."""
        return [f'model.backbone.{k}={v}' for k, v in self.settings.items()]

    def load_config(self) -> Config:
        """The config with the settings."""
        cfg = Config.fromfile(self.config)
        cfg.merge_from_dict({
            f'model.backbone.{k}': v
            for k, v in self.settings.items()
        })
        return cfg


def _strategies(option: str, names: Sequence[str]) -> List[Variant]:
    short = option.split('_')[1]
    group = dict(linear='dynamic linear', conv='dynamic convolution')[short]
    return [
        Variant(f'{short}_{name}', group, name, {option: name})
        for name in names
    ]


VARIANTS = [
    Variant('published', 'published', 'every 3, bilateral, adaptive'),
    *[
        Variant(f'every_{n}', 'placement', f'every {n}',
                {'arch.dynamic_every': n}) for n in (1, 2, 4, 6)
    ],
    Variant('none', 'placement', 'none', {'arch.dynamic_indices': []}),
    *_strategies('dynamic_linear',
                 ['static', 'gap', 'linear', 'nonlinear', 'deep']),
    *_strategies('dynamic_conv', ['static', 'gap', 'amp_dir', 'conv']),
    Variant('static', 'both', 'both static',
            dict(dynamic_linear='static', dynamic_conv='static')),
    Variant('deit', 'attention', 'DeiT', config=DEIT),
]

Scores = Dict[str, List[float]]


def write_report(work_dir: Path, runs: Sequence, out: Path) -> None:
    """Write ``ablation.md`` and ``ablation.png``.

    Args:
        work_dir (Path): Holds a work directory for each run, by its name.
        runs (Sequence): Runs with ``name``, ``variant`` and ``seed``.
        out (Path): The folder to write to.
    """
    out.mkdir(parents=True, exist_ok=True)
    logs: Dict[str, List[TrainingLog]] = {}
    for run in runs:
        log = read_training_log(work_dir / run.name, [METRIC])
        logs.setdefault(run.variant.name, []).append(log)
    scores = {
        name: [log.metrics[-1][1][METRIC] / 100 for log in own]
        for name, own in logs.items()
    }
    losses = {
        name: [log.losses[-1][1] for log in own]
        for name, own in logs.items()
    }
    title = (f'Digits at {SIZE}×{SIZE}, mean and range over '
             f'{len({run.seed for run in runs})} seeds')
    lines = markdown(result_table(scores, losses), right=4)
    (out / 'ablation.md').write_text('\n'.join(
        [f'{title}. Made by `make ablate`.', '', *lines, '']))
    draw_scores(scores, title, out / 'ablation.png')


def result_table(scores: Scores, losses: Scores) -> Table:
    table = [[
        'varied', 'variant', 'accuracy', 'training loss', 'parameters (k)',
        'MACs (M)'
    ]]
    for variant in VARIANTS:
        cost = model_complexity(variant.load_config(), (SIZE, SIZE)).rows[-1]
        table.append([
            variant.group, variant.label,
            spread(scores[variant.name]),
            spread(losses[variant.name]), f'{cost.params / 1e3:.0f}',
            f'{cost.macs / 1e6:.1f}'
        ])
    return table


def draw_scores(scores: Scores, title: str, path: Path) -> None:
    """A panel for what is varied: a bar each variant, a dot each seed."""
    from matplotlib.figure import Figure
    figure = Figure((12, 4.2), layout='constrained')
    figure.suptitle(title)
    panels = {
        group: [v for v in VARIANTS if v.group == group]
        for group in GROUPS
    }
    subplots = figure.subplots(
        1,
        len(panels),
        sharey=True,
        width_ratios=[len(own) + 1 for own in panels.values()])
    others = {'both': 'tab:gray', 'attention': 'tab:orange'}
    for (group, own), axes in zip(panels.items(), subplots):
        bars = {variant.label: scores[variant.name] for variant in own}
        bars = {GROUPS[group]: scores['published'], **bars}
        if group == 'placement':
            order = sorted(bars, key=lambda label: label.split()[-1])
            bars = {label: bars[label] for label in order}
        for i, (label, values) in enumerate(bars.items()):
            published = label == GROUPS[group]
            axes.bar(
                i,
                mean(values),
                color='tab:blue' if published else 'lightsteelblue')
            axes.plot([i] * len(values), values, 'k.', zorder=3)
        axes.set_xticks(range(len(bars)), bars, rotation=30)
        for variant in VARIANTS:
            if variant.group in others:
                axes.axhline(
                    mean(scores[variant.name]),
                    color=others[variant.group],
                    linestyle='--',
                    label=variant.label)
        axes.set(title=group)
        axes.grid(axis='y', alpha=0.3)
    subplots[0].set(ylabel='validation accuracy', ylim=(0, 1))
    figure.legend(
        *subplots[0].get_legend_handles_labels(),
        loc='outside lower center',
        ncols=len(others))
    figure.savefig(path, dpi=120)
