# Copyright (c) mmweightformer contributors. All rights reserved.
"""Compare WeightFormer-T with DeiT-T on the digits, from pre-training on.

Each backbone is pre-trained once as a classifier, at 64×64 and then at the
128×128 of the scenes, and fine-tuned in Mask R-CNN and in UperNet, both with
the same data, order of data, budget and seeds. For the first seed, both are
also trained without pre-training. What has been run stands, so a comparison
that was stopped goes on when it is called again.

    python tools/dataset_converters/digits.py data/digits
    python tools/analysis_tools/compare.py
"""
import argparse
import os.path as osp
import shutil
import sys
from pathlib import Path
from typing import List, NamedTuple, Optional

from mmweightformer.analysis.comparison import BACKBONES, TASKS, write_report

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
import common  # noqa: E402
import run_plan  # noqa: E402

CONVERT = 'tools/model_converters/deit_to_vitsam.py'
# A new head needs a higher learning rate than the backbone can bear.
FINE_TUNING = ['optim_wrapper.paramwise_cfg.custom_keys.backbone.lr_mult=0.2']


class Run(NamedTuple):
    """A training run; ``start`` names the one whose weights it starts from."""
    name: str
    backbone: str
    task: str
    seed: int
    start: Optional[str] = None


def plan(seeds: int) -> List[Run]:
    """All runs, each behind the one that it starts from."""
    runs, starts = [], {}
    for backbone in BACKBONES:
        first = f'{backbone}_pretraining_0'
        starts[backbone] = f'{backbone}_classification_0'
        runs += [
            Run(first, backbone, 'pretraining', 0),
            Run(starts[backbone], backbone, 'classification', 0, first)
        ]
    for seed in range(seeds):
        weights = dict(pretrained=starts)
        if seed == 0:
            weights['scratch'] = {}
        for name, start in weights.items():
            for task in ('detection', 'segmentation'):
                for backbone in BACKBONES:
                    runs.append(
                        Run(f'{backbone}_{task}_{name}_{seed}', backbone, task,
                            seed, start.get(backbone)))
    return runs


class Comparison(run_plan.RunPlan):

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(plan(args.seeds), args.work_dir, args.jobs)
        self.cfg_options = args.cfg_options

    def job(self, run: Run) -> run_plan.Job:
        task = TASKS[run.task]
        options = [f'randomness.seed={run.seed}', *task.options]
        if run.start is not None:
            options.append(f'pretrained={self.weights(run)}')
        if run.start is not None and run.task != 'classification':
            options += FINE_TUNING
        return run_plan.Job(run_plan.ROOT / task.config.format(run.backbone),
                            options + self.cfg_options, list(task.metrics),
                            task.minutes[run.backbone])

    def weights(self, run: Run) -> Path:
        vitsam = run.backbone == 'deit' and run.task == 'detection'
        name = 'vitsam.pth' if vitsam else 'weights.pth'
        return self.folder(run.start) / name

    def after_training(self, run: Run, checkpoint: str) -> None:
        if run.task not in ('pretraining', 'classification'):
            return
        weights = self.folder(run.name) / 'weights.pth'
        shutil.copy(checkpoint, weights)
        if run.backbone == 'deit':
            self.call(
                run,
                [CONVERT,
                 str(weights),
                 str(weights.with_name('vitsam.pth'))])


@common.plain_errors()
def main() -> None:
    args = run_plan.parse_plan_args(__doc__, 'work_dirs/compare', seeds=1)
    comparison = Comparison(args)
    comparison.run()
    write_report(args.work_dir, comparison.runs, args.out)
    print(f'Tables and plots: {args.out}')


if __name__ == '__main__':
    main()
