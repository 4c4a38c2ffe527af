# Copyright (c) mmweightformer contributors. All rights reserved.
"""Every argument of every public class refuses wrong values by its name.

The classes are found by ``__all__`` and in the registries, their arguments by
the signatures, wrong values by the annotations. So a new argument is tested
as it is. If it takes something of ``WRONG``, that goes into ``RIGHT``; what is
wrong for it alone, into ``MORE``; a value for one without default, into
``NEEDED``; the keys of a dict, into ``KEYS``.
"""
import inspect
import pkgutil
import re
from collections.abc import Sequence
from importlib import import_module
from types import UnionType
from typing import Union, get_args, get_origin

import pytest
from helpers import SMALL
from mmengine import registry as registries
from mmengine.registry import DefaultScope, Registry
from torch import nn

import mmweightformer
from mmweightformer.engine import LayerDecayOptimWrapperConstructor
from mmweightformer.models import (ClassConditionalDiffusion, DiT,
                                   WeightFormer, WeightFormerDiT)
from mmweightformer.models.arch import WEIGHTFORMER
from mmweightformer.models.layers import DeepDynamicLinear

NAN, INF = float('nan'), float('inf')
UNKNOWN_TYPE, UNKNOWN_KEY = dict(type='NoSuch'), dict(no_such=1)
# Wrong for every argument and key, unless it is in one of the next two.
WRONG = (None, True, -10**6, 1.5, NAN, INF, '', 'no such', [], {},
         UNKNOWN_TYPE, UNKNOWN_KEY)
RIGHT_BY_TYPE = {bool: (True, ), float: (1.5, ), type(None): (None, )}
TYPES = {*RIGHT_BY_TYPE, int, str, dict, list, tuple, Sequence, nn.Module}
RIGHT = dict(
    autoencoder=('no such', ),  # looked for when it is first used
    bias_decay_mult=(None, 1.5),
    bypass_duplicate=(True, ),
    custom_keys=({}, ),
    dynamic_indices=(None, []),
    dynamic_offset=(None, ),
    flat_decay_mult=(None, 1.5),
    guidance_scale=(None, 1.5),
    init_cfg=([], {}),
    lr=(1.5, ),
    mlp_ratio=(1.5, ),
    noise_schedule=({}, ),
    norm_decay_mult=(None, 1.5),
    num_steps=(None, ),
    paramwise_cfg=({}, ),
    prefix=('', 'no such'),
    sampler=(None, ),
    seed=(None, ),
    test_cfg=({}, ),
    weight_decay=(1.5, ))
MORE = dict(
    act_cfg=(dict(type='GELU', no_such=1), ),
    arch=(dict(SMALL, no_such=1), ),
    custom_keys=(dict(norm=dict(decay_mult='0')), ),
    data_preprocessor=(dict(type='BaseDataPreprocessor', no_such=1), ),
    denoiser=(dict(type='DiT', no_such=1), dict(type='ReLU')),
    drop_label_rate=(1, -.1),
    drop_path_rate=(1, -.1),
    drop_rate=(1, -.1),
    dynamic_conv=('bilateral', dict(type='ReLU'), dict(type=3)),
    dynamic_every=(0, ),
    dynamic_indices=([17], [-1], [True], ['1'], '1', 3),
    dynamic_linear=('adaptive', dict(type='ReLU'), dict(type=3)),
    dynamic_offset=(3, -1),
    features=(dict(type='ReLU'), dict(type='ReLU', no_such=1)),
    flip_prob=(-.1, 1.1),
    frozen_stages=(-2, 18),
    init_cfg=([5], [None], ['no such'], [UNKNOWN_TYPE],
              dict(type='Normal', no_such=1)),
    input_size=((8, ), (8, 8, 8), (8, 8.), (8, True), 7),
    kernel_size=(0, 2, (3, ), (3, 3, 3), (3, '3'), (3, None), (3, True)),
    layer_decay_rate=(0, ),
    mlp_ratio=(0, 1e-3),
    model=(nn.ReLU, ),
    noise_schedule=(dict(num_train_timesteps=1), dict(beta_start='no')),
    norm_cfg=(dict(type='LN2d', no_such=1), dict(type='GN')),
    num_outs=(3, ),
    num_steps=(0, 1001),
    out_indices=([17], [-18], [True], ['1'], [1.], [None]),
    scale_factors=([3], [True], ['4'], [None], [NAN]),
    with_cp=(0, 1))
