# Copyright (c) mmweightformer contributors. All rights reserved.
import json
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Tuple, Union


class TrainingLog(NamedTuple):
    """What a training run has logged so far.

    Attributes:
        losses (list[tuple[int, float]]): Iteration and loss.
        metrics (list[tuple[int, dict[str, float]]]): The iteration after
            which a validation took place, and its metrics.
    """
    losses: List[Tuple[int, float]]
    metrics: List[Tuple[int, Dict[str, float]]]


def read_training_log(work_dir: Union[str, Path],
                      metrics: Sequence[str]) -> TrainingLog:
    """Read mmengine's ``scalars.json`` files of a run, resumed or not.

    Args:
        work_dir (str | Path): The run's work directory.
        metrics (Sequence[str]): Names of the metrics, such as
            'coco/bbox_mAP'. A record that lacks one is no validation.

    Returns:
        TrainingLog: The records in order. Where a resumed run repeats
        iterations, the later record stands.
    """
    losses: Dict[int, float] = {}
    validations: Dict[int, Dict[str, float]] = {}
    for path in sorted(Path(work_dir).glob('*/vis_data/scalars.json')):
        iteration = 0
        for line in path.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # the run was killed while it wrote
                continue
            if 'loss' in record:
                iteration = record['iter']
                losses[iteration] = record['loss']
            elif all(name in record for name in metrics):
                validations[iteration] = {n: record[n] for n in metrics}
    return TrainingLog(sorted(losses.items()), sorted(validations.items()))
