# Copyright (c) mmweightformer contributors. All rights reserved.
import sys
from functools import partial
from unittest import mock

import pytest
import torch
from mmengine.config import Config

from mmweightformer.analysis import growth_exponent, speed_ratio, time_in_turns
from mmweightformer.analysis.benchmark import (Result, Run, Setting, benchmark,
                                               count_macs, matmul_peak)
from mmweightformer.analysis.benchmark_report import as_markdown, result_rows
from mmweightformer.analysis.profiling import operator_shares, part_shares
from mmweightformer.analysis.zoo import ZOO, build_backbone

SMALL = '''
custom_imports = dict(imports=['mmweightformer'])
model = dict(
    backbone=dict(type='WeightFormer', arch=dict(embed_dims=32, depth=3)))
'''
# Its second half runs out of memory, and its images may be too small.
ALLOCATOR = '''
import torch
from mmengine.registry import MODELS
from torch import nn

@MODELS.register_module()
class Allocator(nn.Module):

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        size = x.shape[-1]
        if size < 32:
            raise ValueError('too small\\nfor anything')
        blocks = [torch.ones(2**18) for _ in range(size)]  # each of 1 MiB
        del blocks[1:]
        if size > 64:
            torch.empty(2**55)
        x.sum().item()
        return self.weight * blocks[0][0],
'''


@pytest.fixture
def small(tmp_path):
    path = tmp_path / 'small.py'
    path.write_text(SMALL)
    return str(path)


def test_turns():
    calls = []
    times = time_in_turns({name: partial(calls.append, name) for name in 'ab'})
    assert calls == list('abba' * 13)  # one round to warm up
    assert {
        name: len(seconds)
        for name, seconds in times.items()
    } == dict(
        a=25, b=25)
    times = time_in_turns({name: lambda: None for name in 'ab'}, budget=0)
    assert len(times['a']) == len(times['b']) == 1
    slow = iter(range(100))
    with mock.patch('time.perf_counter', lambda: next(slow)):
        times = time_in_turns(dict(a=lambda: None), budget=1)
    assert times == dict(a=[1] * 5)


def test_ratio_and_growth():
    assert speed_ratio([1, 2, 9], [2, 6, 9]) == 2
    assert speed_ratio([4], [2, 6, 9]) == 1.5
    sizes = [512, 1024, 4096]
    assert growth_exponent(sizes, [3. * n**2 for n in sizes]) == \
        pytest.approx(1)
    assert growth_exponent(sizes, [n**4 for n in sizes]) == pytest.approx(2)


@pytest.mark.skipif(
    not sys.platform.startswith('linux'), reason='memory needs Linux')
def test_memory_and_what_is_left_out(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'allocator.py').write_text(ALLOCATOR)
    config = tmp_path / 'config.py'
    config.write_text('custom_imports = dict(imports=["allocator"])\n'
                      'model = dict(backbone=dict(type="Allocator"))')
    shares = []
    results = list(
        benchmark([str(config)], [96, 64, 16, 80, 32],
                  Setting(),
                  budget=0,
                  advance=lambda what, share: shares.append(share)))
    assert sum(shares) == pytest.approx(1)
    by_size = {result.size: result for result in results}
    assert list(by_size) == [16, 32, 64, 80, 96]
    for size in 32, 64:
        assert by_size[size].memory == pytest.approx(size, abs=2)
        assert len(by_size[size].seconds) == 1
        assert by_size[size].macs is None  # .item() needs data
    assert [by_size[size].left_out for size in by_size] == [
        'ValueError: too small', '', '', 'needs more memory than there is',
        'did not fit at 80² already'
    ]
    assert not any(by_size[size].seconds for size in (16, 80, 96))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_inference_and_training_step(small, dtype):
    run = Run(small, 64, Setting('inference', 2, dtype), 1)
    before = [param.clone() for param in run.model.parameters()]
    with mock.patch.object(
            run.model, 'forward', wraps=run.model.forward) as forward:
        run()
        images, = forward.call_args.args
    assert images.shape == (2, 3, 64, 64)
    assert images.dtype == before[0].dtype == getattr(torch, dtype)
    assert not run.model.training
    assert all(map(torch.equal, before, run.model.parameters()))

    run = Run(small, 64, Setting('train', 2, dtype), 1)
    before = [param.clone() for param in run.model.parameters()]
    run()
    assert run.model.training
    # A step is less than bfloat16 tells from a weight of 1.
    same = list(map(torch.equal, before, run.model.parameters()))
    assert sum(same) == 0 if dtype == 'float32' else sum(same) < len(same)
    assert all(param.grad is None for param in run.model.parameters())


def test_compiled(small):
    with mock.patch(
            'torch.compile',
            side_effect=lambda model, mode: model) as compile_:
        run = Run(small, 64, Setting(compile='max-autotune'), 1)
    compile_.assert_called_once_with(run.model, mode='max-autotune')


def test_macs(small):
    macs = count_macs(small, 64, Setting())
    assert macs > 16 * 32 * (3 * 16**2 + 2 * 8 * 32)  # embedding, static MLPs
    assert count_macs(small, 64, Setting('train', 2)) == 3 * 2 * macs
    # By a factor of two, this is what DeiT's paper says of DeiT-T.
    assert round(count_macs('deit_t', 224, Setting()) / 1e9, 2) == 1.25
    assert count_macs('deit_t', 224,
                      Setting()) == count_macs('deit_t_naive', 224, Setting())
    assert matmul_peak(Setting(), 1) > 1e8


