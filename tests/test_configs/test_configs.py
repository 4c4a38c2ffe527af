# Copyright (c) mmweightformer contributors. All rights reserved.
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

CONFIGS = sorted(
    str(path) for path in Path('configs').rglob('*.py')
    if '_base_' not in path.parts)


def build_model(cfg):
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        with MODELS.switch_scope_and_registry(None) as registry:
            with torch.device('meta'):
                return registry.build(cfg.model)


@pytest.fixture(autouse=True)
def register():
    from mmdet.utils import register_all_modules
    register_all_modules(False)


@pytest.mark.parametrize('path', CONFIGS)
def test_loads_dumps_and_builds(path, tmp_path):
    cfg = Config.fromfile(path)
    assert 'mmweightformer' in cfg.custom_imports.imports
    cfg.dump(tmp_path / 'dumped.py')
    assert Config.fromfile(tmp_path / 'dumped.py').model == cfg.model
    build_model(cfg)
