# Copyright (c) mmweightformer contributors. All rights reserved.
import argparse
import pickle
from functools import partial

import pytest
import reference
import torch
from helpers import (SMALL, Malicious, build_backbone, conversion_refused,
                     destinations_refused, relative_error, run_tool)
from mmengine.registry import DefaultScope
from safetensors.torch import save_file

CONVERTER = 'tools/model_converters/weightformer_to_mm.py'
refused = partial(conversion_refused, CONVERTER)


def save(state, path):
    if path.suffix == '.safetensors':
        save_file(state, path)
    else:
        torch.save(state, path)


@pytest.mark.parametrize('name', ['raw.pth', 'model.pth', 'a.safetensors'])
def test_golden_classifier(name, tmp_path):
    """The published logits from a converted checkpoint, by mmpretrain."""
    from mmpretrain.registry import MODELS
    from mmpretrain.utils import register_all_modules
    golden = reference.load_golden('weightformer_odd')
    state = golden['state']
    if name == 'model.pth':
        # Training scripts save more than the model.
        state = dict(
            model=state, epoch=3, args=argparse.Namespace(lr=0.1, name='t'))
    save(state, tmp_path / name)
    assert run_tool(CONVERTER, tmp_path / name,
                    tmp_path / 'new' / 'mm.pth') is None
    register_all_modules(False)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(
            dict(
                type='ImageClassifier',
                backbone=dict(
                    type='WeightFormer', arch=SMALL, out_type='avg_featmap'),
                head=dict(
                    type='LinearClsHead', in_channels=32, num_classes=10)))
    checkpoint = torch.load(tmp_path / 'new' / 'mm.pth', weights_only=True)
    model.double().eval().load_state_dict(checkpoint['state_dict'])
    logits = model.head(model.extract_feat(golden['input']))
    assert relative_error(logits, golden['logits']) < 1e-10


@pytest.mark.parametrize('arch', ['t', 's', 'b'])
def test_every_arch_loads_without_a_missing_key(arch, tmp_path):
    embed_dims = build_backbone(arch).embed_dims
    official = reference.random_state(embed_dims, 17, 1000)
    torch.save(official, tmp_path / 'official.pth')
    assert run_tool(CONVERTER, tmp_path / 'official.pth',
                    tmp_path / 'mm.pth') is None
    model = build_backbone(
        arch,
        out_type='raw',
        init_cfg=dict(
            type='Pretrained',
            checkpoint=str(tmp_path / 'mm.pth'),
            prefix='backbone.')).double()
    model.init_weights()
    image = torch.randn(1, 3, 48, 32, dtype=torch.float64)
    expected = reference.forward(image, official)['norm']
    assert relative_error(model(image)[0], expected) < 1e-10


def without(state, *names):
    return {key: value for key, value in state.items() if key not in names}


@pytest.mark.parametrize(
    'change, messages',
    [
        (lambda s: without(s, 'norm.weight', 'blocks.1.dwc.w'),
         ['2 missing: blocks.1.dwc.w, norm.weight']),
        (lambda s: {
            **s, 'cls_token': torch.zeros(1)
        }, ['1 unexpected: cls_token']),
        (lambda s: {
            **s, 'blocks.1.linear1.w2': torch.zeros(2, 2)
        }, ['1 misshapen: blocks.1.linear1.w2: (2, 2) in place of (32, 128)']),
        (lambda s: without(s, 'head.bias'), ['1 missing: head.bias']),
        (lambda s: {
            'patch_embed.proj.weight': torch.zeros(192, 3, 16, 16),
            'blocks.11.attn.qkv.weight': torch.zeros(576, 192)
        }, [
            'embed_dims=192, depth=1',
            '1 unexpected: blocks.11.attn.qkv.weight'
        ]),
        (lambda s: reference.random_state(192, 17)
         | {
             'norm.bias': torch.zeros(7)
         }, ["arch 't' or 'tiny'"]),
        (lambda s: {}, ['missing: patch_embed.proj.weight']),
        # No name makes it build a model of that depth.
        (lambda s: {
            **s, 'blocks.999999999.x': torch.zeros(1)
        }, ['unexpected: blocks.999999999.x']),
        (lambda s: {
            **s, 'decoder_blocks.40.x': torch.zeros(1)
        }, ['1 unexpected: decoder_blocks.40.x']),
        (lambda s: {
            0: torch.zeros(1)
        }, ['no state dict']),
        (lambda s: [1, 2],
         ["no state dict, neither at its top nor under 'mod"]),
        (lambda s: dict(epoch=3), ['no state dict']),
    ])
def test_refuses_what_is_no_weightformer(change, messages, tmp_path):
    torch.save(change(reference.random_state(**SMALL)), tmp_path / 'a.pth')
    refused(tmp_path / 'a.pth', messages)


@pytest.mark.parametrize('content', [
    b'', b'not a checkpoint',
    pickle.dumps(Malicious()), 'truncated', 'missing'
])
@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_refuses_files(content, suffix, tmp_path, capsys):
    path = tmp_path / f'a{suffix}'
    message = 'cannot be read as a checkpoint of tensors'
    if content == 'missing':
        message = 'No such file'
    elif content == 'truncated':
        save(reference.random_state(**SMALL), path)
        path.write_bytes(path.read_bytes()[:-1000])
    else:
        path.write_bytes(content)
    refused(path, [message])
    assert 'unpickled' not in capsys.readouterr().out


def test_refuses_destinations(tmp_path):
    src = tmp_path / 'src.pth'
    torch.save(reference.random_state(**SMALL), src)
    destinations_refused(CONVERTER, src)