DENOISER = dict(
    type='DiT', arch=dict(embed_dims=8, depth=1, patch_size=2, num_heads=2))
ADAMW = dict(type='AdamW', lr=1., weight_decay=0.)
NEEDED = dict(
    channels=8,
    checkpoint=__file__,
    config=__file__,
    denoiser=DENOISER,
    features=dict(type='ReLU'),
    in_channels=8,
    in_features=8,
    model=nn.ReLU(),
    num_channels=8,
    optim_wrapper_cfg=dict(optimizer=ADAMW),
    out_features=8)
# A class, its argument, what the dict has besides, and all keys of it.
KEYS = [
    (WeightFormer, 'arch', SMALL, WEIGHTFORMER),
    (WeightFormerDiT, 'arch', dict(SMALL, patch_size=2),
     WeightFormerDiT.arch_defaults),
    (DiT, 'arch', dict(SMALL, patch_size=2, num_heads=2), DiT.arch_defaults),
    (ClassConditionalDiffusion, 'test_cfg', {},
     ClassConditionalDiffusion.default_test_cfg),
    (ClassConditionalDiffusion, 'noise_schedule', {}, ['num_train_timesteps']),
    (LayerDecayOptimWrapperConstructor, 'paramwise_cfg', {},
     inspect.getmodule(LayerDecayOptimWrapperConstructor).PARAMWISE_KEYS),
    (LayerDecayOptimWrapperConstructor, 'optim_wrapper_cfg.optimizer', ADAMW,
     ['lr', 'weight_decay']),
]


def registered():
    """All that is registered, with its registry and its name there."""
    found = {}
    for registry in vars(registries).values():
        if isinstance(registry, Registry):
            for name, obj in registry.module_dict.items():
                found.setdefault(obj, (registry, name))
    return found


def public_classes():
    """Those that a config or a user builds, and what is registered as such."""
    found = {*registered()}
    for package in pkgutil.walk_packages(mmweightformer.__path__,
                                         'mmweightformer.'):
        if package.ispkg:
            module = import_module(package.name)
            found.update(
                obj for obj in map(vars(module).get, module.__all__)
                # Named tuples hold results.
                if inspect.isclass(obj) and not issubclass(obj, tuple))
    return sorted(
        (obj for obj in found
         if re.match(r'mmweightformer\.(?!analysis|utils)', obj.__module__)),
        key=lambda obj: obj.__name__)


