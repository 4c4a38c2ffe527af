# Copyright (c) mmweightformer contributors. All rights reserved.
import pickle
from functools import partial

import pytest
import torch
from helpers import (Malicious, build_backbone, conversion_refused,
                     destinations_refused, randomize, relative_error, run_tool)
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmpretrain.models import (DistilledVisionTransformer, ImageClassifier,
                               VisionTransformer, VisionTransformerClsHead,
                               ViTSAM)
from torch.nn import functional as F

CONVERTER = 'tools/model_converters/deit_to_vitsam.py'
refused = partial(conversion_refused, CONVERTER)
ARCH = dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=64)


def evaluating(model):
    model.double().eval()  # which in mmpretrain returns nothing
    return model


def classifier(arch=ARCH, backbone=VisionTransformer, **kwargs):
    """A DeiT with random parameters, in float64."""
    backbone = backbone(arch, **kwargs)
    head = VisionTransformerClsHead(10, backbone.embed_dims)
    return evaluating(randomize(ImageClassifier(backbone, head=head)))


def without_cls_token(deit, arch=ARCH, **kwargs):
    """DeiT's features as if there had never been a class token."""
    model = VisionTransformer(
        arch,
        with_cls_token=False,
        final_norm=False,
        out_type='featmap',
        **kwargs)
    state = deit.backbone.state_dict()
    state['pos_embed'] = state['pos_embed'][:, 1:]
    for name in 'cls_token', 'ln1.weight', 'ln1.bias':
        del state[name]
    model.load_state_dict(state)
    return evaluating(model)


def convert(deit, tmp_path):
    """Convert, and say from where to load."""
    torch.save(dict(state_dict=deit.state_dict()), tmp_path / 'deit.pth')
    dst = tmp_path / 'new' / 'vitsam.pth'
    assert run_tool(CONVERTER, tmp_path / 'deit.pth', dst) is None
    return dict(type='Pretrained', checkpoint=str(dst), prefix='backbone.')


def build_vitsam(init_cfg, arch=ARCH, **kwargs):
    model = ViTSAM(
        dict(global_attn_indexes=[], **arch),
        out_channels=0,
        use_rel_pos=False,
        init_cfg=init_cfg,
        **kwargs)
    evaluating(model).init_weights()
    return model


@pytest.mark.parametrize(
    'size, name, all_global, shape',
    [
        # One window of 14×14 patches holds the whole image.
        ('t', 'deit-tiny', False, (224, 224)),
        ('s', 'deit-small', False, (224, 224)),
        ('t', 'deit-tiny', True, (250, 37)),
    ])
def test_features_of_the_configs(size, name, all_global, shape, tmp_path):
    """Those of DeiT without class token, where attention is global."""
    deit = classifier(name)
    cfg = Config.fromfile(f'configs/mask_rcnn_deit_{size}_coco.py')
    backbone = cfg.model.backbone
    assert backbone.pop('type') == 'mmpretrain.ViTSAM'
    if all_global:
        backbone.arch.global_attn_indexes = list(range(12))
    backbone.img_size = 224
    backbone.init_cfg = convert(deit, tmp_path)
    vitsam = evaluating(ViTSAM(**backbone))
    vitsam.init_weights()
    image = torch.randn(2, 3, *shape, dtype=torch.float64)
    with torch.no_grad():
        expected, = without_cls_token(deit, name)(image)
        actual, = vitsam(image)
    assert relative_error(actual, expected) < 1e-10


def test_every_parameter_is_loaded(tmp_path):
    deit = classifier(img_size=64)
    init_cfg = convert(deit, tmp_path)
    vitsam = build_vitsam(init_cfg, img_size=64)
    saved = torch.load(init_cfg['checkpoint'], weights_only=True)
    expected = {f'backbone.{k}': v for k, v in vitsam.state_dict().items()}
    assert list(saved['state_dict']) == list(expected)
    for key, value in expected.items():
        torch.testing.assert_close(saved['state_dict'][key], value)
        if key != 'backbone.pos_embed':
            assert value.equal(deit.state_dict()[key])


def test_says_what_it_drops(tmp_path, capsys):
    convert(classifier(), tmp_path)
    dropped = capsys.readouterr().out.split('dropped: ')[1].strip()
    assert dropped == ('backbone.cls_token, backbone.ln1.weight, '
                       'backbone.ln1.bias, head.layers.head.weight, '
                       'head.layers.head.bias')


def test_position_embedding_is_resized_when_loaded(tmp_path):
    deit = classifier(img_size=64)
    vitsam = build_vitsam(convert(deit, tmp_path), img_size=(96, 160))
    grid = deit.backbone.pos_embed[0, 1:].T.reshape(1, 32, 4, 4).float()
    expected = F.interpolate(grid, (6, 10), mode='bicubic')
    torch.testing.assert_close(
        vitsam.pos_embed.permute(0, 3, 1, 2).float(), expected)