def test_naive_attention_is_attention():
    fused, naive = (
        build_backbone(name, 32) for name in ('deit_t', 'deit_t_naive'))
    for param in fused.parameters():
        torch.nn.init.normal_(param, std=0.2)
    naive.load_state_dict(fused.state_dict())
    images = torch.rand(2, 3, 32, 32)
    out, = naive(images)
    assert out.shape == (2, 192, 2, 2)
    torch.testing.assert_close(out, fused(images)[0])
    operators = {
        name: operator_shares(Run(name, 32, Setting(), 1), rounds=1)
        for name in ('deit_t', 'deit_t_naive')
    }
    assert 'attention' in operators['deit_t']
    assert 'attention' not in operators['deit_t_naive']
    assert 'softmax' in operators['deit_t_naive']


@pytest.mark.parametrize('arch', ['t', 's'])
def test_windowed_deit_is_that_of_the_configs(arch):
    cfg = Config.fromfile(
        f'configs/cascade_mask_rcnn_deit_{arch}_vitdet_coco.py')
    backbone = cfg.model.backbone
    for option in 'drop_path_rate', 'init_cfg':
        backbone.pop(option)
    backbone.type = backbone.type.rpartition('.')[2]
    assert backbone == ZOO[f'deit_{arch}_windowed']


def test_images_fit_the_position_embedding():
    assert build_backbone('deit_t', 96).pos_embed.shape == (1, 37, 192)
    model = build_backbone('configs/deit_t_in1k.py', 32)
    assert model.pos_embed.shape == (1, 5, 192)


def test_unknown_backbones(tmp_path):
    with pytest.raises(ValueError, match="no is neither one of .'wf_t'"):
        build_backbone('no', 32)
    path = tmp_path / 'config.py'
    path.write_text('a = 1')
    with pytest.raises(ValueError, match='has no model.backbone'):
        build_backbone(str(path), 32)


def test_profile(small):
    run = Run(small, 64, Setting('train'), 1)
    operators = operator_shares(run, rounds=1)
    assert sum(operators.values()) == pytest.approx(1)
    assert {'matrix products', 'convolution', 'GELU', 'norms',
            'optimizer'} <= operators.keys()
    run = Run(small, 64, Setting(), 1)
    operators = operator_shares(run, rounds=1)
    assert not {'attention', 'softmax', 'optimizer'} & operators.keys()
    parts = part_shares(run, rounds=1)
    assert sum(parts.values()) == pytest.approx(1)
    assert {
        'patch_embed.projection (Conv2d)', 'layers.*.dwconv (Conv2d)',
        'layers.*.fc1 (DynamicLinear).predict',
        'layers.* (WeightFormerBlock).mlp', 'norm (LayerNorm)'
    } <= parts.keys()
    assert list(parts.values()) == sorted(parts.values(), reverse=True)


def test_report():
    setting, other = Setting(), Setting('train', 8)

    def result(model, size, seconds, memory, **kwargs):
        return Result(model, kwargs.pop('setting', setting), size, seconds,
                      memory, **kwargs)

    results = [
        result('a', 512, (1., 3., 2.), 100., macs=4e9),
        result('b', 512, (2., 9., 4.), 50., macs=4e9),
        result('a', 1024, (8., 12., 4.), 1600., macs=16e9),
        result('b', 1024, (32., ), None),
        result('a', 2048, (), None, left_out='too large'),
        result('b', 2048, (128., ), 3200.),
        result('b', 512, (4., ), 5., setting=other),
    ]
    peaks = {setting: 8e9, other: 8e9, Setting(batch=3): 1e9}
    rows = result_rows(results, 'a', peaks)
    assert rows[1] == dict(
        model='b',
        mode='inference',
        batch=1,
        dtype='float32',
        device='cpu',
        compile=None,
        size=512,
        rounds=3,
        seconds=4.,
        seconds_low=3.,
        seconds_high=6.5,
        images_per_second=0.25,
        speed_ratio=0.5,
        memory_mib=50.,
        memory_ratio=0.5,
        macs=4e9,
        share_of_peak=0.125,
        left_out='')
    assert rows[3]['speed_ratio'] == 0.25
    assert rows[3]['memory_ratio'] is rows[5]['speed_ratio'] is None
    assert rows[6]['images_per_second'] == 2
    lines = as_markdown(rows, 'a', peaks).splitlines()
    assert [line for line in lines if line.startswith(('| a |', '| b |'))] == [
        '| b | 0.38 | 0.25 | 0.50 | 0.50 | 0.50 | 0.50 |',
        '| a | 0.500 (1.00) | 0.125 (1.00) | — | 1.00 |',
        '| b | 0.250 (0.50) | 0.0312 (0.25) | 0.00781 | 1.25 |',
        '| a | 100 (1.00) | 1600 (1.00) | — | 2.00 |',
        '| b | 50.0 (0.50) | — | 3200 | 1.50 |',
        '| a | 25% | 25% | — |',
        '| b | 12% | — | — |',
        '| b | 2.00 | — |',
        '| b | 5.00 | — |',
    ]
    assert '- a at 2048²: too large' in lines
    assert [line for line in lines if line.startswith('## ')] == [
        '## inference, batch 1, float32', '## train, batch 8, float32'
    ]
