# Copyright (c) mmweightformer contributors. All rights reserved.
import json
import math
import random

import numpy as np
import pytest
import torch
from helpers import build_backbone, randomize
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import nn
from torch.utils.data import DataLoader

STEPS, BAD = 5, 2  # iterations, and the index of the one that fails
NAN, INF = math.nan, math.inf


class OnlyGradient(torch.autograd.Function):
    """The identity, with a gradient that is not finite."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * NAN


class Classifier(BaseModel):
    """A fault is a name that the batch brings along."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = randomize(
            build_backbone(dict(embed_dims=8, depth=3), drop_rate=0.1))
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)
        self.drawn = []

    def init_weights(self):
        """Those of the constructor stay."""

    def forward(self, inputs, data_samples, mode='loss'):
        fault = data_samples[0].fault
        self.drawn.append((torch.rand(
            ()).item(), np.random.rand(), random.random()))
        x = self.norm(self.backbone(inputs)[-1]).mean((2, 3))
        scores = self.head(x)
        if fault == 'gradient':
            scores = OnlyGradient.apply(scores)
        labels = torch.tensor([sample.label for sample in data_samples])
        term = scores.square().mean()
        if fault == 'term':
            term = term + INF
        return dict(
            loss_cls=nn.functional.cross_entropy(scores, labels),
            loss_size=term)


class Recorder(Hook):
    """Keeps the state behind each iteration."""
    priority = 'VERY_LOW'

    def __init__(self):
        self.states = []

    def after_train_iter(self,
                         runner,
                         batch_idx,
                         data_batch=None,
                         outputs=None):
        state = {f'model.{k}': v for k, v in runner.model.state_dict().items()}
        optimizer = runner.optim_wrapper.optimizer
        for i, values in optimizer.state_dict()['state'].items():
            state.update({f'{i}.{k}': v for k, v in values.items()})
        for hook in runner.hooks:
            if hasattr(hook, 'ema_model'):
                state.update({
                    f'ema.{k}': v
                    for k, v in hook.ema_model.state_dict().items()
                })
        self.states.append({
            k: torch.as_tensor(v).clone()
            for k, v in state.items()
        })