@pytest.mark.parametrize('options, patches', [
    (dict(with_cls_token=False, out_type='avg_featmap'), {}),
    ({}, dict(patch_size=8, in_channels=1)),
])
def test_other_vision_transformers(options, patches, tmp_path):
    deit = classifier(img_size=32, **options, **patches)
    path = convert(deit, tmp_path)['checkpoint']
    state = torch.load(path, weights_only=True)['state_dict']
    vitsam = ViTSAM(
        dict(ARCH, global_attn_indexes=[]),
        32,
        out_channels=0,
        use_rel_pos=False,
        **patches)
    vitsam.load_state_dict({k[len('backbone.'):]: v for k, v in state.items()})


@pytest.mark.parametrize('zipped', [True, False])
def test_training_checkpoint(zipped, tmp_path, capsys):
    """All that mmengine saves along, and none of its code is run."""
    deit = classifier(img_size=64)
    optimizer = torch.optim.AdamW(deit.parameters())
    sum(param.sum() for param in deit.parameters()).backward()
    optimizer.step()
    hub = MessageHub('test')
    hub.update_scalar('train/loss', 0.5)
    hub.update_info('extra', Malicious())
    torch.save(
        dict(
            state_dict=deit.state_dict(),
            message_hub=hub.state_dict(),
            optimizer=optimizer.state_dict(),
            meta=dict(epoch=1, dataset_meta=dict(classes=('a', 'b')))),
        tmp_path / 'epoch_1.pth',
        _use_new_zipfile_serialization=zipped)
    capsys.readouterr()  # the message hub has made a copy
    assert run_tool(CONVERTER, tmp_path / 'epoch_1.pth',
                    tmp_path / 'vitsam.pth') is None
    assert 'unpickled' not in capsys.readouterr().out
    saved = torch.load(tmp_path / 'vitsam.pth', weights_only=True)
    weight = 'backbone.layers.0.attn.qkv.weight'
    assert saved['state_dict'][weight].equal(deit.state_dict()[weight])


@pytest.mark.parametrize('build, messages', [
    (lambda: classifier(backbone=DistilledVisionTransformer),
     ['distilled DeiT', 'dist_token']),
    (lambda: classifier(layer_scale_init_value=0.1),
     ['Unexpected key', 'layers.0.attn.gamma1.weight']),
    (lambda: classifier(dict(ARCH, num_layers=20), qkv_bias=False),
     ['Missing key', 'layers.0.attn.qkv.bias', '…']),
    (lambda: classifier(img_size=(32, 64)), ['square', 'got 8']),
    (lambda: build_backbone(),
     ['no checkpoint of mmpretrain', 'backbone.patch_embed.projection']),
    (lambda: ImageClassifier(build_backbone()), ['has no backbone.pos_embed']),
])
def test_refuses_what_vitsam_is_not(build, messages, tmp_path):
    torch.save(dict(state_dict=build().state_dict()), tmp_path / 'a.pth')
    refused(tmp_path / 'a.pth', messages)


@pytest.mark.parametrize(
    'change, messages',
    [
        (lambda s: {
            **s, 'backbone.layers.1.ln1.weight': torch.zeros(7)
        }, ['size mismatch for layers.1.ln1.weight']),
        (lambda s: {
            **s, 'backbone.pos_embed': torch.zeros(0)
        }, ['backbone.pos_embed must have 3 axes', 'got (0,)']),
        # No name makes it build a model of that depth.
        (lambda s: {
            **s, 'backbone.layers.999999999.x': torch.zeros(1)
        }, ['layers.999999999.x']),
        (lambda s: {
            0: torch.zeros(1)
        }, ['no state dict']),
        (lambda s: [1, 2], ['no state dict']),
        (lambda s: dict(state_dict=3), ['no state dict']),
        (lambda s: Malicious(),
         ['cannot be read as a checkpoint: it asks for']),
        (lambda s: {
            'backbone.x': Malicious()
        }, ['cannot be read as a checkpoint: it asks for']),
    ])
def test_refuses_contents(change, messages, tmp_path, capsys):
    torch.save(change(classifier().state_dict()), tmp_path / 'a.pth')
    refused(tmp_path / 'a.pth', messages)
    assert 'unpickled' not in capsys.readouterr().out


@pytest.mark.parametrize('content', [
    b'', b'not a checkpoint',
    pickle.dumps(Malicious()), 'truncated', 'missing'
])
def test_refuses_files(content, tmp_path, capsys):
    path = tmp_path / 'a.pth'
    message = 'cannot be read as a checkpoint'
    if content == 'missing':
        message = 'No such file'
    elif content == 'truncated':
        torch.save(classifier().state_dict(), path)
        path.write_bytes(path.read_bytes()[:-1000])
    else:
        path.write_bytes(content)
    refused(path, [message])
    assert 'unpickled' not in capsys.readouterr().out


def test_refuses_destinations(tmp_path):
    src = tmp_path / 'src.pth'
    torch.save(classifier().state_dict(), src)
    destinations_refused(CONVERTER, src)
