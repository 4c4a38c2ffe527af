# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Callable, List, Optional, Tuple

from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
def LayerDecayOptimWrapperConstructor(optim_wrapper_cfg: dict,
                                      paramwise_cfg: Optional[dict] = None):
    """Layer-wise learning rate decay for the backbone of any model.

    mmpretrain's ``LearningRateDecayOptimWrapperConstructor`` with all its
    ``paramwise_cfg`` (``layer_decay_rate``, ``norm_decay_mult``, …). That one
    asks the model itself for ``get_layer_depth``, which only classifiers have;
    here the backbones within a detector, a segmentor or any other model
    answer for their own parameters, and all others count as behind them.

    A function, not a subclass, so that mmpretrain is imported only when a
    config asks for layer-wise decay.

    Args:
        optim_wrapper_cfg (dict): Config of the optimizer wrapper.
        paramwise_cfg (dict, optional): Parameter-wise options.

    Returns:
        Callable[[nn.Module], OptimWrapper]: The constructor.

    Raises:
        ImportError: If mmpretrain is not installed.
    """
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
            if get_layer_depth is None:
                get_layer_depth = _layer_depth_getter(module)
            super().add_params(
                params, module, get_layer_depth=get_layer_depth, **kwargs)

    return Constructor(optim_wrapper_cfg, paramwise_cfg)


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

    def get_layer_depth(param_name: str) -> Tuple[int, int]:
        prefix = next((p for p in backbones if param_name.startswith(p)),
                      next(iter(backbones)))
        return backbones[prefix].get_layer_depth(param_name, prefix)

    return get_layer_depth
