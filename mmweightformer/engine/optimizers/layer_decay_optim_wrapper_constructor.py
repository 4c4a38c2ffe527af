# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Callable, List, Optional, Tuple

from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

PARAMWISE_KEYS = ('layer_decay_rate', 'bias_decay_mult', 'norm_decay_mult',
                  'flat_decay_mult', 'custom_keys', 'bypass_duplicate')


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
def LayerDecayOptimWrapperConstructor(optim_wrapper_cfg: dict,
                                      paramwise_cfg: Optional[dict] = None):
    """Layer-wise learning rate decay for the backbone of any model.

    mmpretrain's ``LearningRateDecayOptimWrapperConstructor`` with all its
    ``paramwise_cfg`` (``layer_decay_rate``, ``norm_decay_mult``, …). That one
    asks the model itself for ``get_layer_depth``, which only classifiers have;
    here the backbones within a detector, a segmentor or any other model
    answer for their own parameters, and all others count as behind them.
    Parameters that modules share are taken once.

    A function, not a subclass, so that mmpretrain is imported only when a
    config asks for layer-wise decay.

    Args:
        optim_wrapper_cfg (dict): Config of the optimizer wrapper, whose
            optimizer has ``lr`` and ``weight_decay``.
        paramwise_cfg (dict, optional): Parameter-wise options.

    Returns:
        Callable[[nn.Module], OptimWrapper]: The constructor.

    Raises:
        ImportError: If mmpretrain is not installed.
        ValueError: If an option is missing, unknown or out of range.
    """
    _check_options(
        optim_wrapper_cfg.get('optimizer') or {}, paramwise_cfg or {})
    try:
        from mmpretrain.engine import LearningRateDecayOptimWrapperConstructor
    except ImportError as error:
        raise ImportError(
            'LayerDecayOptimWrapperConstructor extends the one of '
            'mmpretrain, which cannot be imported here. Install mmpretrain, '
            "or remove optim_wrapper['constructor'].") from error

    class Constructor(LearningRateDecayOptimWrapperConstructor):

        def add_params(self,
                       params: List[dict],
                       module: nn.Module,
                       get_layer_depth: Optional[Callable] = None,
                       **kwargs) -> None:
            whole_model = get_layer_depth is None
            if whole_model:
                get_layer_depth = _layer_depth_getter(module)
            super().add_params(
                params, module, get_layer_depth=get_layer_depth, **kwargs)
            if whole_model:
                groups = {id(group['params'][0]): group for group in params}
                params[:] = groups.values()

    return Constructor(optim_wrapper_cfg, paramwise_cfg)


def _check_options(optimizer: dict, paramwise: dict) -> None:
    for name in 'lr', 'weight_decay':
        if not isinstance(optimizer.get(name), (int, float)):
            raise ValueError('layer-wise learning rate decay needs '
                             f"optimizer['{name}'] as a number, got "
                             f'{optimizer.get(name)!r}')
    unknown = [name for name in paramwise if name not in PARAMWISE_KEYS]
    if unknown:
        raise ValueError(f'paramwise_cfg must only have {PARAMWISE_KEYS}, '
                         f'got {unknown}')
    rate = paramwise.get('layer_decay_rate', 1.)
    if not isinstance(rate, (int, float)) or not 0 < rate <= 1:
        raise ValueError("paramwise_cfg['layer_decay_rate'] must be a number "
                         f'in (0, 1], got {rate!r}')


def _layer_depth_getter(model: nn.Module) -> Callable[[str], Tuple[int, int]]:
    """A function from a parameter's name to its depth and the number of them.

    Raises:
        TypeError: If no module of ``model`` has ``get_layer_depth``.
    """
    if hasattr(model, 'get_layer_depth'):
        return model.get_layer_depth
    backbones = {
        f'{name}.': module
        for name, module in model.named_modules()
        if hasattr(module, 'get_layer_depth')
    }
    if not backbones:
        raise TypeError('layer-wise learning rate decay needs a backbone with '
                        f'get_layer_depth, and {type(model).__name__} has '
                        'none')
    # The innermost first: a classifier would ask its backbone anyway.
    prefixes = sorted(backbones, key=len, reverse=True)

    def get_layer_depth(param_name: str) -> Tuple[int, int]:
        for prefix in prefixes:
            if param_name.startswith(prefix):
                relative = param_name[len(prefix):]
                return backbones[prefix].get_layer_depth(relative)
        # No layer has this name, so it counts as behind them all.
        return backbones[prefixes[0]].get_layer_depth('')

    return get_layer_depth
