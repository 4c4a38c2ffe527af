# Copyright (c) mmweightformer contributors. All rights reserved.
"""Short trainings at a high learning rate, and how they end."""
import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.model import initialize
from torch import Tensor, nn

from ..models import WeightFormer
from ..models.checks import check_choice
from ..models.layers import PredictedDepthwiseConv2d, PredictedLinear
from ..models.strategies import DYNAMIC_CONV, DYNAMIC_LINEAR, STATIC
from .dynamic_weights import CONV, LINEAR, recorded_inputs

# Every strategy beside the published one of the other layer.
NETWORKS = [
    *((linear, 'adaptive') for linear in (*DYNAMIC_LINEAR, STATIC)),
    *(('bilateral', conv)
      for conv in (*DYNAMIC_CONV, STATIC) if conv != 'adaptive'),
    (STATIC, STATIC)
]
NORMALIZE = ('both', 'none', 'linear', 'conv')
DTYPES = ('float32', 'bfloat16')
PUBLISHED_LR = 5e-4 * 2048 / 512
WEIGHT_DECAY = 0.05
MEASURED_EVERY = 20  # steps
LAST = 20  # steps, whose mean loss says how a run ends
MARGIN = 0.5  # how far above chance a run has diverged, in nats


class Images(NamedTuple):
    """A training set in memory.

    Attributes:
        pixels (Tensor): (n, channels, H, W), about from -1 to 1.
        labels (Tensor): (n,), int64.
        classes (int): Number of classes.
    """
    pixels: Tensor
    labels: Tensor
    classes: int


@dataclass(frozen=True)
class Run:
    """The settings of a training.

    The learning rate rises linearly over the warm-up and then stays. It is
    that of AdamW for a batch of 2048, whatever the batch is here.

    Attributes:
        linear (str): ``dynamic_linear`` of the backbone.
        conv (str): ``dynamic_conv`` of the backbone.
        normalize (str): The dynamic layers whose delta is divided by its norm
            plus one: 'both', 'none', 'linear' or 'conv'.
        clip (float, optional): Largest norm of the gradient.
        dtype (str): 'float32', or 'bfloat16' for autocast.
        lr_factor (float): The peak learning rate over the published one.
        warmup (int): Steps of the warm-up.
        seed (int): Of the initialization and of the order of the images.
        steps (int): Steps of the training.
        batch (int): Images in a step.
        embed_dims (int): C.
        depth (int): Number of blocks.
        patch_size (int): Size of the patches in pixels.
    """
    linear: str = 'bilateral'
    conv: str = 'adaptive'
    normalize: str = 'both'
    clip: Optional[float] = 5.
    dtype: str = 'float32'
    lr_factor: float = 4.
    warmup: int = 10
    seed: int = 0
    steps: int = 200
    batch: int = 16
    embed_dims: int = 48
    depth: int = 9
    patch_size: int = 2

    def __post_init__(self) -> None:
        check_choice('linear', self.linear, [*DYNAMIC_LINEAR, STATIC])
        check_choice('conv', self.conv, [*DYNAMIC_CONV, STATIC])
        check_choice('normalize', self.normalize, NORMALIZE)
        check_choice('dtype', self.dtype, DTYPES)

    @property
    def network(self) -> str:
        return f'{self.linear} + {self.conv}'


class Record(NamedTuple):
    """What a training has shown.

    Attributes:
        run (Run): Its settings.
        losses (list[float]): The loss at each step, as long as it is finite.
        grad_norms (list[float]): The norm of the gradient at each step before
            it is clipped, as long as it is finite.
        deltas (dict): For 'linear' and 'conv' layers, where there are dynamic
            ones, the largest over them of two figures at every
            ``MEASURED_EVERY``-th step: 'norm', the largest norm of a column
            or kernel of the delta as predicted, and 'ratio', the norm of the
            whole delta over that of the static weight, for the sample where
            it is largest.
    """
    run: Run
    losses: List[float]
    grad_norms: List[float]
    deltas: Dict[str, Dict[str, List[float]]]

    @property
    def failed_at(self) -> Optional[int]:
        """The first step whose loss or gradient is not finite."""
        step = len(self.grad_norms)
        return None if step == self.run.steps else step

    @property
    def end(self) -> float:
        """The mean loss of the last steps; infinite after a failure."""
        if self.failed_at is not None:
            return math.inf
        return float(np.mean(self.losses[-LAST:]))

    def outcome(self, classes: int = 10) -> str:
        """How the training ended.

        Returns:
            str: 'diverged', if a loss or a gradient was not finite or ``end``
            lies more than ``MARGIN`` above the entropy of a uniform guess;
            'learned', if it lies more than ``MARGIN`` below; else 'stuck'.
        """
        distance = self.end - math.log(classes)
        if abs(distance) <= MARGIN:
            return 'stuck'
        return 'diverged' if distance > 0 else 'learned'


def load_digits(size: int = 16) -> Images:
    """The 1,797 handwritten digits of scikit-learn, resized from 8×8.

    Args:
        size (int): Height and width. Defaults to 16.

    Returns:
        Images: Gray images of ten classes.
    """
    from sklearn import datasets
    digits = datasets.load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    pixels = F.interpolate(pixels, (size, size), mode='bilinear')
    return Images(pixels, torch.tensor(digits.target), 10)


