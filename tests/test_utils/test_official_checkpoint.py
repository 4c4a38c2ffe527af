# Copyright (c) mmweightformer contributors. All rights reserved.
import argparse
import pickle
from functools import partial

import pytest
import reference
import torch
from helpers import (SMALL, Malicious, build_backbone, conversion_refused,
                     destinations_refused, relative_error, run_tool)
from mmengine.registry import MODELS, DefaultScope
from safetensors.torch import save_file

from mmweightformer.utils import official_to_mm

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
    from mmpretrain.registry import MODELS as classifiers
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
        model = classifiers.build(
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


def diffusion(kind, num_classes, **arch):
    arch = dict(SMALL, patch_size=2, **arch)
    return MODELS.build(
        dict(
            type='ClassConditionalDiffusion',
            denoiser=dict(type=kind, arch=arch, num_classes=num_classes)))


@pytest.mark.parametrize('name', ['raw.pt', 'training.pt', 'a.safetensors'])
def test_golden_denoiser(name, tmp_path):
    """The published noise from a converted checkpoint, by its averages."""
    golden = reference.load_golden('weightformer_dit')
    state = golden['state']
    if name == 'training.pt':
        other = {key: 2 * value for key, value in state.items()}
        state = dict(
            model=other,
            ema=state,
            opt=dict(state={0: dict(step=torch.tensor(1.))}),
            args=argparse.Namespace(model='DiT-S/2'))
    save(state, tmp_path / name)
    assert run_tool(CONVERTER, tmp_path / name, tmp_path / 'mm.pth') is None
    model = diffusion('WeightFormerDiT', 10).eval()
    checkpoint = torch.load(tmp_path / 'mm.pth', weights_only=True)
    model.load_state_dict(checkpoint['state_dict'])
    out = model.denoiser(golden['input'], golden['timesteps'],
                         golden['labels'])
    assert relative_error(out, golden['output']) < 1e-5


def dit_state():
    """A state dict of DiT by its published names and shapes."""
    shapes = {
        'x_embedder.proj': (32, 4, 2, 2),
        't_embedder.mlp.0': (32, 256),
        't_embedder.mlp.2': (32, 32),
        'final_layer.linear': (32, 32),
        'final_layer.adaLN_modulation.1': (64, 32)
    }
    for i in range(5):
        shapes.update({
            f'blocks.{i}.attn.qkv': (96, 32),
            f'blocks.{i}.attn.proj': (32, 32),
            f'blocks.{i}.mlp.fc1': (128, 32),
            f'blocks.{i}.mlp.fc2': (32, 128),
            f'blocks.{i}.adaLN_modulation.1': (192, 32)
        })
    state = {f'{name}.weight': torch.randn(s) for name, s in shapes.items()}
    state.update({
        f'{name}.bias': torch.randn(s[0])
        for name, s in shapes.items()
    })
    state['y_embedder.embedding_table.weight'] = torch.randn(11, 32)
    state['pos_embed'] = reference.load_golden(
        'weightformer_dit')['state']['pos_embed']
    return state


def test_dit(tmp_path):
    state = dit_state()
    torch.save(dict(model=state), tmp_path / 'dit.pt')
    assert run_tool(CONVERTER, tmp_path / 'dit.pt',
                    tmp_path / 'mm.pth') is None
    converted = torch.load(
        tmp_path / 'mm.pth', weights_only=True)['state_dict']
    diffusion('DiT', 10, num_heads=4).load_state_dict(converted)
    assert len(converted) == len(state) - 1
    for ours, published in [
        ('patch_embed.weight', 'x_embedder.proj.weight'),
        ('time_embed.fc2.bias', 't_embedder.mlp.2.bias'),
        ('label_embed.weight', 'y_embedder.embedding_table.weight'),
        ('layers.3.qkv.weight', 'blocks.3.attn.qkv.weight'),
        ('layers.3.proj.bias', 'blocks.3.attn.proj.bias'),
        ('layers.4.fc1.bias', 'blocks.4.mlp.fc1.bias'),
        ('layers.4.fc2.weight', 'blocks.4.mlp.fc2.weight'),
        ('layers.0.modulation.1.bias', 'blocks.0.adaLN_modulation.1.bias'),
        ('final_layer.modulation.1.weight',
         'final_layer.adaLN_modulation.1.weight'),
        ('final_layer.linear.bias', 'final_layer.linear.bias'),
    ]:
        assert torch.equal(converted[f'denoiser.{ours}'], state[published])


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_denoiser_in_half_precision(dtype):
    state = reference.load_golden('weightformer_dit')['state']
    state = {name: value.to(dtype) for name, value in state.items()}
    weight = official_to_mm(state)['denoiser.patch_embed.weight']
    assert torch.equal(weight, state['x_embedder.proj.weight'])


@pytest.mark.parametrize('change, messages', [
    (lambda s: without(s, 'pos_embed', 'blocks.1.dwc.w'), [
        'this is no published WeightFormerDiT; the nearest has embed_dims=32, '
        'depth=5 (no published arch)', '2 missing: blocks.1.dwc.w, pos_embed'
    ]),
    (lambda s: {
        **s, 'y_embedder.x': torch.zeros(1)
    }, ['1 unexpected: y_embedder.x']),
    (lambda s: {
        **s, 'final_layer.linear.bias': torch.zeros(16)
    }, ['1 misshapen: final_layer.linear.bias: (16,) in place of (32,)']),
    (lambda s: {
        **s, 'pos_embed': torch.zeros(1, 60, 32)
    }, ['1 misshapen: pos_embed: (1, 60, 32) in place of (1, 49, 32)']),
    (lambda s: {
        **s, 'pos_embed': s['pos_embed'].roll(16, 2)
    }, [
        'pos_embed is not the 2-D sine-cosine position embedding of 8×8 '
        'patches, which is all that WeightFormerDiT has'
    ]),
    (lambda s: {
        **s, 'pos_embed': s['pos_embed'] * float('nan')
    }, ['pos_embed is not the 2-D']),
    (lambda s: {
        **s, 'x_embedder.proj.weight': torch.zeros(30, 4, 2, 2)
    }, ["arch['embed_dims'] must be a multiple of 4, got 30"]),
    (lambda s: without(dit_state(), 'blocks.1.mlp.fc1.bias'), [
        'this is no published DiT; the nearest has',
        '1 missing: blocks.1.mlp.fc1.bias'
    ]),
    (lambda s: {
        'x_embedder.proj.weight': torch.zeros(384, 4, 2, 2),
        **{
            f'blocks.{i}.attn.qkv.weight': torch.zeros(1)
            for i in range(12)
        }
    }, ["embed_dims=384, depth=12 (arch 's/2')", '12 misshapen']),
])
def test_refuses_what_is_no_denoiser(change, messages, tmp_path):
    state = reference.load_golden('weightformer_dit')['state']
    torch.save(change(state), tmp_path / 'a.pt')
    refused(tmp_path / 'a.pt', messages)


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
    message = 'cannot be read as a checkpoint'
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
