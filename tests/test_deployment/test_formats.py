# Copyright (c) mmweightformer contributors. All rights reserved.
"""Exported files do what the models do, at sizes they were not made with."""
import json
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from helpers import captured, randomize, relative_error
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import nn
from torch.torch_version import TorchVersion

from mmweightformer.deployment import Exportable, export

WIDTH = 32
# B, H, W, before what torch.export asks of a side.
SHAPES = [(1, 64, 64), (2, 96, 160), (1, 75, 201), (1, 33, 130), (3, 113, 97)]

FORMATS = [
    pytest.param('onnx', marks=captured),
    pytest.param('pt2', marks=captured),
    pytest.param('pt'),
]


def build(config):
    """A config's model, narrow, of two dynamic blocks, at random."""
    cfg = Config.fromfile(config)
    cfg.model.backbone.arch = dict(embed_dims=WIDTH, depth=5)
    if 'out_indices' in cfg.model.backbone:
        cfg.model.backbone.out_indices = (1, 2, 3, 4)
    for name in 'neck', 'head', 'decode_head', 'auxiliary_head':
        child = cfg.model.get(name) or {}
        for key in {'in_channels', 'out_channels', 'channels'} & child.keys():
            several = isinstance(child[key], list)
            child[key] = [WIDTH] * 4 if several else WIDTH
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return randomize(MODELS.build(cfg.model))


def load(path):
    """A function for the file, as its users have it, and its metadata."""
    if path.suffix == '.onnx':
        import onnxruntime
        session = onnxruntime.InferenceSession(path)
        image, = session.get_inputs()
        assert image.shape == ['batch', 3, 'height', 'width']
        names = [out.name for out in session.get_outputs()]
        metadata = session.get_modelmeta().custom_metadata_map

        def run(x):
            outs = session.run(names, {'image': x.numpy()})
            return [torch.from_numpy(out) for out in outs]

        return run, {k: json.loads(v) for k, v in metadata.items()}, names
    files = {'metadata.json': ''}
    if path.suffix == '.pt2':
        run = torch.export.load(path, extra_files=files).module()
    else:
        run = torch.jit.load(path, _extra_files=files)
    return run, json.loads(files['metadata.json']), None


@pytest.mark.parametrize('suffix', FORMATS)
@pytest.mark.parametrize('config, names', [
    ('wf_t_in1k', ['logits']),
    ('upernet_wf_t_ade20k', ['logits']),
    ('mask_rcnn_wf_t_coco', [f'p{i}' for i in range(2, 7)]),
])
@torch.no_grad()
def test_file_equals_model(config, names, suffix, tmp_path):
    if suffix == 'onnx':
        for package in 'onnx', 'onnxruntime', 'onnxscript':
            pytest.importorskip(package)
    model = build(f'configs/{config}.py')
    module = Exportable(model)
    path = tmp_path / 'new' / f'a.{suffix}'
    checks = export(module, str(path), dict(a=[1., 2.], b='c'))
    assert len(checks) == 5 and all(check.error < 1e-4 for check in checks)
    assert list(path.parent.iterdir()) == [path]

    run, metadata, names_found = load(path)
    least = metadata.pop('least_side')
    assert metadata == dict(a=[1., 2.], b='c')
    assert module.output_names == names
    assert names_found in (None, names)
    model.eval()
    for batch, h, w in SHAPES:
        image = torch.randn(batch, 3, max(h, least), max(w, least))
        if hasattr(model, 'encode_decode'):
            expected = model.encode_decode(image,
                                           [dict(img_shape=image.shape[2:])]),
            assert expected[0].shape[2:] == image.shape[2:]
        elif model.with_neck:
            expected = model.extract_feat(image)
        else:
            expected = model(image, mode='tensor'),
        for actual, value in zip(run(image), expected, strict=True):
            assert actual.shape == value.shape
            assert relative_error(actual, value) < 1e-4


@torch.no_grad()
def test_backbone_alone(tmp_path):
    model = build('configs/upernet_wf_t_ade20k.py').eval()
    module = Exportable(model, 'backbone')
    assert module.output_names == ['feat0', 'feat1', 'feat2', 'feat3']
    assert all(
        name.startswith('model.backbone.') for name in module.state_dict())
    path = tmp_path / 'a.pt'
    export(module, str(path), {})
    image = torch.randn(2, 3, 50, 70)
    expected = model.backbone(image)
    for actual, value in zip(load(path)[0](image), expected, strict=True):
        assert relative_error(actual, value) < 1e-4
    # The model itself stays as it was.
    assert model.decode_head is not None
    assert all(param.requires_grad for param in model.parameters())


class Backbone(nn.Module):

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return (self.function(x), )


def export_backbone(function, path):
    model = nn.ModuleDict(dict(backbone=Backbone(function)))
    export(Exportable(model, 'backbone'), str(path), {})


def branch(x):
    return x * 2 if x.shape[2] > 150 else x


@pytest.mark.parametrize('suffix, function, message', [
    pytest.param('pt2', branch, '.pt2: .*Constraints', marks=captured),
    ('pt', branch, 'at 1×3×17×17 the file differs from PyTorch by 1.0e.00'),
    ('pt', lambda x: x / 0 - x / 0, 'the file differs from PyTorch by nan'),
    ('pt', lambda x: x[:, :, :len(range(x.shape[2])) // 2],
     r'feat0 is \(1, 3, 17, 17\) in the file and \(1, 3, 8, 17\) in'),
    ('pt', lambda x: x.reshape(-1, 3, len(range(x.shape[2])), x.shape[3]),
     'at 1×3×17×17 the file fails: RuntimeError: '),
    ('pt', lambda x: F.max_pool2d(x, 20),
     'at 1×3×17×17 the model fails: RuntimeError: '),
])
def test_refused_is_what_differs(suffix, function, message, tmp_path):
    path = tmp_path / f'a.{suffix}'
    path.write_text('before')
    with pytest.raises(ValueError, match=message) as error:
        export_backbone(function, path)
    assert len(str(error.value).splitlines()) == 1
    # Neither is the file there replaced, nor is anything else left.
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == 'before'


@captured
def test_missing_packages_are_named(tmp_path):
    with mock.patch('importlib.util.find_spec', return_value=None), \
            pytest.raises(ImportError, match='pip install onnx onnxruntime'):
        export_backbone(torch.relu, tmp_path / 'a.onnx')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('suffix', ['.onnx', '.pt2'])
def test_old_pytorch_is_named(suffix, tmp_path):
    version = TorchVersion('2.5.1')
    with mock.patch('torch.__version__', version), \
            pytest.raises(ImportError, match='this is 2.5.1'):
        export_backbone(torch.relu, tmp_path / f'a{suffix}')
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="'.onnx', '.pt2', '.pt'.*got.*a.pth"):
        export_backbone(torch.relu, tmp_path / 'a.pth')
    (tmp_path / 'a.pt').mkdir()
    with pytest.raises(ValueError, match='a.pt is a folder'):
        export_backbone(torch.relu, tmp_path / 'a.pt')
    model = nn.ModuleDict(dict(backbone=Backbone(torch.relu)))
    with pytest.raises(ValueError, match="part must be one of .*'neck'"):
        Exportable(model, 'neck')
    with pytest.raises(ValueError, match='Linear has no backbone'):
        Exportable(nn.Linear(2, 2))
