# Copyright (c) mmweightformer contributors. All rights reserved.
"""Speed of test loops, and the share of each stage of their models."""
import time
from contextlib import contextmanager
from functools import wraps
from itertools import pairwise
from statistics import median
from typing import (Any, Callable, Dict, Iterator, List, NamedTuple, Optional,
                    Sequence, Set, Tuple)

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import DefaultScope
from mmengine.runner import Runner
from torch import nn

from ..models.checks import check_int
from ..utils.preflight import walk_config

OTHER = 'other'
STAGES = ('data', 'backbone', 'neck', 'heads', 'post-processing', 'metrics',
          OTHER)


class StageClock:
    """Shares time out to stages, which may lie within each other.

    A moment counts for the innermost stage that is open, or for ``'other'``,
    so that the stages sum to the whole. On CUDA, the moments are events in
    the stream: nothing waits for them, and the work of a stage is its own even
    if it ends after the stage was left. Other accelerators go by the CPU.

    Args:
        device (str | torch.device): Where the work is. Defaults to 'cpu'.
    """

    def __init__(self, device: Any = 'cpu') -> None:
        self.cuda = torch.device(device).type == 'cuda'
        self.start()

    def start(self) -> None:
        """Begin anew."""
        self._open = [OTHER]
        self._stamps: List[Tuple[Any, str]] = []
        self.stamp()

    def stamp(self) -> None:
        """Account for the time until now."""
        if self.cuda:
            now = torch.cuda.Event(enable_timing=True)
            now.record()
        else:
            now = time.perf_counter()
        self._stamps.append((now, self._open[-1]))

    def enter(self, stage: str) -> None:
        """Open a stage within those that are open."""
        self.stamp()
        self._open.append(stage)

    def leave(self) -> None:
        """Close the innermost stage."""
        self.stamp()
        self._open.pop()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage that is open within the context."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def wrap(self, owner: Any, method: str, stage: str) -> None:
        """Make a method of an object open a stage whenever it is called."""
        function = getattr(owner, method)

        @wraps(function)
        def timed(*args, **kwargs):
            with self.stage(stage):
                return function(*args, **kwargs)

        setattr(owner, method, timed)

    def seconds(self) -> Dict[str, float]:
        """Seconds of each stage from the start to the last stamp."""
        if self.cuda:
            torch.cuda.synchronize()
        seconds: Dict[str, float] = {}
        for (before, _), (now, stage) in pairwise(self._stamps):
            passed = before.elapsed_time(now) / 1e3 if self.cuda \
                else now - before
            seconds[stage] = seconds.get(stage, 0.) + passed
        return seconds


class LoopSpeed(NamedTuple):
    """The speed of a test loop.

    Attributes:
        images_per_second (float): Median over the rounds.
        slowest (float): The slowest round's images a second.
        fastest (float): The fastest round's images a second.
        ratio (float): How many times as fast the first of the compared loops
            is: the median over the rounds of its speed over this one's.
        shares (dict[str, float]): The part of the time, 0 to 1, of each of
            :data:`STAGES`. They sum to 1.
        sizes (list[tuple[int, int]]): Heights and widths at which the
            backbone was run, in pixels, sorted.
        detections (float, optional): Mean number of an image's predicted
            instances. None where the model predicts none such.
    """
    images_per_second: float
    slowest: float
    fastest: float
    ratio: float
    shares: Dict[str, float]
    sizes: List[Tuple[int, int]]
    detections: Optional[float]


Progress = Callable[[int], object]


