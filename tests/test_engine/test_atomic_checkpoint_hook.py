# Copyright (c) mmweightformer contributors. All rights reserved.
"""Checkpoints when the disk is full or the process is killed meanwhile."""
import errno
import os

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, METRICS, MODELS
from mmengine.runner import Runner
from torch import nn

from mmweightformer.engine import AtomicCheckpointHook


@DATASETS.register_module()
class TwoNumbers(torch.utils.data.Dataset):

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return dict(inputs=torch.tensor([float(index)]))


@MODELS.register_module()
class Line(BaseModel):

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, inputs, mode):
        out = self.layer(torch.stack(inputs))
        return dict(loss=out.square().mean()) if mode == 'loss' else [out]


@METRICS.register_module()
class Rising:
    """Each validation is the best one so far."""

    def __init__(self):
        self.dataset_meta, self.value = None, 0

    def process(self, data_batch, data_samples):
        pass

    def evaluate(self, size):
        self.value += 1
        return dict(score=self.value)


def build(work_dir, epochs=3, resume=False, **hook):
    loader = dict(
        batch_size=1,
        dataset=dict(type='TwoNumbers'),
        sampler=dict(type='DefaultSampler', shuffle=False))
    return Runner(
        model=dict(type='Line'),
        work_dir=str(work_dir),
        train_cfg=dict(by_epoch=True, max_epochs=epochs, val_interval=1),
        train_dataloader=loader,
        val_cfg=dict(),
        val_dataloader=loader,
        val_evaluator=dict(type='Rising'),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        default_hooks=dict(
            checkpoint=dict(type='AtomicCheckpointHook', interval=1, **hook)),
        randomness=dict(seed=0),
        resume=resume,
        log_level='ERROR',
        experiment_name=f'{work_dir.name}_{epochs}_{resume}')


def checkpoints(folder):
    return sorted(path.name for path in folder.glob('*.pth*'))


def pointer(work_dir):
    return (work_dir / 'last_checkpoint').read_text()


@pytest.fixture
def full_disk(monkeypatch):
    """Lets some writes through and fails from then on."""

    def fill(after):
        fsync, count = os.fsync, iter(range(1000))

        def fail(file):
            if next(count) >= after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(file)

        monkeypatch.setattr('os.fsync', fail)

    return fill


def test_as_mmengine_names_them(tmp_path):
    build(
        tmp_path, max_keep_ckpts=2, save_best='score', rule='greater').train()
    assert checkpoints(tmp_path) == [
        'best_score_epoch_3.pth', 'epoch_2.pth', 'epoch_3.pth'
    ]
    assert pointer(tmp_path) == str(tmp_path / 'epoch_3.pth')


@pytest.mark.parametrize('save_best', [None, 'score'])
def test_full_disk_keeps_the_former(save_best, tmp_path, full_disk):
    # A file and its folder for each checkpoint; of the best one, for it and
    # for the last one once more.
    writes = 2 if save_best is None else 6
    full_disk(after=writes)
    runner = build(
        tmp_path, max_keep_ckpts=1, save_best=save_best, rule='greater')
    with pytest.raises(OSError, match='No space left.*epoch_2') as error:
        runner.train()
    kept = str(tmp_path / 'epoch_1.pth')
    assert f'The former one is kept: {kept}' in str(error.value)
    assert pointer(tmp_path) == kept
    best = [] if save_best is None else ['best_score_epoch_1.pth']
    assert checkpoints(tmp_path) == [*best, 'epoch_1.pth']
    assert torch.load(kept, weights_only=False)['meta']['epoch'] == 1


def test_full_disk_from_the_start(tmp_path, full_disk):
    full_disk(after=0)
    with pytest.raises(OSError, match='There is no former one'):
        build(tmp_path).train()
    assert checkpoints(tmp_path) == []