def build_model(run: Run, images: Images) -> nn.ModuleDict:
    """The backbone and a linear head, initialized as published."""
    kwargs = {}
    for name in 'linear', 'conv':
        strategy = getattr(run, name)
        kwargs[f'dynamic_{name}'] = strategy if strategy == STATIC else dict(
            type=strategy, normalize=run.normalize in ('both', name))
    backbone = WeightFormer(
        dict(embed_dims=run.embed_dims, depth=run.depth),
        patch_size=run.patch_size,
        in_channels=images.pixels.shape[1],
        out_type='avg_featmap',
        **kwargs)
    head = nn.Linear(run.embed_dims, images.classes)
    model = nn.ModuleDict(dict(backbone=backbone, head=head))
    # init_weights would log each parameter.
    initialize(model, WeightFormer.published_init)
    return model


def train(run: Run, images: Images) -> Record:
    """Train until the last step or the first that is not finite.

    Runs that differ in neither seed nor strategies start from the same
    parameters and see the same images in the same order.

    Args:
        run (Run): The settings.
        images (Images): The training set.

    Returns:
        Record: What was seen.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = build_model(run, images)
        epochs = math.ceil(run.steps * run.batch / len(images.labels))
        order = torch.cat(
            [torch.randperm(len(images.labels)) for _ in range(epochs)])
    params = list(model.parameters())
    groups = [
        dict(
            params=[p for p in params if p.ndim > 1],
            weight_decay=WEIGHT_DECAY),
        dict(params=[p for p in params if p.ndim == 1], weight_decay=0.)
    ]
    optimizer = torch.optim.AdamW(groups, fused=True)
    autocast = partial(
        torch.autocast, 'cpu', torch.bfloat16, enabled=run.dtype == 'bfloat16')
    record = Record(run, [], [], {})
    for step in range(run.steps):
        for group in optimizer.param_groups:
            group['lr'] = run.lr_factor * PUBLISHED_LR * min(
                1., (step + 1) / max(run.warmup, 1))
        index = order[step * run.batch:(step + 1) * run.batch]
        x = images.pixels[index]
        with autocast():
            logits = model['head'](model['backbone'](x)[0])
        loss = F.cross_entropy(logits.float(), images.labels[index])
        if not loss.isfinite():
            break
        record.losses.append(_rounded(loss))
        if step % MEASURED_EVERY == 0 or step == run.steps - 1:
            with autocast():
                _add_deltas(record.deltas, model['backbone'], x)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(params, run.clip or math.inf)
        if not norm.isfinite():
            break
        record.grad_norms.append(_rounded(norm))
        optimizer.step()
    return record


def _rounded(value: Tensor) -> float:
    return float(f'{value.item():.4g}')


@torch.no_grad()
def _add_deltas(deltas: dict, backbone: nn.Module, x: Tensor) -> None:
    """Append what the dynamic layers predict for a batch."""
    layers = {
        name: layer
        for name, layer in backbone.named_modules()
        if isinstance(layer, (PredictedLinear, PredictedDepthwiseConv2d))
    }
    with recorded_inputs(layers) as inputs:
        backbone(x)
    found: Dict[str, List[Tensor]] = {}
    for name, layer in layers.items():
        linear = isinstance(layer, PredictedLinear)
        delta = layer.predict_delta(inputs[name]).float()
        norm = torch.linalg.vector_norm(delta, dim=1 if linear else (2, 3))
        whole = torch.linalg.vector_norm(norm, dim=1)
        found.setdefault(LINEAR if linear else CONV, []).append(
            torch.stack([norm.max(),
                         whole.max() / layer.weight.norm()]))
    for kind, values in found.items():
        lists = deltas.setdefault(kind, dict(norm=[], ratio=[]))
        for name, value in zip(lists, torch.stack(values).amax(0)):
            lists[name].append(_rounded(value))


class Records:
    """Records in a file of JSON lines, one a training.

    Args:
        path (Path): The file, which need not exist. A last line that was not
            written to its end is dropped.

    Raises:
        ValueError: If another line is not a record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: List[Record] = []
        if not path.exists():
            return
        *lines, rest = path.read_text(errors='replace').split('\n')
        for number, line in enumerate(lines, 1):
            try:
                fields = json.loads(line)
                record = Record(**dict(fields, run=Run(**fields['run'])))
                record.outcome()  # which reads all of it
                self.all.append(record)
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f'{path}, line {number} is not a record of '
                                 f'a training: {error}') from error
        if rest:
            path.write_text(''.join(f'{line}\n' for line in lines))

    def find(self, run: Run) -> Optional[Record]:
        """The record of these settings."""
        for record in self.all:
            if record.run == run:
                return record
        return None

    def add(self, record: Record) -> None:
        """Keep a record, also in the file."""
        line = json.dumps(dict(record._asdict(), run=asdict(record.run)))
        with open(self.path, 'a') as file:
            file.write(f'{line}\n')
        self.all.append(record)


def train_all(runs: Sequence[Run], images: Images, records: Records,
              report: Callable[[int, Record], Any]) -> List[Record]:
    """Train what has no record yet.

    Args:
        runs (Sequence[Run]): The settings.
        images (Images): The training set.
        records (Records): What has been trained before; gets what is new.
        report (Callable): Called after each new training with how many are
            left, and its record.

    Returns:
        list[Record]: A record for each run.
    """
    missing = [run for run in runs if records.find(run) is None]
    for left, run in zip(reversed(range(len(missing))), missing):
        record = train(run, images)
        records.add(record)
        report(left, record)
    return [records.find(run) for run in runs]
