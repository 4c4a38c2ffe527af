# Copyright (c) mmweightformer contributors. All rights reserved.
"""The layers of a dynamic block by name or config."""
from typing import Dict, Tuple, Type, Union

from mmengine.registry import MODELS
from torch import nn

from .layers import (AmpDirDynamicDepthwiseConv2d, ConvDynamicDepthwiseConv2d,
                     DeepDynamicLinear, DynamicDepthwiseConv2d, DynamicLinear,
                     GAPDynamicDepthwiseConv2d, GAPDynamicLinear,
                     NonlinearDynamicLinear, PredictedDepthwiseConv2d,
                     PredictedLinear, UnactivatedDynamicLinear)

Strategy = Union[str, dict]

STATIC = 'static'
DYNAMIC_LINEAR = dict(
    bilateral=DynamicLinear,
    gap=GAPDynamicLinear,
    linear=UnactivatedDynamicLinear,
    nonlinear=NonlinearDynamicLinear,
    deep=DeepDynamicLinear)
DYNAMIC_CONV = dict(
    adaptive=DynamicDepthwiseConv2d,
    gap=GAPDynamicDepthwiseConv2d,
    amp_dir=AmpDirDynamicDepthwiseConv2d,
    conv=ConvDynamicDepthwiseConv2d)

for layer in *DYNAMIC_LINEAR.values(), *DYNAMIC_CONV.values():
    MODELS.register_module(module=layer)


def check_strategies(dynamic_linear: Strategy, dynamic_conv: Strategy) -> None:
    """Raise unless both name layers, whether or not these are built.

    Args:
        dynamic_linear (str | dict): As of :func:`build_linear`.
        dynamic_conv (str | dict): As of :func:`build_depthwise_conv`.

    Raises:
        TypeError: If one is neither a str nor a dict.
        ValueError: If a type is unknown.
    """
    if dynamic_linear != STATIC:
        _parse('dynamic_linear', dynamic_linear, DYNAMIC_LINEAR,
               PredictedLinear)
    if dynamic_conv != STATIC:
        _parse('dynamic_conv', dynamic_conv, DYNAMIC_CONV,
               PredictedDepthwiseConv2d)


def build_linear(strategy: Strategy, in_features: int, out_features: int,
                 reduction: int) -> nn.Module:
    """Build the first layer of a dynamic block's MLP.

    Args:
        strategy (str | dict): 'static', a key of ``DYNAMIC_LINEAR``, or a
            config whose type is such a key or a registered
            :class:`PredictedLinear`.
        in_features (int): C.
        out_features (int): O.
        reduction (int): Reduction of the prediction, unless the config has
            its own.

    Returns:
        nn.Module: A map from (B, h, w, C) to (B, h, w, O).

    Raises:
        TypeError: If ``strategy`` is neither a str nor a dict, or the layer
            does not take its arguments.
        ValueError: If the type is unknown or an argument wrong.
    """
    if strategy == STATIC:
        return nn.Linear(in_features, out_features)
    layer, kwargs = _parse('dynamic_linear', strategy, DYNAMIC_LINEAR,
                           PredictedLinear)
    kwargs.setdefault('reduction', reduction)
    return _build('dynamic_linear', layer, (in_features, out_features), kwargs)


def build_depthwise_conv(
        strategy: Strategy, channels: int,
        kernel_size: Union[int, Tuple[int, int]]) -> nn.Module:
    """Build the depthwise convolution of a block.

    Args:
        strategy (str | dict): 'static', a key of ``DYNAMIC_CONV``, or a
            config whose type is such a key or a registered
            :class:`PredictedDepthwiseConv2d`.
        channels (int): C.
        kernel_size (int | tuple[int, int]): Kernel size, unless the config
            has its own.

    Returns:
        nn.Module: A map from (B, C, h, w) to the same shape.

    Raises:
        TypeError: If ``strategy`` is neither a str nor a dict, or the layer
            does not take its arguments.
        ValueError: If the type is unknown or an argument wrong.
    """
    if strategy == STATIC:
        sizes = (kernel_size, ) * 2 if isinstance(kernel_size,
                                                  int) else kernel_size
        return nn.Conv2d(
            channels,
            channels,
            sizes,
            padding=tuple(size // 2 for size in sizes),
            groups=channels)
    layer, kwargs = _parse('dynamic_conv', strategy, DYNAMIC_CONV,
                           PredictedDepthwiseConv2d)
    kwargs.setdefault('kernel_size', kernel_size)
    return _build('dynamic_conv', layer, (channels, ), kwargs)


def _parse(name: str, strategy: Strategy, known: Dict[str, Type[nn.Module]],
           base: Type[nn.Module]) -> Tuple[Type[nn.Module], dict]:
    """The class and the further arguments of a layer."""
    kwargs = dict(type=strategy) if isinstance(strategy, str) else strategy
    if not isinstance(kwargs, dict):
        raise TypeError(f'{name} must be a str or a dict, got {strategy!r}')
    kwargs = dict(kwargs)
    layer = kwargs.pop('type', None)
    if isinstance(layer, str) and layer:
        layer = known.get(layer) or MODELS.get(layer)
    if not isinstance(layer, type) or not issubclass(layer, base):
        raise ValueError(
            f'{name} must be one of {[*known, STATIC]}, or a config whose '
            f'type is one of {[*known]} or a registered {base.__name__}, got '
            f'{strategy!r}')
    return layer, kwargs


def _build(name: str, layer: Type[nn.Module], sizes: Tuple[int, ...],
           kwargs: dict) -> nn.Module:
    try:
        return layer(*sizes, **kwargs)
    except (TypeError, ValueError) as error:
        raise type(error)(f'{name}, {layer.__name__}: {error}') from error
