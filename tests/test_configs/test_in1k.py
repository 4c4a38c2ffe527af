# Copyright (c) mmweightformer contributors. All rights reserved.
import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, DefaultScope

NAMES = [
    'wf_t', 'wf_s', 'wf_b', 'deit_t', 'deit_s', 'convnext_s_iso', 'pvt_t',
    'pvt_s'
]
# Archs that are trained in no time, and their channels.
TINY = dict(
    wf_t=(dict(arch=dict(embed_dims=32, depth=4)), 32),
    deit_t=(dict(
        arch=dict(
            embed_dims=32, num_layers=2, num_heads=2,
            feedforward_channels=64)), 32),
    convnext_s_iso=(dict(arch=dict(depths=[2], channels=[32])), 32),
    pvt_t=(dict(embed_dims=16, num_layers=[1, 1, 1, 1]), 128))


def load(name):
    size = '_448' if name == 'wf_b' else ''
    return Config.fromfile(f'configs/{name}_in1k{size}.py')


def build(registry, cfg):
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        with registry.switch_scope_and_registry(None) as scoped:
            return scoped.build(cfg)


@pytest.mark.parametrize('name', NAMES)
def test_data_and_schedule(name):
    cfg = load(name)
    for loader, split in [(cfg.train_dataloader, 'train'),
                          (cfg.val_dataloader, 'val')]:
        assert loader.dataset.data_root == 'data/imagenet'
        assert loader.dataset.split == split
    assert cfg.train_cfg.max_epochs == 300
    gpus = 32 if name == 'wf_b' else 8
    assert cfg.auto_scale_lr.base_batch_size == \
        gpus * cfg.train_dataloader.batch_size
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.weight_decay) == ('AdamW', 0.05)
    assert cfg.model.head.num_classes == 1000
    assert cfg.model.head.loss.label_smooth_val == 0.1


@pytest.mark.parametrize('name', ['wf_t', 'wf_s', 'wf_b'])
def test_published_recipe(name):
    cfg = load(name)
    assert cfg.auto_scale_lr.base_batch_size == 2048
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(5e-4 * 4)
    assert cfg.optim_wrapper.clip_grad.max_norm == 5
    warmup, cosine = cfg.param_scheduler
    assert (warmup.type, warmup.end) == ('LinearLR', 20)
    assert (cosine.type, cosine.begin) == ('CosineAnnealingLR', 20)
    assert cosine.eta_min == pytest.approx(5e-6 * 4)
    assert 'T_max' not in cosine and 'end' not in cosine  # so, to the end
    steps = {step.type: step for step in cfg.train_dataloader.dataset.pipeline}
    augment, erasing = steps['RandAugment'], steps['RandomErasing']
    assert augment.policies == 'timm_increasing'
    assert (augment.num_policies, augment.magnitude_level,
            augment.magnitude_std) == (2, 9, 0.5)
    assert (erasing.erase_prob, erasing.mode) == (0.25, 'rand')
    assert {
        a.type: a.alpha
        for a in cfg.model.train_cfg.augments
    } == dict(
        Mixup=0.8, CutMix=1.0)
    assert cfg.model.backbone.get('drop_path_rate', 0) == \
        dict(wf_t=0, wf_s=0.2, wf_b=0.2)[name]


@pytest.mark.parametrize('name, lr, warmup, lowest', [
    ('deit_t', 5e-4 * 1024 / 512, 20, 1e-5),
    ('deit_s', 5e-4 * 1024 / 512, 20, 1e-5),
    ('pvt_t', 1e-3, 20, 1e-5),
    ('pvt_s', 1e-3, 20, 1e-5),
    ('convnext_s_iso', 4e-3 * 2048 / 4096, 50, 1e-6),
])
def test_recipes_of_the_others(name, lr, warmup, lowest):
    cfg = load(name)
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(lr)
    first, second = cfg.param_scheduler
    assert first.end == second.begin == warmup
    assert second.eta_min == lowest


@pytest.mark.parametrize('name', ['wf_t', 'deit_t'])
def test_weights_alone_decay(name):
    cfg = load(name)
    with torch.device('meta'):
        model = build(MODELS, cfg.model)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    names = {id(param): name for name, param in model.named_parameters()}
    groups = wrapper.optimizer.param_groups
    assert len(groups) == len(names)
    for group in groups:
        param, = group['params']
        exempt = param.ndim == 1 or names[id(param)].endswith(
            ('.cls_token', '.pos_embed'))
        assert group['weight_decay'] == (0 if exempt else 0.05), \
            names[id(param)]


@pytest.mark.parametrize('name, size', [('wf_t', 224), ('wf_b', 448)])
def test_image_sizes(name, size, tmp_path):
    cfg = load(name)
    # A white square in black: half as wide as the short side.
    image = np.zeros((300, 400, 3), np.uint8)
    image[75:225, 125:275] = 255
    for split in 'train', 'val':
        (tmp_path / split / 'class').mkdir(parents=True)
        cv2.imwrite(str(tmp_path / split / 'class' / '0.png'), image)
    for loader in cfg.train_dataloader, cfg.val_dataloader:
        loader.dataset.update(
            data_root=str(tmp_path), metainfo=dict(classes=['class']))
        dataset = build(DATASETS, loader.dataset)
        inputs = dataset[0]['inputs']
        assert inputs.shape == (3, size, size)
    # The short side becomes 256/224 of the crop.
    across = (inputs[0, size // 2] > 127).sum().item()
    assert abs(across - size * 256 / 224 / 2) <= 1


@pytest.mark.parametrize('name', TINY)
def test_loss_and_gradients(name):
    from mmpretrain.structures import DataSample
    cfg = load(name)
    backbone, channels = TINY[name]
    cfg.model.backbone.update(backbone)
    cfg.model.head.update(in_channels=channels, num_classes=5)
    cfg.model.data_preprocessor = dict(cfg.data_preprocessor, num_classes=5)
    model = build(MODELS, cfg.model)
    model.init_weights()
    data = dict(
        inputs=torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8),
        data_samples=[DataSample().set_gt_label(i) for i in range(4)])
    loss, _ = model.parse_losses(
        model(**model.data_preprocessor(data, training=True), mode='loss'))
    loss.backward()
    assert loss.isfinite()
    for param_name, param in model.named_parameters():
        assert param.grad.isfinite().all(), param_name
    scores = torch.stack([s.pred_score for s in model.eval().test_step(data)])
    assert scores.shape == (4, 5)
    torch.testing.assert_close(scores.sum(dim=1), torch.ones(4))