def compare_test_loops(runners: Sequence[Runner],
                       rounds: int = 5,
                       warmup: int = 1,
                       progress: Optional[Progress] = None) -> List[LoopSpeed]:
    """Time the test loops of runners, which take turns, and their stages.

    Each round calls ``test`` of each runner, as a test by MMEngine does. Its
    time goes from the start of the loop to the end of the last iteration. The
    evaluator's final sum of a test set is neither computed nor counted, since
    its time is not one of images.

    The stages are: ``'data'``, what the loop waits for the loader, and the
    model's ``data_preprocessor``; ``'backbone'``; ``'neck'``;
    ``'post-processing'``, each ``predict_by_feat``, ``add_pred_to_datasample``
    and ``postprocess_result``; ``'heads'``, the rest of the model's other
    children; ``'metrics'``, what the evaluator does of each batch; and
    ``'other'``. Runners are of no other use afterwards.

    Args:
        runners (Sequence[Runner]): Runners with a test loop, each with a
            model that has a backbone. The first is what the others are
            compared with.
        rounds (int): Number of measurements. Defaults to 5.
        warmup (int): Number of rounds before them. Defaults to 1.
        progress (Callable, optional): Called after each batch with its number
            of images.

    Returns:
        list[LoopSpeed]: The speed of each loop.

    Raises:
        TypeError: If ``rounds`` or ``warmup`` is not an int.
        ValueError: If one of them is too small, or there is no runner, no
            backbone or no test image.
        RuntimeError: If a test fails; it names the config and the reason.
    """
    check_int('rounds', rounds, 1)
    check_int('warmup', warmup, 0)
    if not runners:
        raise ValueError('runners must be one or more, got none')
    loops = [_TimedLoop(runner, progress) for runner in runners]
    turns = [[loop.run() for loop in loops] for _ in range(warmup + rounds)]
    columns = list(zip(*turns[warmup:]))
    return [
        _summarize(loop, column, columns[0])
        for loop, column in zip(loops, columns)
    ]


class _Run(NamedTuple):
    images: int
    detections: Optional[int]
    seconds: Dict[str, float]

    @property
    def speed(self) -> float:
        return self.images / sum(self.seconds.values())


class _TimedLoop(Hook):
    """A runner's test loop, and a hook that sees when its batches come."""

    # Behind other hooks, which are a part of the loop.
    priority = 'VERY_LOW'

    def __init__(self, runner: Runner, progress: Optional[Progress]) -> None:
        self.runner = runner
        self.progress = progress
        self.sizes: Set[Tuple[int, int]] = set()
        model = runner.model
        if not isinstance(getattr(model, 'backbone', None), nn.Module):
            raise ValueError('the stages of a model are known if it has a '
                             f'backbone, got {type(model).__name__}')
        self.clock = StageClock(next(model.parameters()).device)
        self._time_stages(model)
        with self._scope():
            self.evaluator = runner.test_loop.evaluator
        self.clock.wrap(self.evaluator, 'process', 'metrics')
        self.evaluator.evaluate = self._forget
        runner.register_hook(self)

    def _scope(self):
        """Where the types of the runner's config are looked up."""
        return DefaultScope.overwrite_default_scope(
            self.runner.default_scope.scope_name)

    def _time_stages(self, model: nn.Module) -> None:
        names = dict(
            data_preprocessor='data', backbone='backbone', neck='neck')
        for name, child in model.named_children():
            stage = names.get(name, 'heads')
            parts = child if isinstance(child, nn.ModuleList) else [child]
            for part in parts:
                # Models call heads by either.
                for method in 'forward', 'predict':
                    if hasattr(part, method):
                        self.clock.wrap(part, method, stage)
        for module in model.modules():
            for method in ('predict_by_feat', 'add_pred_to_datasample',
                           'postprocess_result'):
                if hasattr(module, method):
                    self.clock.wrap(module, method, 'post-processing')
        model.backbone.register_forward_pre_hook(self._note_size)

    def _note_size(self, backbone: nn.Module, args: tuple) -> None:
        self.sizes.add(tuple(args[0].shape[-2:]))

    def _forget(self, size: int) -> dict:
        """In place of ``evaluate``, which would also begin anew."""
        for metric in self.evaluator.metrics:
            metric.results.clear()
        return {}

    def before_test_epoch(self, runner: Runner) -> None:
        self.images, self.detections = 0, None
        self.clock.start()
        self.clock.enter('data')

    def before_test_iter(self, runner: Runner, *args, **kwargs) -> None:
        self.clock.leave()

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any,
                        outputs: Sequence) -> None:
        self.images += len(outputs)
        for sample in outputs:
            if 'pred_instances' in sample:
                found = len(sample.pred_instances)
                self.detections = (self.detections or 0) + found
        if self.progress is not None:
            self.progress(len(outputs))
        self.clock.enter('data')

    def run(self) -> _Run:
        try:
            with self._scope():
                self.runner.test()
        except Exception as error:
            # What a model raises is up to its code.
            name = self.runner.cfg.filename or self.runner.experiment_name
            reason = f'{type(error).__name__}: {error}'.strip()
            if 'Traceback' in reason:
                # A worker of a data loader sends its whole one along.
                reason = reason.splitlines()[-1]
            raise RuntimeError(f'{name} cannot be tested: {reason}') from error
        if not self.images:
            raise ValueError('the test set must have an image, got none')
        return _Run(self.images, self.detections, self.clock.seconds())


