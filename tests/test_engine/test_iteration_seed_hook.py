# Copyright (c) mmweightformer contributors. All rights reserved.
"""A training that was cut off goes on as if it had not been."""
import random

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, METRICS, MODELS
from mmengine.runner import Runner
from torch import nn

LENGTH = 10


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """Many small checkpoints, none of which has to outlive a power cut."""
    monkeypatch.setattr('os.fsync', lambda file: None)


@DATASETS.register_module()
class RandomDataset(torch.utils.data.Dataset):
    """Each item draws from all generators, as augmentations do."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        drawn = random.random(), np.random.rand(), torch.rand(()).item()
        return dict(inputs=torch.tensor([index, *drawn]))


@MODELS.register_module()
class RandomModel(BaseModel):
    """Its loss depends on its input, its weights and on chance."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, inputs, mode):
        x = self.layers(torch.stack(inputs)).squeeze()
        return dict(loss=x.square().mean()) if mode == 'loss' else [x]


@METRICS.register_module()
class RandomMetric:
    """A validation that draws, too."""

    def __init__(self):
        self.dataset_meta = None

    def process(self, data_batch, data_samples):
        torch.rand(3), random.random(), np.random.rand()

    def evaluate(self, size):
        return dict(zero=0)


@HOOKS.register_module()
class KeepLosses(Hook):

    def __init__(self, losses, stop_at=None):
        self.losses, self.stop_at = losses, stop_at

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.losses[runner.iter] = outputs['loss'].item()
        if runner.iter == self.stop_at:
            raise KeyboardInterrupt


def train(work_dir,
          num_workers=0,
          persistent_workers=False,
          by_epoch=True,
          sampler='DefaultSampler',
          interval=1,
          save_by_epoch=None,
          seed_hook='IterationSeedHook',
          seed=0,
          stop_at=None,
          resume=False,
          val=True,
          **loader):
    """Train, perhaps until an iteration, and return the losses."""
    losses = {}
    save_by_epoch = by_epoch if save_by_epoch is None else save_by_epoch
    length = dict(max_epochs=4) if by_epoch else dict(max_iters=20)
    validation = dict(
        val_cfg=dict(),
        val_dataloader=dict(
            batch_size=2,
            dataset=dict(type='RandomDataset'),
            sampler=dict(type='DefaultSampler', shuffle=False)),
        val_evaluator=dict(type='RandomMetric')) if val else {}
    loader = dict(
        batch_size=2, sampler=dict(type=sampler, shuffle=True)) | loader
    runner = Runner(
        model=dict(type='RandomModel'),
        work_dir=str(work_dir),
        train_cfg=dict(by_epoch=by_epoch, val_interval=1, **length),
        train_dataloader=dict(
            num_workers=num_workers,
            persistent_workers=persistent_workers,
            dataset=dict(type='RandomDataset'),
            **loader),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.1)),
        default_hooks=dict(
            sampler_seed=dict(type=seed_hook),
            checkpoint=dict(
                type='AtomicCheckpointHook',
                by_epoch=save_by_epoch,
                interval=interval)),
        custom_hooks=[dict(type='KeepLosses', losses=losses, stop_at=stop_at)],
        randomness=dict(seed=seed),
        resume=resume,
        log_level='ERROR',
        experiment_name=f'{work_dir.name}_{stop_at}_{resume}',
        **validation)
    if stop_at is None:
        runner.train()
    else:
        with pytest.raises(KeyboardInterrupt):
            runner.train()
        runner.call_hook('after_train')
    return losses


def resumed(work_dir, stop_at, **kwargs):
    """The losses of a training cut off behind an iteration, and resumed."""
    train(work_dir, stop_at=stop_at, **kwargs)
    return train(work_dir, resume=True, **kwargs)


WORKERS = [
    dict(num_workers=0),
    dict(num_workers=2),
    dict(num_workers=2, persistent_workers=True)
]
EPOCHS = dict(by_epoch=True)
ITERATIONS = dict(by_epoch=False, sampler='InfiniteSampler', interval=3)


@pytest.mark.parametrize('workers', WORKERS)
@pytest.mark.parametrize('loop, stop_at, begin', [
    (EPOCHS, 12, 10),
    (dict(EPOCHS, save_by_epoch=False, interval=4), 13, 12),
    (ITERATIONS, 13, 12),
    (dict(ITERATIONS, sampler='DefaultSampler'), 13, 12),
])
def test_resumed_equals_uninterrupted(workers, loop, stop_at, begin, tmp_path):
    whole = train(tmp_path / 'whole', **workers, **loop)
    rest = resumed(tmp_path / 'cut', stop_at, **workers, **loop)
    assert list(rest) == list(range(begin, 20))
    assert rest == {i: whole[i] for i in rest}


@pytest.mark.parametrize('loop', [EPOCHS, ITERATIONS])
def test_neither_workers_nor_validation_matter(loop, tmp_path):
    runs = [
        train(tmp_path / str(i), **loop, **kwargs)
        for i, kwargs in enumerate(WORKERS + [dict(val=False)])
    ]
    assert all(losses == runs[0] for losses in runs)
    assert len(set(runs[0].values())) == 20


def test_seed_of_its_own_is_kept(tmp_path):
    """Without a seed in the config, a run takes that of its checkpoint."""
    work_dir = tmp_path / 'cut'
    whole = train(work_dir, seed=None)
    for epoch in 3, 4:
        (work_dir / f'epoch_{epoch}.pth').unlink()
    (work_dir / 'last_checkpoint').write_text(str(work_dir / 'epoch_2.pth'))
    rest = train(work_dir, seed=None, resume=True)
    assert rest == {i: whole[i] for i in range(10, 20)}
    assert train(tmp_path / 'other', seed=None) != whole


def test_seeds_differ(tmp_path):
    one, two = (train(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    assert not set(one.values()) & set(two.values())


def test_every_sample_once_an_epoch(tmp_path, monkeypatch):
    seen = []
    draw = RandomDataset.__getitem__
    monkeypatch.setattr(
        RandomDataset, '__getitem__',
        lambda self, index: seen.append(index) or draw(self, index))
    train(tmp_path, val=False)
    epochs = [tuple(seen[i:i + LENGTH]) for i in range(0, 40, LENGTH)]
    assert all(sorted(epoch) == list(range(LENGTH)) for epoch in epochs)
    assert len(set(epochs)) == 4


def test_no_batch(tmp_path):
    with pytest.raises(ValueError, match='no batch to train on: 10 samples'):
        train(tmp_path, by_epoch=False, batch_size=11, drop_last=True)
