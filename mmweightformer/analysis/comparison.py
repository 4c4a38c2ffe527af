# Copyright (c) mmweightformer contributors. All rights reserved.
"""The tables and plots of tools/analysis_tools/compare.py."""
from functools import partial
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import torch
from mmcv import imread
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor

from .complexity import model_complexity
from .probe import patch_detail
from .tables import Table, markdown, spread
from .timing import speed_ratio, time_in_turns
from .training_log import TrainingLog, read_training_log


class Task(NamedTuple):
    """One column or two of the comparison.

    Attributes:
        config (str): The config, with a place for the backbone.
        size (int): Height and width of its images in pixels.
        metrics (dict[str, str]): Metrics of mmengine's log and their titles.
        scale (float): What makes the metrics fractions.
        options (list[str]): Settings other than the config's.
        minutes (dict[str, float]): About how long a run takes on one core.
    """
    config: str
    size: int
    metrics: Dict[str, str]
    scale: float
    options: List[str]
    minutes: Dict[str, float]


LARGE = 1024
DEPTHS = (0.25, 0.5, 0.75, 1.)
BACKBONES = dict(wf='WeightFormer-T', deit='DeiT-T')
COLOURS = dict(wf='tab:blue', deit='tab:orange')
TASKS = dict(
    pretraining=Task('configs/digits/{}_t_digits.py', 64,
                     {'accuracy/top1': 'accuracy at 64²'}, 0.01, [],
                     dict(wf=15, deit=5)),
    classification=Task('configs/digits/{}_t_digits_128.py', 128,
                        {'accuracy/top1': 'accuracy at 128²'}, 0.01, [],
                        dict(wf=8, deit=6)),
    detection=Task('configs/digits/mask_rcnn_{}_t_digits.py', 128, {
        'coco/bbox_mAP': 'box AP',
        'coco/segm_mAP': 'mask AP'
    }, 1, ['train_cfg.max_epochs=2', 'train_cfg.val_interval=1'],
                   dict(wf=8, deit=7)),
    segmentation=Task('configs/digits/upernet_{}_t_digits.py', 128,
                      {'mIoU': 'mIoU'}, 0.01, [], dict(wf=8, deit=7)))

Scores = Dict[Tuple[str, bool, str], List[float]]


def write_report(work_dir: Path, runs: Sequence, out: Path) -> None:
    """Write ``comparison.md``, its tables as a picture, and learning curves.

    Args:
        work_dir (Path): Holds a work directory for each run, by its name.
        runs (Sequence): Runs with ``name``, ``backbone``, ``task``, ``seed``
            and ``start``, which is None without pre-training.
        out (Path): The folder to write to.
    """
    out.mkdir(parents=True, exist_ok=True)
    logs = {
        run.name: read_training_log(work_dir / run.name,
                                    TASKS[run.task].metrics)
        for run in runs
    }
    results, costs = result_table(runs, logs), cost_table()
    seeds = sorted({run.seed for run in runs})
    title = f'Digits scenes, seed {seeds[0]}'
    if len(seeds) > 1:
        title += f': mean and range over {len(seeds)} seeds of fine-tuning'
    (out / 'comparison.md').write_text('\n'.join([
        f'{title}. Made by `make compare`.', '', *markdown(results), '',
        'Costs of one image, and the throughput of the backbone over that of '
        'DeiT-T, measured in turns in one process: on 8 images, and on one '
        f'of {LARGE}×{LARGE}.', '', *markdown(costs), '',
        "How much of a digit's shape within its 16×16 patch a token tells: R² "
        'of a linear regression of the ink in 4×4 cells.', '', *markdown(
            detail_table({
                run.backbone: work_dir / run.name / 'weights.pth'
                for run in runs if run.task == 'classification'
            })), ''
    ]))
    draw_tables([results, costs], title, out / 'comparison.png')
    draw_curves(runs, logs, out / 'learning_curves.png')


def from_scratch(run) -> bool:
    return run.start is None and run.task != 'pretraining'


def result_table(runs: Sequence, logs: Dict[str, TrainingLog]) -> Table:
    scores: Scores = {}
    for run in runs:
        task, last = TASKS[run.task], logs[run.name].metrics[-1][1]
        scratch = from_scratch(run)
        for metric, title in task.metrics.items():
            scores.setdefault((run.backbone, scratch, title),
                              []).append(task.scale * last[metric])
    titles = [t for task in TASKS.values() for t in task.metrics.values()]
    table = [['backbone', 'weights', *titles]]
    for scratch, weights in enumerate(['pre-trained here', 'from scratch']):
        for backbone, name in BACKBONES.items():
            cells = [
                spread(scores.get((backbone, bool(scratch), title), []))
                for title in titles
            ]
            table.append([name, weights, *cells])
    return table


