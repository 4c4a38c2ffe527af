# Copyright (c) mmweightformer contributors. All rights reserved.
"""The configs of the published comparison on COCO."""
import pytest
import torch
from mmdet.registry import MODELS, TRANSFORMS
from mmdet.testing import demo_mm_inputs
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope

MASK_RCNN = 'configs/mask_rcnn_{}_{}_coco.py'
CASCADE = 'configs/cascade_mask_rcnn_{}_{}_vitdet_coco.py'
each_family = pytest.mark.parametrize('family', [MASK_RCNN, CASCADE])
each_size = pytest.mark.parametrize('size, channels', [('t', 192), ('s', 384)])


@pytest.fixture(autouse=True)
def scope():
    register_all_modules(False)
    with DefaultScope.overwrite_default_scope('mmdet'):
        yield


def load(family, backbone='wf', size='t'):
    return Config.fromfile(family.format(backbone, size))


def build_model(cfg, device='meta'):
    with torch.device(device):
        return MODELS.build(cfg.model)


@each_family
@each_size
def test_model(family, size, channels):
    cfg = load(family, 'wf', size)
    model = build_model(cfg)
    assert model.backbone.embed_dims == channels
    assert len(model.backbone.layers) == 17
    assert not model.backbone.final_norm
    drop_path = model.backbone.layers[-1].drop_path
    assert drop_path.drop_prob == pytest.approx(0.1)
    assert len(model.rpn_head.rpn_conv) == 2
    heads = model.roi_head
    bbox_heads, mask_heads = heads.bbox_head, heads.mask_head
    if family == MASK_RCNN:
        bbox_heads, mask_heads = [bbox_heads], [mask_heads]
    convs = [head.shared_convs for head in bbox_heads]
    convs += [head.convs for head in mask_heads]
    for each in convs:
        assert len(each) == 4
        for conv in each:
            assert type(conv.norm).__name__ == 'LayerNorm2d'
    for head in bbox_heads:
        assert len(head.shared_fcs) == 1


