# Copyright (c) mmweightformer contributors. All rights reserved.
import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, DefaultScope
from mmengine.structures import PixelData

NAMES = ['wf_t', 'wf_s', 'deit_t', 'deit_s']
# Archs that are trained in no time, 32 channels wide.
TINY = dict(
    wf_t=dict(embed_dims=32, depth=17),
    deit_t=dict(
        embed_dims=32, num_layers=12, num_heads=2, feedforward_channels=64))


def load(name):
    return Config.fromfile(f'configs/upernet_{name}_ade20k.py')


def build(registry, cfg, scope='mmseg'):
    with DefaultScope.overwrite_default_scope(scope):
        with registry.switch_scope_and_registry(None) as scoped:
            return scoped.build(cfg)


def make_tiny(cfg, arch, size):
    model = cfg.model
    model.backbone.arch = arch
    model.neck.update(in_channels=[32] * 4, out_channels=32)
    model.decode_head.update(in_channels=[32] * 4, channels=32, num_classes=5)
    model.auxiliary_head.update(in_channels=32, channels=32, num_classes=5)
    model.data_preprocessor.size = (size, size)
    model.test_cfg.update(crop_size=(size, size), stride=(size // 2, ) * 2)


@pytest.mark.parametrize('name', NAMES)
def test_protocol(name):
    cfg = load(name)
    assert cfg.train_dataloader.dataset.data_root == \
        cfg.test_dataloader.dataset.data_root == \
        'data/ade/ADEChallengeData2016'
    assert cfg.train_dataloader.batch_size == 2
    assert cfg.auto_scale_lr.base_batch_size == 16
    assert cfg.train_cfg.max_iters == 160000
    warmup, poly = cfg.param_scheduler
    assert (warmup.type, warmup.begin, warmup.end) == ('LinearLR', 0, 1500)
    assert (poly.type, poly.begin, poly.end) == ('PolyLR', 1500, 160000)
    assert (poly.power, poly.eta_min) == (1, 0)
    assert not warmup.by_epoch and not poly.by_epoch
    assert cfg.optim_wrapper.optimizer == dict(
        type='AdamW', lr=1e-4, weight_decay=0.05)
    assert cfg.test_evaluator.iou_metrics == ['mIoU']
    assert cfg.tta_model.type == 'SegTTAModel'
    for head in cfg.model.decode_head, cfg.model.auxiliary_head:
        assert head.num_classes == 150


@pytest.mark.parametrize('size, channels', [('t', 192), ('s', 384)])
def test_all_but_the_backbone_is_equal(size, channels):
    ours, deit = load(f'wf_{size}'), load(f'deit_{size}')
    for cfg in ours, deit:
        backbone = cfg.model.pop('backbone')
        cfg.model.pop('init_cfg', None)  # of the backbone's layers
        for field in 'layer_decay_rate', 'custom_keys':
            cfg.optim_wrapper.paramwise_cfg.pop(field, None)
        cfg.pop('custom_imports')
        cfg.pop('pretrained')
        assert len(backbone.out_indices) == 4
        assert backbone.drop_path_rate == 0.1
        with torch.device('meta'):
            assert build(MODELS, backbone).embed_dims == channels
    assert ours.to_dict() == deit.to_dict()
    assert ours.model.decode_head.in_channels == [channels] * 4


@pytest.mark.parametrize('name', NAMES)
def test_weights_of_our_pre_training(name):
    cfg, in1k = load(name), Config.fromfile(f'configs/{name}_in1k.py')
    expected = f'work_dirs/{name}_in1k/epoch_{in1k.train_cfg.max_epochs}.pth'
    assert cfg.pretrained == expected
    assert cfg.model.backbone.init_cfg == dict(
        type='Pretrained', checkpoint=expected, prefix='backbone.')


@pytest.mark.parametrize('name, powers', [
    ('wf_t', {
        'patch_embed.projection.weight': 18,
        'layers.0.fc1.weight': 17,
        'layers.16.fc1.w1': 1,
        'norm.weight': 0
    }),
    ('deit_t', {
        'patch_embed.projection.weight': 13,
        'cls_token': 13,
        'pos_embed': 13,
        'layers.0.attn.qkv.weight': 12,
        'layers.11.ffn.layers.1.bias': 1,
        'ln1.weight': 0
    }),
])
def test_layer_wise_decay(name, powers):
    cfg = load(name)
    with torch.device('meta'):
        model = build(MODELS, cfg.model)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    names = {id(param): name for name, param in model.named_parameters()}
    groups = {
        names[id(group['params'][0])]: group
        for group in wrapper.optimizer.param_groups
    }
    assert groups.keys() == set(names.values())
    rate = 0.9**(12 / 17) if name == 'wf_t' else 0.9
    for param_name, group in groups.items():
        exempt = group['params'][0].ndim == 1 or param_name.endswith(
            ('.cls_token', '.pos_embed'))
        assert group['weight_decay'] == (0 if exempt else 0.05), param_name
        if not param_name.startswith('backbone.'):
            assert group['lr'] == 1e-4, param_name
    for param_name, power in powers.items():
        assert groups[f'backbone.{param_name}']['lr'] == \
            pytest.approx(1e-4 * rate**power), param_name


@pytest.mark.parametrize('device, wrapper', [('cuda', 'AmpOptimWrapper'),
                                             ('cpu', 'OptimWrapper')])
def test_mixed_precision_where_there_is_a_gpu(device, wrapper, monkeypatch):
    monkeypatch.setattr('mmengine.device.get_device', lambda: device)
    assert load('deit_s').optim_wrapper.type == wrapper


@pytest.mark.parametrize('name', TINY)
def test_loads_a_classifier(name, tmp_path):
    """As training the in1k config leaves it, at another image size."""
    classifier = Config.fromfile(f'configs/{name}_in1k.py').model
    classifier.backbone.arch = TINY[name]
    classifier.head.in_channels = 32
    classifier = build(MODELS, classifier, 'mmpretrain')
    classifier.init_weights()
    checkpoint = str(tmp_path / 'epoch_300.pth')
    torch.save(dict(state_dict=classifier.state_dict()), checkpoint)
    expected = classifier.backbone.state_dict()
    if name == 'deit_t':
        token, grid = expected['pos_embed'].split([1, 14 * 14], dim=1)
        grid = F.interpolate(
            grid.mT.unflatten(2, (14, 14)), (32, 32), mode='bicubic')
        expected['pos_embed'] = torch.cat([token, grid.flatten(2).mT], dim=1)

    cfg = load(name)
    make_tiny(cfg, TINY[name], 512)
    cfg.model.backbone.init_cfg.checkpoint = checkpoint
    model = build(MODELS, cfg.model)
    model.init_weights()
    actual = model.backbone.state_dict()
    assert actual.keys() == expected.keys()
    for param_name, value in expected.items():
        torch.testing.assert_close(actual[param_name], value)


@pytest.mark.parametrize('name, linear', [('wf_t', 'fc1'),
                                          ('deit_t', 'attn.qkv')])
def test_from_scratch(name, linear):
    """Initialized as in the classifiers, on both sides."""
    cfg = load(name)
    make_tiny(cfg, TINY[name], 64)
    cfg.model.backbone.init_cfg = None
    model = build(MODELS, cfg.model)
    model.init_weights()
    linear = model.backbone.layers[0].get_submodule(linear)
    assert linear.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert (linear.bias == 0).all()


@pytest.mark.parametrize('name', TINY)
def test_loss_gradients_and_prediction(name):
    from mmseg.structures import SegDataSample
    cfg = load(name)
    make_tiny(cfg, TINY[name], 64)
    cfg.model.backbone.init_cfg = None
    model = revert_sync_batchnorm(build(MODELS, cfg.model))
    model.init_weights()

    def make_data(*shape):
        samples = []
        for _ in range(2):
            sample = SegDataSample(
                metainfo=dict(img_shape=shape, ori_shape=shape))
            sample.gt_sem_seg = PixelData(
                data=torch.randint(0, 5, (1, *shape)))
            samples.append(sample)
        images = torch.randint(0, 256, (2, 3, *shape), dtype=torch.uint8)
        return dict(inputs=list(images), data_samples=samples)

    data = model.data_preprocessor(make_data(64, 64), training=True)
    loss, _ = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    assert loss.isfinite()
    for param_name, param in model.named_parameters():
        assert param.grad is not None and param.grad.isfinite().all(), \
            param_name
    # Larger and smaller than a window, and no multiple of the patches.
    for shape in (90, 140), (40, 50):
        sample = model.eval().test_step(make_data(*shape))[0]
        assert sample.pred_sem_seg.data.shape == (1, *shape)


@pytest.fixture
def dataset_root(tmp_path):
    for split in 'training', 'validation':
        for kind, suffix, values in ('images', 'jpg', 255), ('annotations',
                                                             'png', 150):
            folder = tmp_path / kind / split
            folder.mkdir(parents=True)
            shape = (60, 80, 3) if kind == 'images' else (60, 80)
            cv2.imwrite(
                str(folder / f'0.{suffix}'),
                np.random.randint(0, values + 1, shape, np.uint8))
    return str(tmp_path)


def test_pipelines(dataset_root):
    cfg = load('wf_t')
    for loader in cfg.train_dataloader, cfg.test_dataloader:
        loader.dataset.data_root = dataset_root
    train = build(DATASETS, cfg.train_dataloader.dataset)[0]
    # Resized by 0.5 to 2 and cropped; the preprocessor pads what is smaller.
    assert 256 <= min(train['inputs'].shape[1:])
    assert max(train['inputs'].shape[1:]) <= 512
    assert train['data_samples'].gt_sem_seg.shape == train['inputs'].shape[1:]
    assert cfg.model.data_preprocessor.size == (512, 512)
    test = build(DATASETS, cfg.test_dataloader.dataset)[0]
    assert test['inputs'].shape == (3, 512, 683)
    assert test['data_samples'].gt_sem_seg.shape == (60, 80)


def test_time_augmentation(dataset_root):
    """Six sizes of the short side and their flips, merged into one."""
    cfg = load('wf_t')
    dataset = cfg.test_dataloader.dataset
    dataset.update(data_root=dataset_root, pipeline=cfg.tta_pipeline)
    sample = build(DATASETS, dataset)[0]
    images = sample['inputs']
    assert [min(image.shape[1:]) for image in images] == [
        side for side in (256, 384, 512, 640, 768, 896) for _ in range(2)
    ]
    for image, flipped in zip(images[::2], images[1::2]):
        assert torch.equal(image, flipped.flip(2))

    make_tiny(cfg, TINY['wf_t'], 256)
    cfg.model.backbone.init_cfg = None
    model = build(MODELS, dict(cfg.tta_model, module=cfg.model)).eval()
    smallest = {key: values[:2] for key, values in sample.items()}
    result, = model.test_step(pseudo_collate([smallest]))
    assert result.pred_sem_seg.shape == (60, 80)
    assert torch.equal(result.gt_sem_seg.data,
                       sample['data_samples'][0].gt_sem_seg.data)
