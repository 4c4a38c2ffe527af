# Copyright (c) mmweightformer contributors. All rights reserved.
"""Vary what the dynamic blocks predict, and where they are, on the digits.

The published ablations in miniature: every variant of a small WeightFormer,
and DeiT, classifies the digits after as many images as every other. What has
been run stands, so an ablation that was stopped goes on when it is called
again.

    python tools/dataset_converters/digits.py data/digits
    python tools/analysis_tools/ablate.py
"""
import argparse
import os.path as osp
import sys
from typing import List, NamedTuple, Optional

from mmweightformer.analysis.ablation import (METRIC, VARIANTS, Variant,
                                              write_report)

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
import common  # noqa: E402
import run_plan  # noqa: E402

MINUTES = 3


class Run(NamedTuple):
    """A training run from scratch."""
    name: str
    variant: Variant
    seed: int
    start: Optional[str] = None


def plan(seeds: int) -> List[Run]:
    return [
        Run(f'{variant.name}_{seed}', variant, seed) for seed in range(seeds)
        for variant in VARIANTS
    ]


class Ablation(run_plan.RunPlan):

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(plan(args.seeds), args.work_dir, args.jobs)
        self.cfg_options = args.cfg_options

    def job(self, run: Run) -> run_plan.Job:
        options = [f'randomness.seed={run.seed}', *run.variant.options]
        return run_plan.Job(run_plan.ROOT / run.variant.config,
                            options + self.cfg_options, [METRIC], MINUTES)


@common.plain_errors()
def main() -> None:
    args = run_plan.parse_plan_args(__doc__, 'work_dirs/ablate', seeds=2)
    ablation = Ablation(args)
    ablation.run()
    write_report(args.work_dir, ablation.runs, args.out)
    print(f'Table and plot: {args.out}')


if __name__ == '__main__':
    main()
