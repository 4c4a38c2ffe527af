# Copyright (c) mmweightformer contributors. All rights reserved.
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import load
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


@pytest.mark.parametrize('arch, channels', [('t', 192), ('s', 384)])
def test_coco(arch, channels):
    cfg = Config.fromfile(f'configs/mask_rcnn_wf_{arch}_coco.py')
    assert cfg.train_dataloader.dataset.data_root == 'data/coco/'
    assert cfg.train_cfg.max_epochs == 12
    model = build_model(cfg)
    assert model.backbone.embed_dims == channels
    assert len(model.backbone.layers) == 17
    assert len(model.rpn_head.rpn_conv) == 2
    heads = model.roi_head
    for convs, number in [(heads.bbox_head.shared_convs, 4),
                          (heads.mask_head.convs, 4)]:
        assert len(convs) == number
        for conv in convs:
            assert type(conv.norm).__name__ == 'LayerNorm2d'


@pytest.mark.parametrize('device, wrapper', [('cuda', 'AmpOptimWrapper'),
                                             ('cpu', 'OptimWrapper')])
def test_mixed_precision_where_there_is_a_gpu(device, wrapper, monkeypatch):
    monkeypatch.setattr('mmengine.device.get_device', lambda: device)
    cfg = Config.fromfile('configs/mask_rcnn_wf_t_coco.py')
    assert cfg.optim_wrapper.type == wrapper


def test_model_index_names_every_config():
    named = set()
    for path in load('model-index.yml')['Import']:
        for model in load(path)['Models']:
            assert model['Name'] == Path(model['Config']).stem
            named.add(model['Config'])
    assert named == {path for path in CONFIGS if 'digits' not in path}
