# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Callable, List, Optional, Tuple

from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from ...models.checks import check_bool, check_choice, check_number, check_type

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
        TypeError: If an option has a wrong type.
        ValueError: If an option is missing, unknown or out of range.
    """
    _check_optimizer(optim_wrapper_cfg)
    if paramwise_cfg is not None:
        _check_paramwise(paramwise_cfg)
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


def _check_optimizer(optim_wrapper_cfg: dict) -> None:
    name = 'optim_wrapper_cfg'
    if not isinstance(optim_wrapper_cfg, dict) or not isinstance(
            optim_wrapper_cfg.get('optimizer'), dict):
        raise TypeError(f"{name} must be a dict with the dict 'optimizer', "
                        f'got {optim_wrapper_cfg!r}')
    for key in 'lr', 'weight_decay':
        check_number(f"{name}['optimizer']['{key}']",
                     optim_wrapper_cfg['optimizer'].get(key), '[0, inf)')


def _check_paramwise(paramwise: dict) -> None:
    check_type('paramwise_cfg', paramwise, dict, 'a dict or None')
    for key, value in paramwise.items():
        check_choice('a key of paramwise_cfg', key, PARAMWISE_KEYS)
        name = f'paramwise_cfg[{key!r}]'
        if key == 'layer_decay_rate':
            check_number(name, value, '(0, 1]')
        elif key == 'bypass_duplicate':
            check_bool(name, value)
        elif key == 'custom_keys':
            check_type(name, value, dict, 'a dict of dicts')
            for custom in value.values():
                check_type(name, custom, dict, 'a dict of dicts')
                check_number(f"'decay_mult' in {name}",
                             custom.get('decay_mult', 1.), '[0, inf)')
        elif value is not None:
            check_number(name, value, '[0, inf)')


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
