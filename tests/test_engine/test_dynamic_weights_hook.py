# Copyright (c) mmweightformer contributors. All rights reserved.
import json

import pytest
import torch
from helpers import build_backbone, randomize
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

from mmweightformer.analysis.dynamic_weights import recorded_inputs
from mmweightformer.models.predicted_weights import (delta_ratio,
                                                     predicted_layers)

LAYERS = [
    f'backbone.layers.{i}.{n}' for i in (1, 4) for n in ('dwconv', 'fc1')
]


class Classifier(BaseModel):

    def __init__(self, **kwargs):
        super().__init__()
        self.backbone = randomize(
            build_backbone(out_type='avg_featmap', **kwargs))
        self.head = nn.Linear(32, 3)

    def init_weights(self):
        """Those of the constructor stay."""

    def forward(self, images, labels, mode='loss'):
        scores = self.head(self.backbone(images)[-1])
        return dict(loss=nn.functional.cross_entropy(scores, labels))


class Recorder(Hook):
    """Keeps the model before each step, and whether it has hooks then."""
    priority = 'VERY_LOW'

    def __init__(self):
        self.steps, self.hooked = [], []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        layers = predicted_layers(runner.model).values()
        self.hooked.append([bool(m._forward_pre_hooks) for m in layers])
        model = Classifier(**runner.model_kwargs)
        model.load_state_dict(runner.model.state_dict())
        self.steps.append((model, data_batch))


def train(tmp_path, hooks, interval=1, model=None, optim=None, images=4):
    """Train on batches of two, and return the scalars that are logged."""
    kwargs = model or {}
    data = [(torch.randn(3, 64, 48), i % 3) for i in range(images)]
    name = f'{tmp_path.name}_{len(list(tmp_path.iterdir()))}'
    torch.manual_seed(1)
    runner = Runner(
        Classifier(**kwargs),
        str(tmp_path / name),
        train_dataloader=DataLoader(data, batch_size=2),
        train_cfg=dict(by_epoch=True, max_epochs=1),
        optim_wrapper=dict(
            optimizer=dict(type='SGD', lr=0.1), **(optim or {})),
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=interval),
            checkpoint=None),
        custom_hooks=hooks,
        visualizer=dict(
            type='Visualizer',
            name=name,
            vis_backends=[dict(type='LocalVisBackend')]),
        experiment_name=name,
        randomness=dict(seed=0),
        log_level='WARNING')
    runner.model_kwargs = kwargs
    runner.train()
    path, = (tmp_path / name).glob('*/vis_data/scalars.json')
    return runner, list(map(json.loads, path.read_text().splitlines()))


def dynamic_hook(**kwargs):
    return dict(type='DynamicWeightsHook', **kwargs)


def by_hand(model, batch, share=1.):
    """What is to be logged of a step, by a backward pass of its own."""
    layers = predicted_layers(model)
    with recorded_inputs(layers) as inputs:
        images, labels = batch
        (share * model(images, labels)['loss']).backward()
    values = {}
    for name, layer in layers.items():
        values[f'{name}/delta_ratio'] = delta_ratio(layer, inputs[name]).mean()
        grads = dict(weight_grad=[], predictor_grad=[])
        for param_name, param in layer.named_parameters():
            kind = 'weight' if param_name == 'weight' else 'predictor'
            if param_name != 'bias' and param.requires_grad:
                grads[f'{kind}_grad'].append(param.grad.flatten())
        for kind, tensors in grads.items():
            if tensors:
                values[f'{name}/{kind}'] = torch.cat(tensors).norm()
    return {name: value.item() for name, value in values.items()}


@pytest.mark.parametrize(
    'model, optim, share',
    [
        ({}, {}, 1.),
        (dict(with_cp=True), {}, 1.),
        ({}, dict(clip_grad=dict(max_norm=1e-3)), 1.),
        ({}, dict(accumulative_counts=2), 0.5),
        # Its scale grows with each step.
        ({}, dict(type='ScaledOptimWrapper', growth_interval=1), 1.),
        (dict(frozen_stages=2), {}, 1.),
        (dict(dynamic_linear='gap', dynamic_conv='static'), {}, 1.),
    ],
    ids=[
        'plain', 'with_cp', 'clipped', 'accumulated', 'scaled', 'frozen',
        'linear_only'
    ])
def test_values_are_those_by_hand(tmp_path, model, optim, share):
    recorder = Recorder()
    _, logged = train(
        tmp_path, [dynamic_hook(interval=1), recorder],
        model=model,
        optim=optim)
    prefix = 'dynamic_weights/'
    rows = [row for row in logged if any(k.startswith(prefix) for k in row)]
    lines = [row for row in logged if 'loss' in row]
    assert [row['step'] for row in rows] == [1, 2]
    for row, line, (copied, batch) in zip(rows, lines, recorder.steps):
        del row['step']
        expected = by_hand(copied, batch, share)
        assert row == {
            f'{prefix}{name}': pytest.approx(value, rel=1e-4)
            for name, value in expected.items()
        }

        def of(kind):
            return torch.tensor(
                [v for name, v in expected.items() if name.endswith(kind)])

        for kind in 'predictor_grad', 'weight_grad':
            assert line[kind] == pytest.approx(
                of(kind).norm().item(), rel=1e-4)
        for name, layer in ('linear', 'fc1'), ('conv', 'dwconv'):
            ratios = of(f'{layer}/delta_ratio')
            assert line.get(f'delta_ratio_{name}') == (
                pytest.approx(ratios.mean().item(), rel=1e-4)
                if len(ratios) else None)
    frozen = 'dynamic_weights/backbone.layers.1.fc1/weight_grad' not in row
    assert frozen == ('frozen_stages' in model)


def test_only_logged_iterations_are_touched(tmp_path):
    recorder = Recorder()
    runner, logged = train(
        tmp_path, [dynamic_hook(interval=2), recorder], images=10)
    assert recorder.hooked == [[i % 2 == 1] * 4 for i in range(5)]
    assert not any(m._forward_pre_hooks for m in runner.model.modules())
    assert not any(p._backward_hooks for p in runner.model.parameters())
    steps = [row['step'] for row in logged if 'loss' not in row]
    assert steps == [2, 4]


def test_short_epochs_are_logged_at_their_end(tmp_path):
    _, logged = train(tmp_path, [dynamic_hook()], interval=50)
    assert [row['step'] for row in logged] == [2, 2]
    assert 'delta_ratio_linear' in logged[1]


def test_training_is_the_same(tmp_path):
    """But for the rounding of another order of sums."""
    states = []
    for hooks in [], [dynamic_hook(interval=1)]:
        torch.manual_seed(0)
        states.append(train(tmp_path, hooks)[0].model.state_dict())
    assert not torch.equal(states[0]['head.bias'], torch.zeros(3))
    torch.testing.assert_close(*states)


def test_models_without_predicted_layers(tmp_path):
    static = dict(dynamic_linear='static', dynamic_conv='static')
    with pytest.raises(
            ValueError,
            match='DynamicWeightsHook: Classifier must '
            'have layers whose weights are predicted'):
        train(tmp_path, [dynamic_hook()], model=static)


@pytest.mark.parametrize('interval, error',
                         [(0, ValueError), (True, TypeError),
                          (1.5, TypeError)])
def test_wrong_interval(interval, error):
    with pytest.raises(error, match='interval must be'):
        HOOKS.build(dynamic_hook(interval=interval))
