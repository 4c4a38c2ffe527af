# Copyright (c) mmweightformer contributors. All rights reserved.
"""Any config of the repository made small, by --cfg-options alone."""
from helpers import run_tool
from mmengine.config import Config
from mmengine.optim import OptimWrapper

SIDE, WIDTH = 64, 32
# The layouts of the digits by the scope of a config.
LAYOUTS = dict(mmdet='coco', mmseg='ade', mmpretrain='imagenet')

# Narrow ones, as deep as they are, so that the indices of layers stay.
ATTENTION = dict(embed_dims=WIDTH, num_heads=2, feedforward_channels=WIDTH)
BACKBONES = dict(
    WeightFormer=dict(arch=dict(_delete_=True, embed_dims=WIDTH, depth=17)),
    ViTSAM=dict(arch=ATTENTION, img_size=SIDE),
    VisionTransformer=dict(
        arch=dict(ATTENTION, _delete_=True, num_layers=12), img_size=SIDE),
    ConvNeXt=dict(arch=dict(depths=[2], channels=[WIDTH])),
    PyramidVisionTransformer=dict(embed_dims=WIDTH // 8))


def forbid_unused_parameters(monkeypatch):
    """Let a training stop at a parameter that has no gradient.

    DistributedDataParallel waits for all, unless it is to look for them.
    """
    context, step = OptimWrapper.optim_context, OptimWrapper.step
    models = []

    def optim_context(self, model):
        models[:] = [model]
        return context(self, model)

    def checked_step(self, **kwargs):
        unused = [
            name for name, param in models[0].named_parameters()
            if param.requires_grad and param.grad is None
        ]
        assert not unused, f'without a gradient: {unused}'
        step(self, **kwargs)

    monkeypatch.setattr(OptimWrapper, 'optim_context', optim_context)
    monkeypatch.setattr(OptimWrapper, 'step', checked_step)


def make_digits(root):
    """Two steps of training, in all layouts, and the names of the classes."""
    assert run_tool('tools/dataset_converters/digits.py', root, '--size', SIDE,
                    '--num-train', 4, '--num-val', 2, '--imagenet-train', 10,
                    '--imagenet-val', 10) is None
    # DictAction would take the names for numbers; a file is as good.
    names = [str(digit) for digit in range(10)]
    for layout in LAYOUTS.values():
        background = ['background'] if layout == 'ade' else []
        (root / layout / 'classes.txt').write_text('\n'.join(background +
                                                             names))
    return root


def small_options(path, digits):
    """The --cfg-options for two steps of a small model on ``digits``."""
    cfg = Config.fromfile(path)
    root = digits / LAYOUTS[cfg.default_scope]
    options = {
        **_backbone_options(cfg),
        **_model_options(cfg),
        **_data_options(cfg, root),
        **_schedule_options(cfg),
    }
    if 'pretrained' in cfg:
        options['pretrained'] = None
    return [
        f'{key}={value}'.replace(' ', '') for key, value in options.items()
    ]


def _dicts(node, field):
    """All dicts within a config, each with its dotted name."""
    if isinstance(node, dict):
        yield field, node
        for key, value in node.items():
            yield from _dicts(value, f'{field}.{key}')
    elif isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            yield from _dicts(value, f'{field}.{i}')


def _backbone_options(cfg):
    backbone = BACKBONES[cfg.model.backbone.type.split('.')[-1]]
    return {
        f'{field}.{key}': value
        for field, node in _dicts(backbone, 'model.backbone')
        for key, value in node.items() if not isinstance(value, dict)
    }


def _model_options(cfg):
    """Few classes, channels, samples and proposals."""
    scope, options = cfg.default_scope, {}
    num_classes = 11 if scope == 'mmseg' else 10
    small = dict(
        neck=dict(in_channels=WIDTH),
        sampler=dict(num=8),
        rpn=dict(max_per_img=20),
        rpn_proposal=dict(max_per_img=20),
        rpn_head=dict(feat_channels=WIDTH),
        bbox_head=dict(conv_out_channels=WIDTH, fc_out_channels=WIDTH),
        mask_head=dict(conv_out_channels=WIDTH),
        data_preprocessor=dict(size=(SIDE, SIDE), pad_size_divisor=SIDE))
    if scope == 'mmseg':
        small['neck'].update(out_channels=WIDTH)
        for head in 'decode_head', 'auxiliary_head':
            small[head] = dict(in_channels=WIDTH, channels=WIDTH)
    elif scope == 'mmpretrain':
        small['head'] = dict(in_channels=WIDTH)
    for field, node in [
            *_dicts(cfg.model, 'model'),
            *_dicts(cfg.get('data_preprocessor'), 'data_preprocessor')
    ]:
        # A list's items go by its name.
        name = field.rstrip('.0123456789').split('.')[-1]
        new = dict(small.get(name, {}), num_classes=num_classes)
        for key in [key for key in new if node.get(key) is not None]:
            several = key == 'in_channels' and isinstance(node[key], list)
            options[f'{field}.{key}'] = [new[key]] * 4 if several else new[key]
    return options


def _data_options(cfg, root):
    """Another place, other classes and small images."""
    options = {}
    for stage in 'train', 'val', 'test':
        loader = f'{stage}_dataloader'
        options[f'{loader}.num_workers'] = 0
        options[f'{loader}.persistent_workers'] = False
        for field, node in _dicts(cfg[loader].dataset, f'{loader}.dataset'):
            if 'data_root' in node:
                options[f'{field}.data_root'] = root
                options[f'{field}.metainfo.classes'] = root / 'classes.txt'
            if node.get('type') == 'ADE20KDataset':
                # It takes no classes but its own; this is its base.
                options[f'{field}.type'] = 'BaseSegDataset'
                options[f'{field}.reduce_zero_label'] = True
            for key in {'scale', 'crop_size'} & node.keys():
                pair = isinstance(node[key], (list, tuple))
                options[f'{field}.{key}'] = (SIDE, SIDE) if pair else SIDE
        if stage != 'train' and cfg.default_scope == 'mmdet':
            options[f'{stage}_evaluator.ann_file'] = \
                root / 'annotations' / 'instances_val2017.json'
    options['train_dataloader.batch_size'] = \
        5 if cfg.default_scope == 'mmpretrain' else 2
    return options


def _schedule_options(cfg):
    """Two iterations, which are an epoch, logged each, and an evaluation."""
    options = {'default_hooks.logger.interval': 1, 'randomness.seed': 0}
    if 'max_iters' in cfg.train_cfg:
        options['train_cfg.max_iters'] = 2
        options['train_cfg.val_interval'] = 2
    else:
        options['train_cfg.max_epochs'] = 1
        options['train_cfg.val_interval'] = 1
    for i, scheduler in enumerate(cfg.param_scheduler):
        if scheduler.get('begin'):
            options[f'param_scheduler.{i}.begin'] = 0
    return options