def _summarize(loop: _TimedLoop, runs: Sequence[_Run],
               first: Sequence[_Run]) -> LoopSpeed:
    speeds = [run.speed for run in runs]
    seconds = {
        stage: sum(run.seconds.get(stage, 0.) for run in runs)
        for stage in STAGES
    }
    total = sum(seconds.values())
    return LoopSpeed(
        images_per_second=median(speeds),
        slowest=min(speeds),
        fastest=max(speeds),
        ratio=median(a.speed / b.speed for a, b in zip(first, runs)),
        shares={stage: seconds[stage] / total
                for stage in STAGES},
        sizes=sorted(loop.sizes),
        detections=None if loop.detections is None else loop.detections /
        loop.images)


def keep_first_images(cfg: Config, number: int) -> None:
    """Cut the test set of a config down to its first images.

    Workers of its loader are kept from one run of the loop to the next.

    Args:
        cfg (Config): A config with ``test_dataloader``, changed in place.
        number (int): Number of images. Building the dataset raises an
            IndexError where it has fewer.

    Raises:
        TypeError: If ``number`` is not an int.
        ValueError: If it is less than 1, or there is not one test dataset.
    """
    check_int('number', number, 1)
    _test_dataset(cfg).indices = list(range(number))
    if cfg.test_dataloader.get('num_workers'):
        cfg.test_dataloader.persistent_workers = True


def set_image_size(cfg: Config, size: Tuple[int, int]) -> None:
    """Have the images of a config's test pipeline resized into ``size``.

    ``Resize`` and ``Pad`` are set, whether or not they keep the ratio of the
    sides. Where there is no ``Resize``, one that does is put behind loading.

    Args:
        cfg (Config): A config with ``test_dataloader``, changed in place.
        size (tuple[int, int]): Height and width in pixels.

    Raises:
        TypeError: If a size is not an int.
        ValueError: If one is less than 1, there is not one test dataset with
            a pipeline that begins with loading, or other transforms there set
            sizes.
    """
    for side in size:
        check_int('size', side, 1)
    height, width = size
    pipeline = _test_dataset(cfg).get('pipeline') or []
    names = [_type_name(transform) for transform in pipeline]
    if not names or not names[0].startswith('LoadImage'):
        raise ValueError('the test pipeline must begin with loading an image, '
                         f'got {names}')
    for name, transform in zip(names, pipeline):
        if name == 'Resize':
            transform.pop('scale_factor', None)
            transform.scale = (width, height)
        elif name == 'Pad' and 'size' in transform:
            transform.size = (width, height)
        elif {'scale', 'size', 'crop_size', 'transforms'} & transform.keys():
            raise ValueError('the test pipeline may have Resize and Pad to '
                             f'set the size, got {name}')
    if 'Resize' not in names:
        pipeline.insert(
            1, dict(type='Resize', scale=(width, height), keep_ratio=True))


def drop_pretrained(cfg: Config) -> None:
    """Let initialization load no weights.

    Args:
        cfg (Config): A config with ``model``, changed in place.
    """
    for _, node in walk_config(cfg.model, 'model'):
        if node.get('pretrained') is not None:
            node.pretrained = None
        init_cfg = node.get('init_cfg') or []
        init_cfgs = init_cfg if isinstance(init_cfg, list) else [init_cfg]
        kept = [c for c in init_cfgs if _type_name(c) != 'Pretrained']
        if len(kept) < len(init_cfgs):
            node.init_cfg = kept or None


def _test_dataset(cfg: Config) -> dict:
    dataset = cfg.test_dataloader.dataset
    while 'dataset' in dataset:
        dataset = dataset.dataset
    if 'datasets' in dataset:
        raise ValueError('there must be one test dataset, got '
                         f'{len(dataset.datasets)}')
    return dataset


def _type_name(node: dict) -> str:
    return str(getattr(node.type, '__name__', node.type)).split('.')[-1]
