# Copyright (c) mmweightformer contributors. All rights reserved.
import sys

import pytest
from helpers import SMALL, build_backbone
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope
from torch import nn

CFG = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1., weight_decay=0.5),
    constructor='LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(
        layer_decay_rate=0.5, norm_decay_mult=0., flat_decay_mult=0.))


class Detector(nn.Module):
    """As mmdet's and mmseg's models, without get_layer_depth."""

    def __init__(self, **kwargs):
        super().__init__()
        self.backbone = build_backbone(SMALL, **kwargs)
        self.head = nn.Linear(32, 2)


def groups_of(model):
    groups = build_optim_wrapper(model, dict(CFG)).optimizer.param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(group['params'][0])]: group for group in groups}


def test_scales_of_a_detector():
    groups = groups_of(Detector())
    for name, power in {
            'backbone.patch_embed.projection.weight': 6,
            'backbone.layers.0.fc1.weight': 5,
            'backbone.layers.4.fc1.w1': 1,
            'backbone.norm.weight': 0,
            'head.weight': 0
    }.items():
        assert groups[name]['lr'] == 0.5**power, name


def test_weight_decay():
    groups = groups_of(Detector())
    for name, decay in {
            'backbone.layers.0.norm2.weight': 0,
            'backbone.layers.1.fc1.bias': 0,
            'backbone.layers.1.fc1.weight': 0.5,
            'head.bias': 0,
            'head.weight': 0.5
    }.items():
        assert groups[name]['weight_decay'] == decay, name


def test_two_backbones():
    model = nn.ModuleDict(dict(student=Detector(), teacher=Detector()))
    groups = groups_of(model)
    for name in 'student', 'teacher':
        assert groups[f'{name}.backbone.layers.0.fc1.weight']['lr'] == 0.5**5
        assert groups[f'{name}.head.weight']['lr'] == 1


def test_shared_modules_are_taken_once():
    model = Detector()
    model.again = model.head
    groups = groups_of(model)
    assert groups['head.weight']['lr'] == 1
    assert len(groups) == len(list(model.parameters()))


def test_classifier_within_a_model():
    from mmpretrain.models import ImageClassifier, LinearClsHead

    # Other tests may have left a scope behind.
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        student = ImageClassifier(
            build_backbone(SMALL, out_type='avg_featmap'))
        student.head = LinearClsHead(10, 32)
    groups = groups_of(nn.ModuleDict(dict(student=student)))
    assert groups['student.backbone.layers.0.fc1.weight']['lr'] == 0.5**5
    assert groups['student.head.fc.weight']['lr'] == 1


@pytest.mark.parametrize('change, message', [
    (dict(optimizer=dict(type='AdamW', lr=1.)), 'weight_decay.* got None'),
    (dict(optimizer=dict(type='AdamW', weight_decay=0.)), 'lr.* got None'),
    (dict(paramwise_cfg=dict(decay_rate=0.5)), "layer_decay_rate.*'decay_ra"),
    (dict(paramwise_cfg=dict(layer_decay_rate='0.5')), "got '0.5'"),
    (dict(paramwise_cfg=dict(layer_decay_rate=float('nan'))), 'got nan'),
    (dict(paramwise_cfg=dict(layer_decay_rate=2)), 'got 2'),
])
def test_refuses_options(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        build_optim_wrapper(Detector(), {**CFG, **change})


def test_frozen_parameters_are_left_out():
    names = groups_of(Detector(frozen_stages=1))
    assert not any('patch_embed' in n or 'layers.0.' in n for n in names)
    assert 'backbone.layers.1.fc1.weight' in names


def test_needs_a_layer_depth():
    with pytest.raises(TypeError, match='get_layer_depth, and Linear has'):
        groups_of(nn.Linear(2, 2))


def test_needs_mmpretrain(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmpretrain.engine', None)
    with pytest.raises(ImportError, match='Install mmpretrain'):
        groups_of(Detector())