def cost_table() -> Table:
    table = [[
        'task', 'backbone', 'parameters', 'MACs of the backbone',
        'MACs in all', 'throughput', f'throughput at {LARGE}²'
    ]]
    for name, task in TASKS.items():
        size, built = task.size, {}
        for backbone, title in BACKBONES.items():
            cfg = Config.fromfile(task.config.format(backbone))
            rows = {
                row.name: row
                for row in model_complexity(cfg, (size, size)).rows
            }
            with DefaultScope.overwrite_default_scope(cfg.default_scope):
                built[backbone] = MODELS.build(cfg.model.backbone)
            # Of mmpretrain's backbones, it returns none.
            built[backbone].eval()
            table.append([
                f'{name}, {size}²', title,
                f"{rows['total'].params / 1e6:.2f} M",
                f"{rows['backbone'].macs / 1e9:.2f} G",
                f"{rows['total'].macs / 1e9:.2f} G", '1', '1'
            ])
        images = torch.rand(8, 3, size, size), torch.rand(1, 3, LARGE, LARGE)
        for column, image in enumerate(images, start=-2):
            with torch.no_grad():
                times = time_in_turns({
                    backbone: partial(net, image)
                    for backbone, net in built.items()
                })
            ratio = speed_ratio(times['wf'], times['deit'])
            table[-2][column] = f'{ratio:.2f}'
    return table


def detail_table(pretrained: Dict[str, Path]) -> Table:
    """How much of the digits' shape the tokens tell, by depth and weights."""
    images, masks = load_scenes()
    table = [['backbone', 'weights', *(f'{d:.0%} of depth' for d in DEPTHS)]]
    for backbone, title in BACKBONES.items():
        cfg = Config.fromfile(TASKS['classification'].config.format(backbone))
        for weights in 'random', 'pre-trained':
            with DefaultScope.overwrite_default_scope(cfg.default_scope):
                options = dict(cfg.model.backbone, out_type='featmap')
                depth = len(MODELS.build(options).layers)
                options['out_indices'] = [round(d * depth) - 1 for d in DEPTHS]
                if weights == 'pre-trained':
                    options['init_cfg'] = dict(
                        type='Pretrained',
                        checkpoint=str(pretrained[backbone]),
                        prefix='backbone.')
                net = MODELS.build(options)
                net.init_weights()
            net.eval()
            with torch.no_grad():
                levels = zip(*(net(batch) for batch in images.split(25)))
                table.append([title, weights] + [
                    f'{patch_detail(torch.cat(level), masks):.2f}'
                    for level in levels
                ])
    return table


def load_scenes() -> Tuple[Tensor, Tensor]:
    """The validation scenes, and where there is a digit."""
    cfg = Config.fromfile(TASKS['segmentation'].config.format('wf'))
    root = Path(cfg.val_dataloader.dataset.data_root)
    norm = cfg.model.data_preprocessor
    images, masks = [], []
    for path in sorted((root / 'images' / 'validation').iterdir()):
        images.append(imread(str(path), channel_order='rgb'))
        label = root / 'annotations' / 'validation' / f'{path.stem}.png'
        masks.append(imread(str(label), 'grayscale') > 1)
    pixels = torch.from_numpy(np.stack(images)).float()
    pixels = (pixels - torch.tensor(norm.mean)) / torch.tensor(norm.std)
    return pixels.permute(0, 3, 1, 2), torch.from_numpy(np.stack(masks))


def draw_tables(tables: Sequence[Table], title: str, path: Path) -> None:
    from matplotlib.figure import Figure
    heights = [len(table) for table in tables]
    figure = Figure((13, 0.3 * sum(heights) + 1), layout='constrained')
    figure.suptitle(title)
    subplots = figure.subplots(len(tables), height_ratios=heights)
    for table, axes in zip(tables, subplots):
        axes.set_axis_off()
        drawn = axes.table(
            table[1:],
            colLabels=table[0],
            cellLoc='center',
            bbox=(0., 0., 1., 1.))
        drawn.auto_set_font_size(False)
        drawn.set_fontsize(9)
        for (row, _), cell in drawn.get_celld().items():
            cell.set_linewidth(0.4)
            cell.set_text_props(weight='bold' if row == 0 else 'normal')
    figure.savefig(path, dpi=120)


def draw_curves(runs: Sequence, logs: Dict[str, TrainingLog],
                path: Path) -> None:
    """A column a metric: the validations above, the smoothed loss below."""
    from matplotlib.figure import Figure
    columns = [(name, metric, title) for name, task in TASKS.items()
               for metric, title in task.metrics.items()]
    figure = Figure((4 * len(columns), 6.5), layout='constrained')
    axes = figure.subplots(2, len(columns), sharex='col')
    for (name, metric, title), (above, below) in zip(columns, axes.T):
        task = TASKS[name]
        for run in runs:
            if run.task != name:
                continue
            scratch = from_scratch(run)
            label = BACKBONES[run.backbone] + (', from scratch'
                                               if scratch else '')
            style = dict(
                color=COLOURS[run.backbone],
                linestyle='--' if scratch else '-',
                label=label if run.seed == 0 else None)
            log = logs[run.name]
            above.plot(
                [i for i, _ in log.metrics],
                [task.scale * values[metric] for _, values in log.metrics],
                marker='o',
                **style)
            iterations, losses = np.array(log.losses).T
            width = min(3, len(losses))
            below.plot(iterations[width - 1:],
                       np.convolve(losses,
                                   np.ones(width) / width, 'valid'), **style)
        above.set(title=name, ylabel=title, ylim=(0, 1))
        below.set(xlabel='iteration', ylabel='training loss')
        above.legend(fontsize=8)
        for ax in (above, below):
            ax.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
