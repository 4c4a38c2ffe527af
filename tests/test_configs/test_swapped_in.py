# Copyright (c) mmweightformer contributors. All rights reserved.
"""``type='WeightFormer'`` in the packages' own detectors and segmentors."""
from importlib import import_module
from pathlib import Path

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import PixelData

WIDTH = 32
BACKBONE = dict(type='WeightFormer', arch=dict(embed_dims=WIDTH, depth=4))
PYRAMID = dict(_delete_=True, type='SimpleFeaturePyramid', in_channels=WIDTH)


def build(scope, config, **model_options):
    package = import_module(scope)
    import_module(f'{scope}.utils').register_all_modules(False)
    configs = Path(package.__file__).parent / '.mim' / 'configs'
    cfg = Config.fromfile(configs / config).model
    cfg.backbone = ConfigDict(BACKBONE)
    cfg.pop('pretrained', None)
    options = Config(dict(model=cfg))
    options.merge_from_dict({
        f'model.{name}': value
        for name, value in model_options.items()
    })
    with DefaultScope.overwrite_default_scope(scope):
        with MODELS.switch_scope_and_registry(scope) as registry:
            return revert_sync_batchnorm(registry.build(options.model))


def check_loss_and_gradients(model, data):
    model.train()
    data = model.data_preprocessor(data, training=True)
    losses = model(**data, mode='loss')
    loss, _ = model.parse_losses(losses)
    loss.backward()
    assert loss.isfinite()
    for name, param in model.backbone.named_parameters():
        assert param.grad is not None and param.grad.isfinite().all(), name


MULTI_LEVEL = {'neck': PYRAMID}
# Neither 96 nor 160 is a multiple of 64, and the images are not square.
SHAPE = (3, 96, 160)


@pytest.mark.parametrize('config, options', [
    ('retinanet/retinanet_r50_fpn_1x_coco.py', MULTI_LEVEL),
    ('fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py', MULTI_LEVEL),
    ('atss/atss_r50_fpn_1x_coco.py', MULTI_LEVEL),
    ('yolof/yolof_r50-c5_8xb8-1x_coco.py', {
        'neck.in_channels': WIDTH,
        'bbox_head.anchor_generator.strides': [16]
    }),
    ('faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py', MULTI_LEVEL),
    ('cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py', MULTI_LEVEL),
    ('solov2/solov2_r50_fpn_1x_coco.py', MULTI_LEVEL),
    ('detr/detr_r50_8xb2-150e_coco.py', {
        'neck.in_channels': [WIDTH]
    }),
    ('mask2former/mask2former_r50_8xb2-lsj-50e_coco.py', {
        'backbone.out_indices': (0, 1, 2, 3),
        'panoptic_head.in_channels': [WIDTH] * 4,
        'panoptic_head.strides': [16] * 4,
        'panoptic_head.num_queries': 20,
        'train_cfg.num_points': 256,
    }),
])
def test_detector(config, options):
    from mmdet.testing import demo_mm_inputs
    model = build('mmdet', config, **options)
    data = demo_mm_inputs(2, [SHAPE, SHAPE], num_classes=80, with_mask=True)
    check_loss_and_gradients(model, data)
    model.eval()
    with torch.no_grad():
        result, *_ = model.test_step(data)
    assert result.pred_instances.scores.isfinite().all()


@pytest.mark.parametrize('config, options', [
    ('vit/vit_vit-b16_mln_upernet_8xb2-80k_ade20k-512x512.py', {
        'backbone.out_indices': (0, 1, 2, 3),
        'neck.in_channels': [WIDTH] * 4,
        'neck.out_channels': WIDTH,
        'decode_head.in_channels': [WIDTH] * 4,
        'auxiliary_head.in_channels': WIDTH,
    }),
    ('fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py', {
        'decode_head.in_channels': WIDTH,
        'decode_head.in_index': -1,
        'auxiliary_head.in_channels': WIDTH,
        'auxiliary_head.in_index': -1,
    }),
    ('segmenter/segmenter_vit-s_fcn_8xb1-160k_ade20k-512x512.py', {
        'decode_head.in_channels': WIDTH,
        'decode_head.channels': WIDTH
    }),
    ('segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py', {
        'backbone.out_indices': (0, 1, 2, 3),
        'decode_head.in_channels': [WIDTH] * 4,
    }),
])
def test_segmentor(config, options):
    model = build('mmseg', config, **options)
    from mmseg.structures import SegDataSample
    samples = []
    for _ in range(2):
        labels = torch.randint(0, 150, (1, *SHAPE[1:]))
        sample = SegDataSample(
            metainfo=dict(
                img_shape=SHAPE[1:], ori_shape=SHAPE[1:], pad_shape=SHAPE[1:]))
        sample.gt_sem_seg = PixelData(data=labels)
        samples.append(sample)
    images = torch.randint(0, 255, (2, *SHAPE), dtype=torch.uint8)
    data = dict(inputs=list(images), data_samples=samples)
    check_loss_and_gradients(model, data)
    model.eval()
    with torch.no_grad():
        result, *_ = model.test_step(data)
    assert result.pred_sem_seg.data.shape == (1, *SHAPE[1:])
