# Copyright (c) mmweightformer contributors. All rights reserved.
from pathlib import Path

import pytest
from helpers import build_on_meta
from mmengine.config import Config

CONFIGS = sorted(
    str(path) for path in Path('configs').rglob('*.py')
    # Of the ablations, test_ablations.py builds what differs.
    if not {'_base_', 'ablations'} & set(path.parts))


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
    build_on_meta(cfg)