def resumed_epochs(work_dir):
    """Train up to four, and tell which were left to do."""
    runner = build(work_dir, epochs=4, resume=True)
    begun = []

    class Begin(Hook):

        def before_train_epoch(self, runner):
            begun.append(runner.epoch)

    runner.register_hook(Begin())
    runner.train()
    return begun


@pytest.mark.parametrize('content', [
    '', '{work_dir}/epoch_3.pth', '{work_dir}/epoch_9.pth', '{work_dir}/epo',
    '\xff\x00', None
])
def test_resumes_from_the_last_whole(content, tmp_path):
    """Whatever was cut off: the checkpoint, or the file that names it."""
    build(tmp_path, epochs=2).train()
    (tmp_path / 'epoch_3.pth').write_bytes(
        (tmp_path / 'epoch_2.pth').read_bytes()[:-30])
    (tmp_path / 'epoch_3.pth.part').write_bytes(b'half of it')
    if content is None:
        (tmp_path / 'last_checkpoint').unlink()
    else:
        (tmp_path / 'last_checkpoint').write_text(
            content.format(work_dir=tmp_path), encoding='latin-1')
    assert resumed_epochs(tmp_path) == [2, 3]
    assert not (tmp_path / 'epoch_3.pth.part').exists()
    assert pointer(tmp_path) == str(tmp_path / 'epoch_4.pth')


@pytest.mark.parametrize('is_newer', [True, False])
def test_resumes_from_one_not_named_yet(is_newer, tmp_path):
    """Killed between both files; not from a former training's, though."""
    build(tmp_path, epochs=3).train()
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_2.pth'))
    written = 1e9 + 10 * (1 if is_newer else -1)
    os.utime(tmp_path / 'epoch_3.pth', (written, written))
    os.utime(tmp_path / 'last_checkpoint', (1e9, 1e9))
    assert resumed_epochs(tmp_path) == ([3] if is_newer else [2, 3])


def test_another_folder(tmp_path):
    work_dir, out_dir = tmp_path / 'work', tmp_path / 'out'
    build(work_dir, epochs=2, out_dir=str(out_dir)).train()
    (work_dir / 'last_checkpoint').write_text('')
    build(work_dir, epochs=3, out_dir=str(out_dir), resume=True).train()
    assert checkpoints(
        out_dir / 'work') == ['epoch_1.pth', 'epoch_2.pth', 'epoch_3.pth']


@pytest.mark.parametrize('template, name', [
    ('e_{:04d}.pth', 'e_0001.pth'),
    ('below/[e]_{}.pth', 'below/[e]_1.pth'),
])
def test_other_names(template, name, tmp_path):
    build(tmp_path, epochs=1, filename_tmpl=template).train()
    (tmp_path / 'last_checkpoint').unlink()
    part = tmp_path / f'{name}.part'
    part.write_bytes(b'half of it')
    runner = build(tmp_path, epochs=2, resume=True, filename_tmpl=template)
    runner.train()
    assert runner.iter == 4
    assert (tmp_path / name).exists() and not part.exists()


def test_name_without_a_step(tmp_path):
    """As in mmengine, each replaces the one before."""
    build(tmp_path, filename_tmpl='last.pth').train()
    assert checkpoints(tmp_path) == ['last.pth']


def test_best_of_another_training_stays(tmp_path):
    """Of one that this training was resumed from."""
    one, two = tmp_path / 'one', tmp_path / 'two'
    best = dict(save_best='score', rule='greater')
    build(one, epochs=1, **best).train()
    runner = build(two, epochs=3, resume=True, **best)
    runner._load_from = str(one / 'epoch_1.pth')
    runner.train()
    assert checkpoints(one) == ['best_score_epoch_1.pth', 'epoch_1.pth']
    assert 'best_score_epoch_3.pth' in checkpoints(two)


def test_other_backends_are_left_to_mmengine():
    for kwargs in (dict(out_dir='s3://bucket'),
                   dict(backend_args=dict(backend='local'))):
        hook = AtomicCheckpointHook(**kwargs)
        assert hook.backend_args == kwargs.get('backend_args')
