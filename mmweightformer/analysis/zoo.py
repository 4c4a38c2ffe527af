# Copyright (c) mmweightformer contributors. All rights reserved.
"""Backbones by name: a few to compare, and those of config files."""
import os.path as osp
from copy import deepcopy

import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn

from . import transcription  # noqa: F401


def _deit(arch: str) -> dict:
    return dict(
        type='VisionTransformer',
        arch=arch,
        img_size=224,
        patch_size=16,
        out_type='featmap')


def _windowed_deit(embed_dims: int) -> dict:
    """As in configs/cascade_mask_rcnn_deit_*_vitdet_coco.py."""
    return dict(
        type='ViTSAM',
        arch=dict(
            embed_dims=embed_dims,
            num_layers=12,
            num_heads=embed_dims // 64,
            feedforward_channels=4 * embed_dims,
            global_attn_indexes=[2, 5, 8, 11]),
        img_size=1024,
        out_channels=0,
        use_rel_pos=False,
        window_size=14)


ZOO = dict(
    wf_t=dict(type='WeightFormer', arch='t'),
    wf_s=dict(type='WeightFormer', arch='s'),
    wf_t_literal=dict(type='LiteralWeightFormer', arch='t'),
    wf_s_literal=dict(type='LiteralWeightFormer', arch='s'),
    deit_t=_deit('deit-tiny'),
    deit_s=_deit('deit-small'),
    deit_t_naive=_deit('deit-tiny'),
    deit_s_naive=_deit('deit-small'),
    deit_t_windowed=_windowed_deit(192),
    deit_s_windowed=_windowed_deit(384))


def naive_attention(query: Tensor,
                    key: Tensor,
                    value: Tensor,
                    dropout_p: float = 0.) -> Tensor:
    """Attention whose N×N matrices are written out, as DeiT was published."""
    scores = query @ key.transpose(-2, -1) * query.shape[-1]**-0.5
    return F.dropout(scores.softmax(dim=-1), dropout_p) @ value


def build_backbone(name: str, size: int) -> nn.Module:
    """Build a backbone, without weights that are loaded.

    Where its config has an ``img_size``, this is set to ``size``, so that no
    position embedding has to be resized.

    Args:
        name (str): A key of ``ZOO``, or the path of a config whose model has
            a backbone.
        size (int): Height and width of its images in pixels.

    Returns:
        nn.Module: The backbone.

    Raises:
        ValueError: If the name is neither, or the config has no
            ``model.backbone``.
        Exception: Whatever the config or the backbone raises.
    """
    if name in ZOO:
        # DeiT is MMPreTrain's, which nothing else here needs.
        foreign = not ZOO[name]['type'].endswith('WeightFormer')
        backbone, scope = ZOO[name], 'mmpretrain' if foreign else None
    elif osp.isfile(name):
        cfg = Config.fromfile(name)
        backbone = (cfg.get('model') or {}).get('backbone')
        if backbone is None:
            raise ValueError(f'{name} has no model.backbone')
        scope = cfg.get('default_scope')
    else:
        raise ValueError(f'{name} is neither one of {list(ZOO)} nor a config '
                         'file')
    backbone = deepcopy(backbone)
    if 'img_size' in backbone:
        backbone['img_size'] = size
    with DefaultScope.overwrite_default_scope(scope):
        model = MODELS.build(backbone)
    if name in ZOO and name.endswith('_naive'):
        for layer in model.layers:
            layer.attn.scaled_dot_product_attention = naive_attention
    return model
