# Copyright (c) mmweightformer contributors. All rights reserved.
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from mmweightformer.analysis.ablation import CONFIG, VARIANTS
from mmweightformer.models import PredictedDepthwiseConv2d, PredictedLinear

FULL = 'configs/ablations/wf_t_{}_in1k.py', \
    'configs/ablations/mask_rcnn_wf_t_{}_coco.py'
BASES = 'configs/wf_t_in1k.py', 'configs/mask_rcnn_wf_t_coco.py'
# One full-size config each for every variant of the miniature.
NAMES = {
    'no_dynamic' if v.name == 'none' else v.name: v
    for v in VARIANTS if v.config == CONFIG and v.name != 'published'
}

load = lru_cache(maxsize=None)(Config.fromfile)


def test_there_is_no_other():
    expected = {path.format(name) for path in FULL for name in NAMES}
    assert {str(path)
            for path in Path('configs/ablations').glob('*.py')} == expected


def layers_of(cfg):
    """What predicts, block by block."""
    with torch.device('meta'):
        backbone = MODELS.build(cfg.model.backbone)
    return [(type(layer.norm1), type(layer.fc1), type(layer.dwconv))
            for layer in backbone.layers]


@pytest.mark.parametrize('path, base', zip(FULL, BASES))
@pytest.mark.parametrize('name', NAMES)
def test_varies_what_its_name_says(path, base, name):
    cfg, base = (deepcopy(load(path)) for path in (path.format(name), base))
    layers = layers_of(cfg)
    dynamic = [
        i for i, (norm, *_) in enumerate(layers) if norm is not nn.Identity
    ]
    if name.startswith('every_'):
        every = int(name[-1])
        assert dynamic == [i for i in range(17) if (i + 2) % every == 0]
    elif name == 'no_dynamic':
        assert dynamic == []
    else:
        assert dynamic == [1, 4, 7, 10, 13, 16]
    # The miniature names the same layers.
    small = NAMES[name].load_config()
    of_small = {t for t in layers_of(small) if t[0] is not nn.Identity}
    assert {layers[i] for i in dynamic} == of_small
    for i, (_, fc1, dwconv) in enumerate(layers):
        static = i not in dynamic
        if static or name in ('static', 'linear_static'):
            assert fc1 is nn.Linear
        else:
            assert issubclass(fc1, PredictedLinear)
        if static or name in ('static', 'conv_static'):
            assert dwconv is nn.Conv2d
        else:
            assert issubclass(dwconv, PredictedDepthwiseConv2d)
    # All else is the base's.
    for key in 'arch', 'dynamic_linear', 'dynamic_conv', 'init_cfg':
        cfg.model.backbone.pop(key, None)
        base.model.backbone.pop(key, None)
    for key in 'pretrained', 'filename':
        cfg.pop(key, None)
        base.pop(key, None)
    assert cfg.to_dict() == base.to_dict()


@pytest.mark.parametrize('name', NAMES)
def test_the_detector_starts_from_the_classifier(name):
    cfg = load(FULL[1].format(name))
    classifier = Path(FULL[0].format(name)).stem
    assert cfg.pretrained == f'work_dirs/{classifier}/epoch_300.pth'
    assert cfg.model.backbone.init_cfg.checkpoint == cfg.pretrained
    assert cfg.model.backbone.init_cfg.prefix == 'backbone.'