def parameters(cls):
    """Of a constructor, and of ours that it hands all arguments on to."""
    constructors = [cls] if inspect.isfunction(cls) else [
        vars(base)['__init__'] for base in cls.__mro__
        if '__init__' in vars(base)
    ]
    found = {}
    for i, constructor in enumerate(constructors):
        if i and not constructor.__module__.startswith('mmweightformer.'):
            break
        params = inspect.signature(constructor).parameters.values()
        named = [
            p for p in params
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        found.update((p.name, p) for p in named if p.name != 'self')
        if len(named) == len(params):
            break
    return found


def types_of(annotation):
    """``Optional[Sequence[int]]`` → Sequence and that of None."""
    if get_origin(annotation) in (Union, UnionType):
        return [t for part in get_args(annotation) for t in types_of(part)]
    return [get_origin(annotation) or annotation]


def wrong_values(name, types=()):
    """Of an argument of these types, or of a key."""
    right = [*RIGHT.get(name, ())]
    for kind in types:
        right += RIGHT_BY_TYPE.get(kind, ())
    # NaN is not equal to itself, and True is to 1.
    right = {repr(value) for value in right}
    return [
        value for value in (*WRONG, *MORE.get(name, ()))
        if repr(value) not in right
    ]


def build(cls, **kwargs):
    for name, param in parameters(cls).items():
        if param.default is param.empty and name not in kwargs:
            assert name in NEEDED, (
                f'{cls.__name__} needs {name}: add a value to NEEDED of '
                'tests/test_arguments.py')
            kwargs[name] = NEEDED[name]
    if cls not in registered():
        return cls(**kwargs)
    registry, name = registered()[cls]
    # Other tests may have left a scope behind.
    with DefaultScope.overwrite_default_scope('mmengine'):
        return registry.build(dict(type=name, **kwargs))


def parts_of(value):
    """What of a value an error may name: itself, or the part that is wrong."""
    parts = [value]
    if isinstance(value, (list, tuple)):
        parts += [part for item in value for part in parts_of(item)]
    elif isinstance(value, dict):
        parts += [None, *value]  # of a key that is missing
        parts += [part for item in value.values() for part in parts_of(item)]
    return parts


def complaint(name, value, make):
    """What is wrong with the error of a wrong value, if anything is."""
    try:
        make()
    except (TypeError, ValueError, FileNotFoundError) as error:
        message = str(error)
    except Exception as error:
        return f'{value!r} raises {error!r}'
    else:
        return f'{value!r} is accepted'
    given = '|'.join(re.escape(repr(part)) for part in parts_of(value))
    for what, pattern in [('the argument', rf'(?<!\w){re.escape(name)}(?!\w)'),
                          ('what is allowed', r'must \w'),
                          ('the value', rf'got .*({given})')]:
        if not re.search(pattern, message, re.DOTALL):
            return f'{value!r} raises an error without {what}: {message}'


ARGUMENTS = [(cls, name) for cls in public_classes()
             for name in parameters(cls)]


@pytest.mark.parametrize(
    'cls, name', ARGUMENTS, ids=lambda x: getattr(x, '__name__', x))
def test_wrong_values_are_named(cls, name):
    types = types_of(parameters(cls)[name].annotation)
    unknown = {*types} - TYPES
    assert not unknown, (
        f'{name} of {cls.__name__} is annotated as {unknown}: add to TYPES of '
        'tests/test_arguments.py, and what of WRONG is right to RIGHT_BY_TYPE')
    complaints = [
        complaint(name, value, lambda: build(cls, **{name: value}))
        for value in wrong_values(name, types)
    ]
    assert not any(complaints), (
        f'{cls.__name__} must check {name} (models/checks.py), or RIGHT of '
        'tests/test_arguments.py must have what is right:\n' +
        '\n'.join(filter(None, complaints)))


@pytest.mark.parametrize(
    'cls, argument, base, key',
    [(*of, key) for *of, keys in KEYS for key in keys],
    ids=lambda x: '' if isinstance(x, dict) else getattr(x, '__name__', x))
def test_wrong_values_of_keys_are_named(cls, argument, base, key):

    def make(value):
        cfg = dict(base, **{key: value})
        for name in reversed(argument.split('.')):
            cfg = {name: cfg}
        return build(cls, **cfg)

    complaints = [
        complaint(key, value, lambda: make(value))
        for value in wrong_values(key)
    ]
    assert not any(complaints), '\n'.join(filter(None, complaints))


def test_unknown_arguments_are_named():
    """By Python and MMEngine."""
    with pytest.raises(TypeError, match="unexpected .* 'no_such'"):
        build(WeightFormer, no_such=1)


def test_all_classes_are_found():
    names = {cls.__name__ for cls in public_classes()}
    assert {*mmweightformer.models.__all__,
            *mmweightformer.engine.__all__} <= names
    assert {
        'Exportable', 'GAPDynamicLinear', 'GenerationMetric', 'LoadLatents'
    } <= names
    # Its own has no names, but hands all on.
    assert parameters(DeepDynamicLinear).keys() == {
        'in_features', 'out_features', 'reduction', 'normalize'
    }


@pytest.mark.parametrize('error, expected', [
    (ValueError('size must be at least 1, got 0'), None),
    (ValueError('size must be at least 1'), 'without the value'),
    (ValueError('size is too small, got 0'), 'without what is allowed'),
    (ValueError('it must be at least 1, got 0'), 'without the argument'),
    (KeyError('size must be at least 1, got 0'), 'raises KeyError'),
    (None, '0 is accepted'),
])
def test_what_an_error_lacks_is_found(error, expected):

    def make():
        if error is not None:
            raise error

    found = complaint('size', 0, make)
    assert found is None if expected is None else expected in found
