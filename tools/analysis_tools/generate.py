# Copyright (c) mmweightformer contributors. All rights reserved.
"""Compare WeightFormerDiT with DiT as generators of digits.

Both denoisers are trained with the same data, order of data, noise and budget.
Each then generates an image for 2,000 labels, from as many seeds as are asked
for, guided and not. The images are compared with the training images in the
feature space of the classifier of the digits, which is trained as well. What
has been run stands, so a comparison that was stopped goes on when it is called
again.

    python tools/dataset_converters/digits.py data/digits
    python tools/dataset_converters/digits.py data/digits_plain --size 32 \\
        --layouts imagenet --min-ease 1
    python tools/analysis_tools/generate.py
"""
import argparse
import json
import os.path as osp
import sys
from typing import Dict, List, NamedTuple, Optional

from mmweightformer.analysis.generation import (DENOISERS, GUIDANCE, METRICS,
                                                write_report)

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
import common  # noqa: E402
import run_plan  # noqa: E402

TEST = str(run_plan.ROOT / 'tools' / 'test.py')
CLASSIFIER = 'classifier'
CLASSIFIER_CONFIG = 'configs/digits/wf_t_digits.py'


class Run(NamedTuple):
    """The training of a network, or the score of a trained denoiser.

    Attributes:
        name (str): Its name.
        config (str): Its config.
        seed (int): Of the training, or of the samples.
        guidance (float, optional): Of the samples; None for a training.
        start (str, optional): The training that is scored.
    """
    name: str
    config: str
    seed: int = 0
    guidance: Optional[float] = None
    start: Optional[str] = None


def plan(seeds: int) -> List[Run]:
    """All runs, each behind those that it needs."""
    runs = [Run(name, d.config) for name, d in DENOISERS.items()]
    runs.append(Run(CLASSIFIER, CLASSIFIER_CONFIG))
    for guidance in GUIDANCE:
        runs += [
            Run(f'{name}_guidance_{guidance:g}_{seed}', d.config, seed,
                guidance, name) for seed in range(seeds)
            for name, d in DENOISERS.items()
        ]
    return runs


class Generation(run_plan.RunPlan):

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(plan(args.seeds), args.work_dir, args.jobs)
        self.cfg_options = args.cfg_options

    def needs(self, run: Run) -> List[str]:
        return [] if run.start is None else [run.start, CLASSIFIER]

    def job(self, run: Run) -> run_plan.Job:
        config = run_plan.ROOT / run.config
        if run.name == CLASSIFIER:
            return run_plan.Job(config, ['randomness.seed=0'],
                                ['accuracy/top1'], 8)
        if run.start is None:
            return run_plan.Job(config,
                                ['randomness.seed=0', *self.cfg_options], [],
                                DENOISERS[run.name].minutes)
        options = [
            f'model.test_cfg.seed={run.seed}',
            f'model.test_cfg.guidance_scale={run.guidance}', *self.cfg_options
        ]
        return run_plan.Job(config, options, METRICS, 3)

    def checkpoint(self, name: str) -> str:
        return (self.folder(name) / 'last_checkpoint').read_text()

    def command(self, run: Run) -> List[str]:
        if run.start is None:
            return super().command(run)
        job = self.job(run)
        # Not among the settings, so that results stand in another place.
        features = ('test_evaluator.features.checkpoint='
                    f'{self.checkpoint(CLASSIFIER)}')
        return [
            TEST,
            str(job.config),
            self.checkpoint(run.start), '--work-dir',
            str(self.folder(run.name)), '--cfg-options', *job.options, features
        ]

    def metrics(self, run: Run) -> Dict[str, float]:
        if run.name == CLASSIFIER:
            return super().metrics(run)
        if run.start is None:
            return {}  # judged by its samples
        path = max(self.folder(run.name).glob('*/*.json'))
        found = json.loads(path.read_text())
        return {name: found[name] for name in METRICS}


@common.plain_errors()
def main() -> None:
    args = run_plan.parse_plan_args(__doc__, 'work_dirs/generate', seeds=3)
    generation = Generation(args)
    generation.run()
    write_report(args.work_dir, generation.runs, args.out)
    print(f'Tables and curves: {args.out}')


if __name__ == '__main__':
    main()