@each_family
@each_size
def test_deit(family, size, channels):
    """ViTDet's: windows of 14 but for four layers, no relative positions."""
    backbone = build_model(load(family, 'deit', size)).backbone
    assert backbone.embed_dims == channels
    assert backbone.pos_embed.shape == (1, 64, 64, channels)
    assert [layer.window_size for layer in backbone.layers
            ] == [14, 14, 0, 14, 14, 0, 14, 14, 0, 14, 14, 0]
    assert {layer.attn.num_heads
            for layer in backbone.layers} == {channels // 64}
    assert not any(layer.attn.use_rel_pos for layer in backbone.layers)
    assert backbone.layers[-1].ffn.dropout_layer.drop_prob == 0.1
    assert {layer.ln1.eps for layer in backbone.layers} == {1e-6}
    # Neither square nor a multiple of the window.
    image = torch.empty(1, 3, 800, 1344, device='meta')
    assert [out.shape for out in backbone(image)] == [(1, channels, 50, 84)]


@each_family
@each_size
def test_deit_differs_in_the_backbone_only(family, size, channels):
    ours, deit = load(family, 'wf', size), load(family, 'deit', size)
    for cfg in ours, deit:
        assert cfg.model.neck.in_channels == channels
        backbone = cfg.model.pop('backbone')
        assert cfg.pop('pretrained') == backbone.init_cfg.checkpoint
    imports = ours.pop('custom_imports').imports
    assert deit.pop('custom_imports').imports == [
        *imports, 'mmpretrain.models'
    ]
    decay = ours.optim_wrapper.paramwise_cfg.pop('layer_decay_rate')
    assert deit.optim_wrapper.paramwise_cfg.pop('layer_decay_rate') == 0.7
    assert decay**17 == pytest.approx(0.7**12)
    deit.optim_wrapper.paramwise_cfg.pop('custom_keys')
    # From scratch; every layer of the heads has its own.
    assert deit.model.pop('init_cfg').layer == 'Linear'
    assert ours.to_dict() == deit.to_dict()


@pytest.mark.parametrize('backbone', ['wf', 'deit'])
@pytest.mark.parametrize('size', ['t', 's'])
def test_equal_backbones_in_both_detectors(backbone, size):
    one, two = (
        load(family, backbone, size) for family in (MASK_RCNN, CASCADE))
    assert one.model.backbone == two.model.backbone
    assert one.model.neck == two.model.neck
    assert one.optim_wrapper == two.optim_wrapper


@each_family
@pytest.mark.parametrize('backbone, rate, layers, embedding', [
    ('wf', 0.7**(12 / 17), 17, 'patch_embed.projection.weight'),
    ('deit', 0.7, 12, 'patch_embed.projection.weight'),
    ('deit', 0.7, 12, 'pos_embed'),
])
def test_layer_decay(family, backbone, rate, layers, embedding):
    cfg = load(family, backbone)
    model = build_model(cfg)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    assert type(optimizer).__name__ == 'AdamW'
    groups = {group['param_name']: group for group in optimizer.param_groups}
    assert set(groups) == {name for name, _ in model.named_parameters()}
    for name, power in {
            f'backbone.{embedding}': layers + 1,
            'neck.levels.0.0.weight': 0,
            'rpn_head.rpn_cls.weight': 0,
    }.items():
        assert groups[name]['lr'] == pytest.approx(1e-4 * rate**power), name
    for name, group in groups.items():
        if name.startswith('backbone.layers.'):
            depth = layers - int(name.split('.')[2])
            assert group['lr'] == pytest.approx(1e-4 * rate**depth), name
        flat = dict(model.named_parameters())[name].ndim == 1
        decays = not flat and name != 'backbone.pos_embed'
        assert group['weight_decay'] == (0.1 if decays else 0), name


@each_family
@pytest.mark.parametrize('device, wrapper', [('cuda', 'AmpOptimWrapper'),
                                             ('cpu', 'OptimWrapper')])
def test_mixed_precision_where_there_is_a_gpu(family, device, wrapper,
                                              monkeypatch):
    monkeypatch.setattr('mmengine.device.get_device', lambda: device)
    for backbone in 'wf', 'deit':
        assert load(family, backbone).optim_wrapper.type == wrapper


def test_1x_schedule():
    cfg = load(MASK_RCNN)
    assert cfg.train_dataloader.dataset.data_root == 'data/coco/'
    assert cfg.train_cfg.max_epochs == 12


def test_vitdet_schedule():
    cfg = load(CASCADE)
    assert cfg.train_dataloader.batch_size * 8 == 64  # 8 GPUs
    assert cfg.auto_scale_lr.base_batch_size == 64
    assert cfg.train_cfg.type == 'IterBasedTrainLoop'
    assert cfg.train_cfg.max_iters * 64 == 100 * 118000  # images of COCO
    warm_up, decay = cfg.param_scheduler
    assert not warm_up.by_epoch and not decay.by_epoch
    assert (warm_up.start_factor, warm_up.end) == (0.001, 250)
    assert (decay.milestones, decay.gamma) == ([163889, 177546], 0.1)
    assert not cfg.log_processor.by_epoch
    assert not cfg.default_hooks.checkpoint.by_epoch


def test_vitdet_cascade():
    model = build_model(load(CASCADE))
    heads = model.roi_head.bbox_head
    assert all(head.reg_class_agnostic for head in heads)
    assert [head.bbox_coder.stds[0] for head in heads] == [0.1, 0.05, 0.033]
    assert [stage.assigner.pos_iou_thr
            for stage in model.train_cfg.rcnn] == [0.5, 0.6, 0.7]


@pytest.mark.parametrize('training', [True, False])
def test_vitdet_images_are_1024_square(training):
    cfg = load(CASCADE)
    preprocessor = MODELS.build(cfg.model.data_preprocessor)
    data = demo_mm_inputs(
        2, [(3, 1024, 683), (3, 300, 1000)], num_items=[1, 1], with_mask=True)
    data = preprocessor(data, training)
    assert data['inputs'].shape == (2, 3, 1024, 1024)
    assert not data['inputs'][1, :, 300:].any()
    if training:
        masks = data['data_samples'][1].gt_instances.masks
        assert masks.masks.shape == (1, 1024, 1024)


def test_vitdet_pipelines():
    cfg = load(CASCADE)
    dataset = cfg.train_dataloader.dataset
    assert dataset.type == 'CocoDataset'  # each image once in an epoch
    jitter, crop = dataset.pipeline[2:4]
    assert jitter.type == 'RandomResize' and crop.type == 'RandomCrop'
    assert (jitter.scale, jitter.ratio_range) == ((1024, 1024), (0.1, 2.))
    assert crop.crop_size == (1024, 1024)
    for loader in cfg.val_dataloader, cfg.test_dataloader:
        resize = TRANSFORMS.build(loader.dataset.pipeline[1])
        image = torch.zeros(480, 640, 3).numpy()
        assert resize(dict(img=image))['img'].shape == (768, 1024, 3)


SMALL_HEADS = {
    'model.data_preprocessor.pad_size_divisor': 64,
    'model.neck.in_channels': 32,
    'model.neck.out_channels': 16,
    'model.rpn_head.in_channels': 16,
    'model.rpn_head.feat_channels': 16,
    'model.roi_head.bbox_roi_extractor.out_channels': 16,
    'model.roi_head.mask_roi_extractor.out_channels': 16,
    'model.roi_head.mask_head.in_channels': 16,
    'model.roi_head.mask_head.conv_out_channels': 16,
    **{
        f'model.roi_head.bbox_head.{i}.{name}': 16
        for i in range(3)
        for name in ('in_channels', 'conv_out_channels', 'fc_out_channels')
    }
}  # yapf: disable


@pytest.mark.parametrize('backbone, options', [
    ('wf', {
        'model.backbone.arch': dict(_delete_=True, embed_dims=32, depth=4)
    }),
    ('deit', {
        'model.backbone.arch.embed_dims': 32,
        'model.backbone.arch.num_heads': 2,
        'model.backbone.arch.feedforward_channels': 64,
    }),
])
def test_vitdet_loss_and_gradients(backbone, options):
    cfg = load(CASCADE, backbone)
    cfg.merge_from_dict({**SMALL_HEADS, **options})
    model = build_model(cfg, 'cpu').train()
    data = demo_mm_inputs(
        2, [(3, 96, 70), (3, 64, 128)], num_classes=80, with_mask=True)
    data = model.data_preprocessor(data, training=True)
    loss, _ = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    assert loss.isfinite()
    for name, param in model.named_parameters():
        assert param.grad is not None and param.grad.isfinite().all(), name
