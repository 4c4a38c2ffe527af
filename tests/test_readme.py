# Copyright (c) mmweightformer contributors. All rights reserved.
"""What README.md shows works as it stands there."""
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmweightformer.models.layers import NonlinearDynamicLinear

README = Path('README.md').read_text()
SNIPPETS = re.findall(r'```python\n(.*?)```', README, re.DOTALL)


def snippet(word):
    found, = (text for text in SNIPPETS if word in text)
    return found


def test_own_config(tmp_path):
    from mmdet.testing import demo_mm_inputs
    from mmdet.utils import register_all_modules
    register_all_modules(False)
    path = tmp_path / 'own.py'
    path.write_text(snippet("'mmdet::retinanet"))
    cfg = Config.fromfile(path)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        with MODELS.switch_scope_and_registry(None) as registry:
            model = registry.build(cfg.model).eval()
    with torch.no_grad():
        result, = model.test_step(demo_mm_inputs(1, [(3, 64, 96)]))
    assert len(result.pred_instances.bboxes.T) == 4


def test_own_config_with_layer_decay(tmp_path):
    from mmengine.optim import build_optim_wrapper
    path = tmp_path / 'own.py'
    path.write_text(
        snippet("'mmdet::retinanet") +
        snippet('LayerDecayOptimWrapperConstructor'))
    cfg = Config.fromfile(path).optim_wrapper
    model = torch.nn.ModuleDict(
        dict(backbone=MODELS.build(dict(type='WeightFormer'))))
    wrapper = build_optim_wrapper(model, cfg)
    assert min(wrapper.get_lr()['lr']) == pytest.approx(1e-4 * 0.8**18)


def test_layers(capsys):
    lines = snippet('DynamicLinear(').splitlines()
    shapes = [line.split('# ')[1] for line in lines if '# ' in line]
    scope = {}
    exec('\n'.join(lines[:3]), scope)
    for line, shape in zip(lines[3:], shapes, strict=True):
        assert str(tuple(eval(line, scope).shape)) == f'({shape})'


def test_strategies():
    scope = {}
    exec(snippet("dynamic_linear='nonlinear'"), scope)
    model = MODELS.build(scope['backbone'])
    dynamic = [
        i for i, layer in enumerate(model.layers)
        if isinstance(layer.fc1, NonlinearDynamicLinear)
    ]
    assert dynamic == [2, 6, 10, 14]
    assert model.layers[2].dwconv.kernel_size == (5, 5)


def test_own_strategy():
    scope = {}
    exec(snippet('OuterProductLinear'), scope)
    try:
        fc1 = MODELS.build(scope['backbone']).layers[1].fc1
        assert type(fc1) is scope['OuterProductLinear']
        x = torch.randn(2, 3, 4, 192)
        assert fc1.predict_delta(x).shape == (2, 192, 768)
        assert fc1(x).shape == (2, 3, 4, 768)
    finally:
        MODELS.module_dict.pop('OuterProductLinear')


def test_named_files_exist():
    for path in re.findall(r'\]\(([^#)]+)\)|python (\S+\.py)', README):
        assert Path(path[0] or path[1]).exists(), path


def test_named_sections_exist():
    sections = {
        title.lower().replace(' ', '-')
        for title in re.findall(r'^#+ (.*)$', README, re.MULTILINE)
    }
    for anchor in re.findall(r'\]\(#([^)]+)\)', README):
        assert anchor in sections


def test_environment_report():
    report = subprocess.run([sys.executable, '-m', 'mmweightformer'],
                            check=True,
                            capture_output=True,
                            text=True).stdout
    for name in 'Python', 'PyTorch', 'MMEngine', 'MMCV', 'MMWeightFormer':
        assert f'\n{name}: ' in '\n' + report
    assert 'MMCV compiled ops: True' in report