class Break(Hook):
    """Breaks a weight ahead of one iteration, and mends it behind it."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if batch_idx == BAD:
            weight = runner.model.backbone.layers[1].fc2.weight
            self.kept = weight.detach().clone()
            weight.data[0, 0] = NAN

    def after_train_iter(self,
                         runner,
                         batch_idx,
                         data_batch=None,
                         outputs=None):
        if batch_idx == BAD:
            runner.model.backbone.layers[1].fc2.weight.data.copy_(self.kept)


def make_data(fault, bad=(BAD, )):
    torch.manual_seed(0)
    data = []
    for i in range(2 * STEPS):
        image = torch.randn(3, 32, 32)
        is_bad = i // 2 in bad
        if is_bad and fault == 'image' and i % 2:
            image[0, 3, 3] = NAN
        sample = BaseDataElement(
            metainfo=dict(img_path=f'{i}.png', label=i % 3),
            fault=fault if is_bad else '')
        if is_bad and fault == 'annotation':
            sample.boxes = torch.tensor([INF])
        data.append(dict(inputs=image, data_samples=sample))
    return data


def collate(batch):
    return dict(
        inputs=torch.stack([item['inputs'] for item in batch]),
        data_samples=[item['data_samples'] for item in batch])


def train(tmp_path, data, action='skip', hooks=(), optim=None, **kwargs):
    recorder = Recorder()
    if action is not None:
        hooks = [dict(type='NonFiniteHook', action=action, **kwargs), *hooks]
    name = f'{tmp_path.name}_{len(list(tmp_path.iterdir()))}'
    runner = Runner(
        Classifier(),
        str(tmp_path / name),
        train_dataloader=DataLoader(data, batch_size=2, collate_fn=collate),
        train_cfg=dict(by_epoch=True, max_epochs=1),
        optim_wrapper=dict(
            optimizer=dict(type='AdamW', lr=0.01), **(optim or {})),
        param_scheduler=dict(type='ConstantLR', factor=1., by_epoch=False),
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=1), checkpoint=None),
        custom_hooks=[dict(type='EMAHook'), recorder, *hooks],
        visualizer=dict(
            type='Visualizer',
            name=name,
            vis_backends=[dict(type='LocalVisBackend')]),
        experiment_name=name,
        randomness=dict(seed=0),
        log_level='WARNING')
    runner.recorder = recorder
    try:
        runner.train()
    except FloatingPointError as error:
        return runner, str(error)
    return runner, None


def logged(tmp_path):
    path, = tmp_path.glob('*/*/vis_data/scalars.json')
    return list(map(json.loads, path.read_text().splitlines()))


FAULTS = [
    ('parameter', ['output of backbone.layers.1.fc2 (Linear)',
                   'weight is not finite', 'loss_cls nan']),
    ('image', ['inputs of image 5.png',
               'output of backbone.patch_embed.projection (Conv2d)']),
    ('term', ['the loss term loss_size', 'loss_size inf']),
    ('gradient', ['gradient of head.bias', 'loss is finite']),
]  # yapf: disable


def hooks_of(fault):
    return [Break()] if fault == 'parameter' else []


@pytest.mark.parametrize('fault, words', FAULTS)
def test_stops(tmp_path, fault, words):
    data = make_data(fault)
    runner, error = train(tmp_path, data, 'stop', hooks_of(fault))
    for word in [*words, f'iteration {BAD + 1}', 'lr 0.01', 'loss_cls']:
        assert word in error
    assert len(runner.recorder.states) == BAD
    for name, value in runner.model.state_dict().items():
        if fault == 'parameter' and name.endswith('1.fc2.weight'):
            continue
        kept = runner.recorder.states[-1][f'model.{name}']
        assert torch.equal(value, kept), name


@pytest.mark.parametrize('fault, words', FAULTS)
def test_skips(tmp_path, fault, words, capfd):
    data = make_data(fault)
    runner, error = train(tmp_path, data, 'skip', hooks_of(fault))
    assert error is None
    states = runner.recorder.states
    assert len(states) == STEPS
    for i, (one, two) in enumerate(zip(states, states[1:]), 1):
        for name in one:
            if fault == 'parameter' and name == \
                    'model.backbone.layers.1.fc2.weight' and i == BAD:
                continue  # the test's hook may come behind the recorder
            assert two[name].isfinite().all()
            # Optimizer, averages and statistics included.
            if i == BAD or name == 'model.head.weight':
                assert torch.equal(one[name], two[name]) == (i == BAD), name
    lines = logged(tmp_path)
    assert [line.get('skipped') for line in lines
            ] == [1 if i >= BAD else None for i in range(STEPS)]
    assert all(
        math.isfinite(value) for line in lines for value in line.values())
    log = capfd.readouterr()
    for word in words:
        assert word in log.out + log.err
    model = runner.model
    assert not model._forward_pre_hooks
    assert not any(m._forward_hooks for m in model.modules())
    assert vars(runner.optim_wrapper).keys() & {'step', 'backward'} == {'step'}
    assert runner.optim_wrapper.step._with_counter  # by the scheduler


def test_annotation_is_named(tmp_path):
    data = make_data('annotation')
    data[4]['inputs'][:] = INF
    _, error = train(tmp_path, data, 'stop')
    assert 'the boxes of image 4.png, the boxes of image 5.png' in error
    assert 'inputs of image 4.png' in error


def test_repeats_with_the_same_random_state(tmp_path):
    """And the iterations that follow draw what they would have drawn."""
    runner, _ = train(tmp_path, make_data('term'))
    drawn = runner.model.drawn
    assert len(drawn) == STEPS + 1
    assert drawn[BAD] == drawn[BAD + 1]
    plain, _ = train(tmp_path, make_data(''), None)
    assert drawn[:BAD] + drawn[BAD + 1:] == plain.model.drawn


@pytest.mark.parametrize('optim', [
    dict(clip_grad=dict(max_norm=1., error_if_nonfinite=True)),
    dict(accumulative_counts=2),
    dict(type='ScaledOptimWrapper')
])
def test_finite_training_is_the_same(tmp_path, optim):
    states = [
        train(tmp_path, make_data(''), action,
              optim=dict(optim))[0].recorder.states[-1]
        for action in (None, 'stop', 'skip')
    ]
    for state in states[1:]:
        for name, value in state.items():
            assert torch.equal(value, states[0][name]), name


def test_schedulers_do_not_warn(tmp_path, recwarn):
    train(tmp_path, make_data(''))
    assert not [w for w in recwarn if 'optimizer.step()' in str(w.message)]


def test_clipping_raises_no_error_of_its_own(tmp_path):
    optim = dict(clip_grad=dict(max_norm=1., error_if_nonfinite=True))
    runner, error = train(tmp_path, make_data('gradient'), optim=optim)
    assert error is None and len(runner.recorder.states) == STEPS


def test_accumulation_drops_what_was_accumulated(tmp_path):
    """Of batches 1 and 2 the second is bad; so is one of 3 alone."""
    optim = dict(accumulative_counts=2)
    runner, _ = train(tmp_path, make_data('gradient', bad=(1, 2)), optim=optim)
    weights = [s['model.head.weight'] for s in runner.recorder.states]
    initial = Classifier().head.weight
    changed = [not torch.equal(a, b)
               for a, b in zip([initial, *weights], weights)]  # yapf: disable
    # Batch 4 steps with its own gradient alone, and the last one as ever.
    assert changed == [False, False, False, True, True]
    assert all(weight.isfinite().all() for weight in weights)


@pytest.mark.parametrize('fault', ['gradient', 'term'])
def test_gradients_are_left_to_a_loss_scaler(tmp_path, fault):
    """It skips the step by itself, and lowers its scale; a loss counts."""
    runner, error = train(
        tmp_path,
        make_data(fault),
        'stop',
        optim=dict(type='ScaledOptimWrapper'))
    scale = runner.optim_wrapper.loss_scaler.get_scale()
    if fault == 'gradient':
        assert error is None and scale == 512.
        assert len(runner.recorder.states) == STEPS
    else:
        assert 'loss_size' in error and scale == 1024.


def test_too_many_skips_stop(tmp_path):
    """In a row: a finite iteration starts the count anew."""
    data = make_data('term', bad=(0, 2, 3))
    assert train(tmp_path, data, max_skips=2)[1] is None
    data = make_data('term', bad=(1, 2, 3))
    error = train(tmp_path, data, max_skips=2)[1]
    assert 'max_skips=2 iterations before it have been skipped' in error
    assert 'iteration 4' in error


def test_several_optimizers_are_refused(tmp_path):
    runner, _ = train(tmp_path, make_data(''), None)
    runner.optim_wrapper = OptimWrapperDict(
        generator=runner.optim_wrapper, critic=runner.optim_wrapper)
    hook = HOOKS.build(dict(type='NonFiniteHook'))
    with pytest.raises(TypeError, match='got several: generator, critic'):
        hook.before_train(runner)


def test_names_the_rank(tmp_path, monkeypatch):
    """Of four processes, three of which have no fault of their own."""
    monkeypatch.setattr(
        'mmweightformer.engine.hooks.non_finite_hook.all_gather_object',
        lambda fault: ['', '', fault, ''])
    error = train(tmp_path, make_data('image'), 'stop')[1]
    assert 'iteration 3: rank 2: inputs of image 5.png' in error


def test_two_of_them_are_refused(tmp_path):
    with pytest.raises(ValueError, match='default_hooks.non_finite'):
        train(tmp_path, make_data(''), hooks=[dict(type='NonFiniteHook')])


@pytest.mark.parametrize('arguments, error, words', [
    (dict(action='ignore'), ValueError, r"action must be one of \['stop'"),
    (dict(max_skips=0), ValueError, 'max_skips must be at least 1'),
    (dict(max_skips=True), TypeError, 'max_skips must be an int'),
])
def test_wrong_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        HOOKS.build(dict(type='NonFiniteHook', **arguments))
