# Copyright (c) mmweightformer contributors. All rights reserved.
"""WeightFormer on sequences: handwritten digits, read pixel by pixel.

The 1,797 digits of scikit-learn, 8×8 pixels of 17 grey levels, become
sequences of 64 values, and a model says which digit each is: a miniature of
sequential MNIST. WeightFormer's blocks are trained beside those of a
Transformer encoder of the same width, depth and size, everything else equal.
For another domain, replace ``load_digits_as_sequences`` and the embedding.

    python examples/sequence_classification.py
"""
import argparse
import sys
import time
from pathlib import Path
from typing import List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mmweightformer.models.backbones.weightformer import WeightFormerBlock

sys.path.insert(0, str(Path(__file__).parent))
from sequence_report import draw, measure_costs, tables  # noqa: E402

CHANNELS, DEPTH, KERNEL_SIZE, HEADS = 32, 4, 7, 2
LEVELS, LENGTH, CLASSES = 17, 64, 10
BATCH_SIZE = 32
# The best of RATES for each, as --tune finds.
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
BEST_RATES = {'WeightFormer': 1e-2, 'Transformer': 1e-2}


class SequenceBlock(WeightFormerBlock):
    """A block of WeightFormer for (B, N, C), a grid of height 1."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.unsqueeze(1)).squeeze(1)


def build_blocks(name: str) -> List[nn.Module]:
    """The blocks of a model, from (B, N, C) to (B, N, C).

    Every second block of WeightFormer is a dynamic one, which gives it the
    parameters of the Transformer.
    """
    if name == 'Transformer':
        return [
            nn.TransformerEncoderLayer(
                CHANNELS,
                HEADS,
                4 * CHANNELS,
                dropout=0.,
                activation='gelu',
                batch_first=True,
                norm_first=True) for _ in range(DEPTH)
        ]
    return [
        SequenceBlock(
            CHANNELS,
            4 * CHANNELS,
            dynamic=i % 2 == 1,
            dynamic_linear='bilateral',
            dynamic_conv='adaptive',
            reduction=4,
            kernel_size=(1, KERNEL_SIZE),
            drop_rate=0.,
            drop_path_rate=0.,
            norm_cfg=dict(type='LN'),
            act_cfg=dict(type='GELU')) for i in range(DEPTH)
    ]


class SequenceClassifier(nn.Module):
    """Embedded values and positions, blocks, mean over tokens, linear head.

    Args:
        name (str): 'WeightFormer' or 'Transformer'.
        length (int): N, the values of each sequence. Defaults to 64.
    """

    def __init__(self, name: str, length: int = LENGTH) -> None:
        super().__init__()
        self.embed = nn.Embedding(LEVELS, CHANNELS)
        self.position = nn.Embedding(length, CHANNELS)
        self.blocks = nn.Sequential(*build_blocks(name))
        self.norm = nn.LayerNorm(CHANNELS)
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        """(B, N) → (B, classes)."""
        x = self.embed(values) + self.position.weight
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


def load_digits_as_sequences() -> Tuple[TensorDataset, TensorDataset]:
    """1,437 sequences for training and 360 for test."""
    from sklearn.datasets import load_digits
    digits = load_digits()
    return split(digits.data, digits.target, 360)


def split(values, labels, size: int) -> Tuple[TensorDataset, TensorDataset]:
    """Set ``size`` of them aside, of each class its share."""
    from sklearn.model_selection import train_test_split
    train_x, test_x, train_y, test_y = train_test_split(
        values, labels, test_size=size, stratify=labels, random_state=0)
    return tuple(
        TensorDataset(torch.as_tensor(x).long(), torch.as_tensor(y))
        for x, y in ((train_x, train_y), (test_x, test_y)))


def train(name: str, rate: float, seed: int, epochs: int,
          train_set: TensorDataset, test_set: TensorDataset) -> List[float]:
    """Train a model; returns its accuracy on ``test_set`` by epoch."""
    start = time.time()
    torch.manual_seed(seed)
    model = SequenceClassifier(name)
    loader = DataLoader(train_set, BATCH_SIZE, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, epochs * len(loader), pct_start=0.1)
    accuracies = []
    for _ in range(epochs):
        model.train()
        for values, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(values), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.)
            optimizer.step()
            scheduler.step()
        accuracies.append(accuracy(model, test_set))
    print(f'{name}, seed {seed}, learning rate {rate:g}, {epochs} epochs: '
          f'accuracy {accuracies[-1]:.3f}, {time.time() - start:.0f} s')
    return accuracies


@torch.no_grad()
def accuracy(model: nn.Module, dataset: TensorDataset) -> float:
    model.eval()
    values, labels = dataset.tensors
    return (model(values).argmax(dim=1) == labels).float().mean().item()


def tune(epochs: int, train_set: TensorDataset) -> None:
    """Print what each rate brings on a fifth of the training set."""
    parts = split(*train_set.tensors, len(train_set) // 5)
    for name in BEST_RATES:
        for rate in RATES:
            train(name, rate, 0, epochs, *parts)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Train WeightFormer and a Transformer encoder on digits '
        'read pixel by pixel, and measure what both cost on longer sequences')
    parser.add_argument(
        '--epochs', type=int, default=20, help='defaults to %(default)s')
    parser.add_argument(
        '--seeds',
        type=int,
        default=3,
        help='runs of each model. Defaults to %(default)s')
    parser.add_argument(
        '--lengths',
        type=int,
        nargs='+',
        default=[64, 256, 1024, 4096, 16384],
        help='tokens N of the sequences whose cost is measured. Defaults to '
        '%(default)s')
    parser.add_argument(
        '--tune',
        action='store_true',
        help='only print the accuracy that each learning rate brings on a '
        'part of the training set')
    parser.add_argument(
        '--out-dir',
        type=Path,
        default=Path('work_dirs/sequence_classification'),
        help='folder of results.md and the figure. Defaults to %(default)s')
    parser.add_argument(
        '--format',
        choices=['png', 'pdf', 'svg'],
        default='png',
        help='format of the figure. Defaults to %(default)s')
    args = parser.parse_args()
    for option in 'epochs', 'seeds', 'lengths':
        value = getattr(args, option)
        if min(value if isinstance(value, list) else [value]) < 1:
            parser.error(f'--{option} must be positive, got {value}')
    args.lengths = sorted(set(args.lengths))
    return args


def main() -> None:
    args = parse_args()
    train_set, test_set = load_digits_as_sequences()
    if args.tune:
        tune(args.epochs, train_set)
        return
    try:
        args.out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f'--out-dir cannot be made: {error}')
    curves = {
        name: [
            train(name, rate, seed, args.epochs, train_set, test_set)
            for seed in range(args.seeds)
        ]
        for name, rate in BEST_RATES.items()
    }
    costs = measure_costs(SequenceClassifier, list(curves), args.lengths)
    params = {
        name: sum(p.numel() for p in SequenceClassifier(name).parameters())
        for name in curves
    }
    text = tables(params, curves, costs)
    (args.out_dir / 'results.md').write_text(text)
    figure = args.out_dir / f'sequences.{args.format}'
    draw(curves, costs, figure)
    print(f'\n{text}\nWritten to {args.out_dir}: results.md, {figure.name}')


if __name__ == '__main__':
    main()
