# Copyright (c) mmweightformer contributors. All rights reserved.
"""Models of configs before training, and backbones with trained weights."""
from copy import deepcopy

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from ..utils import load_state_dict
from .stages import drop_pretrained


def build_model(cfg: Config, seed: int = 0) -> nn.Module:
    """Build the model of a config, for inference.

    Its weights are what training from scratch starts from; pre-trained ones
    that the config names are left out.

    Args:
        cfg (Config): A config of mmpretrain, mmdet or mmseg.
        seed (int): Seed of the weights. Defaults to 0.

    Returns:
        nn.Module: The model, with its data preprocessor.

    Raises:
        ValueError: If the config has no ``model.backbone``.
        Exception: Whatever the model raises when it is built.
    """
    if not (cfg.get('model') or {}).get('backbone'):
        raise ValueError('the config has no model.backbone')
    cfg = deepcopy(cfg)
    drop_pretrained(cfg)
    # mmpretrain's configs have it beside the model.
    if not cfg.model.get('data_preprocessor'):
        cfg.model.data_preprocessor = cfg.get('data_preprocessor')
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), \
            torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MODELS.build(cfg.model)
        model.init_weights()
    return model.eval().requires_grad_(False)


def load_backbone(backbone: nn.Module, path: str) -> None:
    """Load the backbone's part of a checkpoint.

    Args:
        backbone (nn.Module): The backbone.
        path (str): A checkpoint of mmengine, of a model whose backbone it is
            or of the backbone alone.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no checkpoint, or one of another backbone.
    """
    state, prefix = load_state_dict(path), 'backbone.'
    state = {
        name[len(prefix):]: value
        for name, value in state.items() if name.startswith(prefix)
    } or state
    try:
        keys = backbone.load_state_dict(state, strict=False)
    except RuntimeError as error:
        # The first line is a heading.
        raise ValueError(f'{path} does not fit the backbone: '
                         f'{str(error).splitlines()[-1].strip()}') from error
    for what, names in [('lacks', keys.missing_keys),
                        ('has, as the backbone has not,', keys.unexpected_keys)
                        ]:
        if names:
            raise ValueError(
                f'{path} does not fit the backbone: it {what} {len(names)} '
                f'parameters, such as {prefix}{names[0]}')
