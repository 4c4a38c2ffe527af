# Copyright (c) mmweightformer contributors. All rights reserved.
"""tools/train.py and tools/test.py run every config of generation, small."""
import math
from pathlib import Path

import pytest
import torch
from helpers import run_tool
from miniature import forbid_unused_parameters, make_digits
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmweightformer.analysis.config_model import build_model

diffusers = pytest.importorskip('diffusers')
pytest.importorskip('torchmetrics')

CONFIGS = sorted(Path('configs').rglob('dit_*_256.py')) + sorted(
    Path('configs/digits').glob('dit_*.py'))
CLASSIFIER = 'configs/digits/wf_ablation_digits.py'


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    monkeypatch.syspath_prepend('tools')
    forbid_unused_parameters(monkeypatch)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Digits, a classifier of them and an autoencoder, both at random."""
    root = make_digits(tmp_path_factory.mktemp('generation'))
    cfg = Config.fromfile(CLASSIFIER)
    torch.save(build_model(cfg).state_dict(), root / 'classifier.pth')
    diffusers.AutoencoderKL(
        block_out_channels=(8, 8, 8, 8),
        down_block_types=('DownEncoderBlock2D', ) * 4,
        up_block_types=('UpDecoderBlock2D', ) * 4,
        norm_num_groups=4,
        latent_channels=4).save_pretrained(root / 'autoencoder')
    return root


def options(path, folder, work_dir):
    """Two iterations of a small denoiser on ten images."""
    cfg = Config.fromfile(path)
    heads = dict(num_heads=2) if cfg.model.denoiser.type == 'DiT' else {}
    # As deep and with patches as large as it is.
    layout = cfg.model.denoiser.arch
    depth = 12 if heads else 15
    patch_size = (
        int(layout[-1]) if isinstance(layout, str) else layout.patch_size)
    arch = dict(
        _delete_=True,
        embed_dims=16,
        depth=depth,
        patch_size=patch_size,
        **heads)
    given = {f'model.denoiser.arch.{k}': v for k, v in arch.items()}
    for stage in 'train', 'test':
        loader = f'{stage}_dataloader'
        given.update({
            f'{loader}.num_workers':
            0,
            f'{loader}.persistent_workers':
            False,
            f'{loader}.batch_size':
            5,
            f'{loader}.dataset.data_root':
            folder / 'imagenet',
            f'{loader}.dataset.metainfo.classes':
            folder / 'imagenet' / 'classes.txt',
        })
    features = dict(
        _delete_=True,
        type='ClassifierFeatures',
        config=CLASSIFIER,
        checkpoint=folder / 'classifier.pth')
    given.update({
        f'test_evaluator.features.{k}': v
        for k, v in features.items()
    })
    given.update({
        'train_cfg.max_iters': 2,
        'default_hooks.logger.interval': 1,
        'default_hooks.checkpoint.interval': 2,
        'randomness.seed': 0,
        'model.denoiser.num_classes': 10,
        'model.test_cfg.num_steps': 2,
    })
    if cfg.model.get('autoencoder'):
        # 8 pixels a latent, of the images of 64 pixels that there are.
        given['model.autoencoder'] = folder / 'autoencoder'
        for stage in 'train', 'test':
            pipeline = f'{stage}_dataloader.dataset.pipeline'
            given[f'{pipeline}.1.scale'] = 64
            given[f'{pipeline}.2.crop_size'] = 64
        given['model.input_size'] = 8
    else:
        given['test_dataloader.dataset.indices'] = 10
        given['param_scheduler.1.end'] = 200
    return ['--work-dir', work_dir, '--cfg-options'
            ] + [f'{k}={v}'.replace(' ', '') for k, v in given.items()]


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_trains_and_is_scored(path, folder, tmp_path):
    arguments = options(path, folder, tmp_path)
    assert run_tool('tools/train.py', path, *arguments) is None
    checkpoint = (tmp_path / 'last_checkpoint').read_text()
    saved = torch.load(checkpoint, weights_only=False)
    # The averages, and what they are averages of.
    assert 'ema_state_dict' in saved
    assert not any('autoencoder' in name for name in saved['state_dict'])
    assert all(value.isfinite().all()
               for value in saved['state_dict'].values())
    if path.stem in ('dit_s_8_in1k_256', 'dit_wf_s_8_in1k_256',
                     'dit_wf_digits'):
        assert run_tool('tools/test.py', path, checkpoint, *arguments) is None
        lines = max(tmp_path.glob('*/*.json')).read_text()
        assert '"generation/FID"' in lines
        assert 'NaN' not in lines


def test_trains_from_cached_latents(folder, tmp_path):
    """By a config as the README has it."""
    images, latents = folder / 'imagenet', tmp_path / 'latents'
    for split in 'train', 'val':
        assert run_tool('tools/dataset_converters/imagenet_latents.py',
                        folder / 'autoencoder', images / split,
                        latents / split, '--size', 64, '--num-workers',
                        0) is None
    base = Path('configs/dit_wf_s_8_in1k_256.py').absolute()
    path = tmp_path / 'cached.py'
    path.write_text(f"""
_base_ = {str(base)!r}
data_preprocessor = _base_.latents_preprocessor
train_dataloader = dict(dataset=_base_.cached_latents)
""")
    arguments = options(base, folder, tmp_path)
    given = dict(
        option.split('=', 1) for option in arguments[3:]
        if 'dataset.pipeline' not in option)
    given['train_dataloader.dataset.data_root'] = latents
    assert run_tool('tools/train.py', path, *arguments[:3],
                    *(f'{k}={v}' for k, v in given.items())) is None
    saved = torch.load(tmp_path / 'iter_2.pth', weights_only=False)
    assert all(v.isfinite().all() for v in saved['state_dict'].values())


def test_the_twins_differ_in_their_denoiser_alone():
    for path in CONFIGS:
        twin = path.with_name(path.name.replace('dit_', 'dit_wf_'))
        if 'dit_wf' in path.name:
            continue
        configs = [Config.fromfile(p).to_dict() for p in (path, twin)]
        for cfg in configs:
            cfg['model']['denoiser'].pop('arch')
            cfg['model']['denoiser'].pop('type')
            cfg.pop('filename', None)
        assert configs[0] == configs[1], path


@pytest.mark.parametrize('path', CONFIGS[:-2], ids=lambda path: path.stem)
def test_published_training(path):
    cfg = Config.fromfile(path)
    kind, size, patch_size = path.stem.replace('dit_wf', 'wf').split('_')[:3]
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        with torch.device('meta'):
            denoiser = MODELS.build(cfg.model.denoiser)
    assert type(denoiser).__name__ == dict(
        wf='WeightFormerDiT', dit='DiT')[kind]
    assert denoiser.embed_dims == dict(s=384, b=768)[size]
    assert denoiser.patch_size == int(patch_size)
    assert len(denoiser.layers) == dict(wf=15, dit=12)[kind]
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ('AdamW',
                                                                      1e-4, 0)
    assert cfg.train_cfg.max_iters == 400000
    assert cfg.auto_scale_lr.base_batch_size == 256
    assert math.isclose(cfg.custom_hooks[0].momentum, 1 - 0.9999)
