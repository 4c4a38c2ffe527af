# Copyright (c) mmweightformer contributors. All rights reserved.
import dataclasses
import math

import pytest
import torch

from mmweightformer.analysis.stability import (NETWORKS, Images, Record,
                                               Records, Run, build_model,
                                               load_digits, train, train_all)
from mmweightformer.models.strategies import DYNAMIC_CONV, DYNAMIC_LINEAR

# Of three blocks, the second is dynamic.
SMALL = Run(steps=3, batch=4, embed_dims=8, depth=3)


def change(**kwargs):
    return dataclasses.replace(SMALL, **kwargs)


@pytest.fixture
def images():
    return Images(torch.rand(10, 1, 8, 8), torch.arange(10), 10)


def test_networks():
    """Every strategy of either layer beside the published other one."""
    assert len(set(NETWORKS)) == len(NETWORKS) == 11
    assert {linear
            for linear, conv in NETWORKS
            if conv == 'adaptive'} == {*DYNAMIC_LINEAR, 'static'}
    assert {conv
            for linear, conv in NETWORKS
            if linear == 'bilateral'} == {*DYNAMIC_CONV, 'static'}


@pytest.mark.parametrize('network', NETWORKS)
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_every_network_trains(network, dtype, images):
    record = train(
        change(linear=network[0], conv=network[1], dtype=dtype), images)
    assert record.failed_at is None
    assert len(record.losses) == len(record.grad_norms) == 3
    kinds = {'linear': network[0], 'conv': network[1]}
    assert record.deltas.keys() == {k for k in kinds if kinds[k] != 'static'}
    for figures in record.deltas.values():  # of the first step and the last
        assert len(figures['norm']) == len(figures['ratio']) == 2


def test_deterministic(images):
    """By the seed, whatever the state of the generator."""
    first = train(SMALL, images)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert train(SMALL, images) == first
    assert torch.equal(torch.get_rng_state(), state)
    other = train(change(seed=1), images)
    assert other.losses != first.losses


@pytest.mark.parametrize('normalize, layers', [
    ('both', ['linear', 'conv']),
    ('none', []),
    ('linear', ['linear']),
    ('conv', ['conv']),
])
def test_normalize(normalize, layers, images):
    block = build_model(change(normalize=normalize), images).backbone.layers[1]
    assert block.fc1.normalize == ('linear' in layers)
    assert block.dwconv.normalize == ('conv' in layers)


def test_same_start(images):
    """The settings of a comparison change neither images nor parameters."""
    first = train(SMALL, images).losses[0]
    for kwargs in dict(clip=None), dict(lr_factor=9.), dict(warmup=0):
        assert train(change(**kwargs), images).losses[0] == first


def test_warmup_clip_and_factor(images):
    """By what the first step of AdamW, of the size of its rate, does."""
    runs = {
        name: train(change(steps=2, **kwargs), images).losses[1]
        for name, kwargs in dict(
            four=dict(lr_factor=4., warmup=10),
            same=dict(lr_factor=.4, warmup=0),
            more=dict(lr_factor=4., warmup=0)).items()
    }
    assert runs['four'] == runs['same'] != runs['more']
    # Adam divides by the gradient, unless a tiny one drowns in its epsilon.
    losses = train(change(clip=1e-12, lr_factor=4.), images).losses
    assert losses != train(change(clip=None, lr_factor=4.), images).losses


def test_weight_decay(images, monkeypatch):
    """Is for parameters of more than one dimension, as published."""
    groups = []

    class AdamW(torch.optim.AdamW):

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            groups.extend(self.param_groups)

    monkeypatch.setattr(torch.optim, 'AdamW', AdamW)
    train(SMALL, images)
    decay = {
        p.ndim: group['weight_decay']
        for group in groups
        for p in group['params']
    }
    assert decay == {1: 0, 2: 0.05, 4: 0.05}
    # The third step of a warm-up of ten.
    for group in groups:
        assert group['lr'] == pytest.approx(4 * 2e-3 * 3 / 10)


def test_deltas(images):
    """Against the layer's own prediction, at the start."""
    run = change(steps=1, batch=10, conv='static')
    record = train(run, images)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = build_model(run, images).backbone
    seen = []
    layer = backbone.layers[1].fc1
    layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    backbone(images.pixels)
    delta = layer.predict_delta(seen[0])
    norm = delta.square().sum(1).sqrt().max().item()
    whole = delta.flatten(1).norm(dim=1).max() / layer.weight.norm()
    assert record.deltas == dict(
        linear=dict(
            norm=[pytest.approx(norm, rel=1e-3)],
            ratio=[pytest.approx(whole.item(), rel=1e-3)]))


@pytest.mark.parametrize('end, outcome', [
    (1.80, 'learned'),
    (1.81, 'stuck'),
    (2.80, 'stuck'),
    (2.81, 'diverged'),
])
def test_outcome(end, outcome):
    """By the mean of the last 20, half a nat from ln 10 = 2.303."""
    run = Run(steps=30)
    losses = [100.] * 10 + [end - 1, end + 1] * 10
    record = Record(run, losses, [1.] * 30, {})
    assert record.end == pytest.approx(end) and record.failed_at is None
    assert record.outcome() == outcome
    failed = record._replace(grad_norms=[1.] * 29)
    assert failed.failed_at == 29 and math.isinf(failed.end)
    assert failed.outcome() == 'diverged'


def explode(images):
    """A run that overflows."""
    return change(
        linear='linear',
        normalize='none',
        clip=None,
        lr_factor=1e12,
        warmup=0,
        steps=10)


def test_divergence_is_recorded(images):
    record = train(explode(images), images)
    assert 0 < record.failed_at < 10 and record.outcome() == 'diverged'
    assert all(map(math.isfinite, record.losses + record.grad_norms))
    assert len(record.losses) - record.failed_at in (0, 1)


def test_records_resume(tmp_path, images):
    path = tmp_path / 'records.jsonl'
    runs = [SMALL, explode(images), change(clip=None)]
    calls = []

    def report(left, record):
        calls.append((left, record.run))

    train_all(runs[:2], images, Records(path), report)
    assert calls == [(1, runs[0]), (0, runs[1])]
    # As if it had been killed while it wrote a third.
    path.write_text(path.read_text() + '{"run": {"lin')
    calls.clear()
    records = train_all(runs, images, Records(path), report)
    assert calls == [(0, runs[2])]
    assert records == [train(run, images) for run in runs]
    calls.clear()
    assert train_all(runs, images, Records(path), report) == records
    assert calls == [] and len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize('line',
                         ['{', '3', '{"run": {}}', '{"run": {"a": 1}}'])
def test_damaged_records(tmp_path, line, images):
    path = tmp_path / 'records.jsonl'
    train_all([SMALL], images, Records(path), lambda *_: None)
    path.write_text(f'{path.read_text()}{line}\n')
    with pytest.raises(ValueError, match='line 2 is not a record'):
        Records(path)


def test_wrong_settings():
    with pytest.raises(ValueError, match="normalize must be .* got 'all'"):
        Run(normalize='all')
    with pytest.raises(ValueError, match="dtype must be .* got 'float16'"):
        Run(dtype='float16')


def test_digits():
    images = load_digits(12)
    assert images.pixels.shape == (1797, 1, 12, 12)
    assert -1 <= images.pixels.min() < images.pixels.max() <= 1
    assert images.labels.unique().tolist() == list(range(images.classes))
