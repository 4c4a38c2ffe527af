# Copyright (c) mmweightformer contributors. All rights reserved.
"""Random cases of the models, and what has to hold in each of them.

:func:`draw` makes a case, a dict of plain values, from a random source;
:func:`check` builds what it describes and raises a :class:`Fault` where an
invariant does not hold. A case is the same wherever it is checked.
"""
import contextlib
import copy
import io
from collections import Counter
from typing import Any, Callable, Dict, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmweightformer.models import SimpleFeaturePyramid, WeightFormer
from mmweightformer.models.strategies import DYNAMIC_CONV, DYNAMIC_LINEAR

Case = Dict[str, Any]

# How far two ways to compute the same may differ, relative to the largest
# entry. Where rounding alone does more, as after a norm of nearly equal
# channels, MARGIN times what it does, which is measured against float64.
TOLERANCES = dict(float64=1e-10, float32=1e-6, bfloat16=2e-2, float16=2e-3)
MARGIN = 8
# The powers of ten by which an input may be scaled. Norms square it.
EXPONENTS = dict(
    float64=(-300, 150),
    float32=(-35, 17),
    bfloat16=(-35, 17),
    float16=(-6, 0))
VALUES = 'normal', 'normal', 'scaled', 'pixels', 'constant', 'zero', 'outlier'
LAYOUTS = 'channels_last', 'transposed', 'sliced', 'offset', 'expanded'


class Fault(AssertionError):
    """An invariant that does not hold."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f'{invariant}: {message}')
        self.invariant = invariant


def draw(random) -> Case:
    """Draw a case.

    Args:
        random (random.Random): The only source of what is drawn.

    Returns:
        dict: The case, of strings, numbers, tuples and dicts of them.
    """
    name = random.choice(['backbone'] * 5 + ['pyramid'] + ['linear'] * 2 +
                         ['conv'] * 2)
    dtype = random.choice(['float32'] * 3 + ['float64'] * 2 +
                          ['bfloat16', 'float16'])
    case = dict(
        kind=name,
        seed=random.randint(0, 2**32 - 1),
        dtype=dtype,
        autocast=dtype == 'float32' and random.randint(0, 7) == 0,
        batch=random.choice([0, 1, 2, 2, 3, 4]),
        layout=random.choice(LAYOUTS),
        values=random.choice(VALUES),
        exponent=random.randint(*EXPONENTS[dtype]),
        train=random.choice([False, True]),
        random_params=random.choice([False, True, True]),
        input_grad=random.choice([False, True, True]),
        bad=random.choice(['nan', 'inf', '-inf']),
        bad_everywhere=random.choice([False, True]))
    # One in 25 is large.
    KINDS[name].draw(case, random, random.randint(0, 24) == 0)
    return case


def _draw_size(random, most: int) -> Tuple[int, int]:
    """Height and width; thin ones are as long as any."""
    shape = random.choice(['any', 'any', 'square', 'thin', 'tiny'])
    if shape == 'thin':
        size = [random.randint(1, 3), random.randint(1, 700)]
        return tuple(size if random.choice([False, True]) else size[::-1])
    h, w = (
        random.randint(1, 4 if shape == 'tiny' else most) for _ in range(2))
    return (h, h) if shape == 'square' else (h, w)


def _budget(large: bool) -> float:
    """Multiply-adds of a case's forward pass."""
    return 3e8 if large else 1e7


class Backbone:
    """WeightFormer."""

    @staticmethod
    def draw(case: Case, random, large: bool) -> None:
        reduction = random.choice([1, 2, 4, 8])
        dims = reduction * random.randint(1, 64 // reduction)
        linear = random.choice([*DYNAMIC_LINEAR, 'static'])
        conv = random.choice([*DYNAMIC_CONV, 'static'])
        if conv == 'gap' and dims % 4:  # its own reduction
            conv = dict(type='gap', reduction=1)
        elif conv != 'static' and random.randint(0, 4) == 0:
            conv = dict(
                type=conv, kernel_size=random.choice([(1, 3), (5, 1), (3, 7)]))
        depth = random.randint(1, 6)
        every = random.randint(1, depth + 1)
        placement = random.choice([
            dict(),
            dict(dynamic_every=every),
            dict(
                dynamic_every=every,
                dynamic_offset=random.randint(0, every - 1)),
            dict(
                dynamic_indices=tuple(
                    i for i in range(depth) if random.choice([0, 1])))
        ])
        ratio = random.choice([1, 2, 3.0, 4] + [0.5] * (dims %
                                                        (2 * reduction) == 0))
        patch_size = random.choice([1, 2, 3, 4, 7, 8, 14, 16, 16, 32])
        h, w = _draw_size(random, 700 if large else 70)
        batch = max(1, case['batch'])
        # Of the MLPs, which is most of it.
        macs = 2 * dims * dims * ratio * depth * batch
        while macs * (-(-h // patch_size)) * (-(-w // patch_size)) > _budget(
                large):
            patch_size *= 2
        pad = random.choice(['corner', 'corner', 'same', None])
        if pad is None:
            h, w = max(h, patch_size), max(w, patch_size)
        indices = tuple(
            random.randint(-depth, depth - 1)
            for _ in range(random.randint(1, 3)))
        case.update(
            size=(h, w),
            kwargs=dict(
                arch=dict(
                    embed_dims=dims,
                    depth=depth,
                    mlp_ratio=ratio,
                    reduction=reduction,
                    kernel_size=random.choice([1, 3, 3, 5, 7]),
                    **placement),
                patch_size=patch_size,
                in_channels=random.choice([1, 2, 3, 3, 4, 7]),
                out_indices=random.choice([indices, indices[0], -1]),
                out_type=random.choice(WeightFormer.out_types),
                drop_rate=random.choice([0., 0., 0., 0.3]),
                drop_path_rate=random.choice([0., 0., 0., 0.5]),
                act_cfg=dict(
                    type=random.choice(['GELU', 'GELU', 'ReLU', 'SiLU'])),
                final_norm=random.choice([True, True, False]),
                pad=pad,
                frozen_stages=random.choice([-1, -1,
                                             random.randint(0, depth)]),
                with_cp=random.choice([False, False, True]),
                dynamic_linear=linear,
                dynamic_conv=conv))

    @staticmethod
    def build(case: Case) -> nn.Module:
        return WeightFormer(**case['kwargs'])

    @staticmethod
    def call(model: nn.Module, x: Tensor) -> Tuple[Tensor, ...]:
        return model(x)

    @staticmethod
    def input_shape(case: Case) -> Tuple[int, ...]:
        return case['batch'], case['kwargs']['in_channels'], *case['size']

    @staticmethod
    def output_shapes(case: Case) -> Sequence[Tuple[int, ...]]:
        kwargs, batch = case['kwargs'], case['batch']
        p = kwargs['patch_size']
        h, w = (
            side // p if kwargs['pad'] is None else -(-side // p)
            for side in case['size'])
        c = kwargs['arch']['embed_dims']
        indices = kwargs['out_indices']
        shape = dict(
            featmap=(batch, c, h, w),
            avg_featmap=(batch, c),
            raw=(batch, h * w, c))[kwargs['out_type']]
        return [shape] * (1 if isinstance(indices, int) else len(indices))

    @staticmethod
    def stochastic(case: Case) -> bool:
        kwargs = case['kwargs']
        return case['train'] and bool(kwargs['drop_rate']
                                      or kwargs['drop_path_rate'])

    @staticmethod
    def check(checker: 'Checker', outs: Tuple[Tensor, ...]) -> None:
        model, x, kwargs = checker.model, checker.x, checker.case['kwargs']
        indices = model.out_indices
        for i, index in enumerate(indices):
            checker.same('repeated out_indices', outs[i:i + 1],
                         outs[indices.index(index):][:1])
        # The same model behind an image that has been padded before.
        p, (h, w) = kwargs['patch_size'], x.shape[2:]
        bottom, right = -h % p, -w % p
        top, left = bottom // 2, right // 2
        padded = F.pad(x, (0, right, 0, bottom))
        model.pad = None
        before = checker.run({
            None:
            lambda: x[..., :h - h % p, :w - w % p],
            'corner':
            lambda: padded,
            'same':
            lambda: F.pad(x, (left, right - left, top, bottom - top)),
        }[kwargs['pad']]())
        model.pad = 'corner'
        again = checker.run(padded)
        model.pad = kwargs['pad']
        checker.close(f'pad={kwargs["pad"]!r}', before, outs)
        if kwargs['pad'] == 'corner' or not (bottom or right):
            checker.close('padded before', again, outs)

    @staticmethod
    def check_gradients(checker: 'Checker') -> None:
        model, frozen = checker.model, checker.case['kwargs']['frozen_stages']
        for name, param in model.named_parameters():
            depth, _ = model.get_layer_depth(name)
            # The norm behind the last block is of that block's stage.
            stage = min(depth, model.depth)
            checker.true('frozen_stages', (param.grad is None) == (stage
                                                                   <= frozen),
                         f'the gradient of {name} with {frozen}')
        grads = checker.gradients()
        model.with_cp = not model.with_cp
        checker.close('with_cp', checker.gradients(), grads)
        model.with_cp = not model.with_cp
        # A hook turns off the computation of the MLPs in parts.
        hooks = [
            layer.fc1.register_forward_hook(lambda *_: None)
            for layer in model.layers
        ]
        checker.close('MLP in parts', checker.gradients(), grads)
        for hook in hooks:
            hook.remove()


class Pyramid:
    """SimpleFeaturePyramid."""

    @staticmethod
    def draw(case: Case, random, large: bool) -> None:
        h, w = _draw_size(random, 60 if large else 9)
        h, w = min(h, 100), min(w, 100)
        scales = tuple(
            random.choice([4, 2, 1, 0.5]) for _ in range(random.randint(1, 4)))
        case.update(
            size=(h, w),
            kwargs=dict(
                # GN wants two numbers a group, also where it has 1/4 of them.
                in_channels=random.randint(8, 32),
                out_channels=random.randint(2, 16),
                scale_factors=random.choice([scales, (4, 2, 1, 0.5)]),
                num_outs=random.randint(4, 6),
                norm_cfg=random.choice([
                    dict(type='LN2d', eps=1e-6),
                    dict(type='GN', num_groups=1)
                ])))

    @staticmethod
    def build(case: Case) -> nn.Module:
        return SimpleFeaturePyramid(**case['kwargs'])

    @staticmethod
    def call(model: nn.Module, x: Tensor) -> Tuple[Tensor, ...]:
        return model((x, ))

    @staticmethod
    def input_shape(case: Case) -> Tuple[int, ...]:
        return case['batch'], case['kwargs']['in_channels'], *case['size']

    @staticmethod
    def output_shapes(case: Case) -> Sequence[Tuple[int, ...]]:
        kwargs = case['kwargs']
        sizes = [[
            -(-side // 2) if scale == 0.5 else side * scale
            for side in case['size']
        ] for scale in kwargs['scale_factors']]
        while len(sizes) < kwargs['num_outs']:
            sizes.append([-(-side // 2) for side in sizes[-1]])
        return [(case['batch'], kwargs['out_channels'], *size)
                for size in sizes]

    @staticmethod
    def stochastic(case: Case) -> bool:
        return False

    @staticmethod
    def check(checker: 'Checker', outs: Tuple[Tensor, ...]) -> None:
        for out in outs:
            checker.true('contiguous', out.is_contiguous(), out.stride())

    @staticmethod
    def check_gradients(checker: 'Checker') -> None:
        pass


class Layer:
    """What the dynamic layers have in common."""

    @staticmethod
    def draw(case: Case, random, large: bool) -> None:
        h, w = _draw_size(random, 90 if large else 12)
        normalize = random.choice([True, True, False])
        case.update(
            size=(w, ) if random.randint(0, 3) == 0 else (h, w),
            kwargs=dict(normalize=normalize))
        if not normalize:
            # y = x ΔW(x) is a product of three features.
            case['exponent'] = min(
                case['exponent'],
                dict(float64=90, float32=10,
                     bfloat16=10).get(case['dtype'], 0))

    @staticmethod
    def call(model: nn.Module, x: Tensor) -> Tuple[Tensor, ...]:
        return (model(x), )

    @staticmethod
    def stochastic(case: Case) -> bool:
        return False

    @staticmethod
    def check_gradients(checker: 'Checker') -> None:
        pass


class Linear(Layer):
    """DynamicLinear and the predictions that it is compared with."""

    @staticmethod
    def draw(case: Case, random, large: bool) -> None:
        reduction = random.choice([1, 2, 3, 4, 8])
        most = (192 if large else 32) // reduction
        c, o = (reduction * random.randint(1, most) for _ in range(2))
        Layer.draw(case, random, large)
        case['layer'] = random.choice([*DYNAMIC_LINEAR])
        case['kwargs'].update(
            in_features=c, out_features=o, reduction=reduction)

    @staticmethod
    def build(case: Case) -> nn.Module:
        return DYNAMIC_LINEAR[case['layer']](**case['kwargs'])

    @staticmethod
    def input_shape(case: Case) -> Tuple[int, ...]:
        return case['batch'], *case['size'], case['kwargs']['in_features']

    @staticmethod
    def output_shapes(case: Case) -> Sequence[Tuple[int, ...]]:
        return [(case['batch'], *case['size'], case['kwargs']['out_features'])]

    @staticmethod
    def check(checker: 'Checker', outs: Tuple[Tensor, ...]) -> None:
        if checker.x.ndim == 3:
            checker.close('sequence', checker.run(checker.x[:, None]),
                          [out[:, None] for out in outs])
        checker.unit_delta(1)


class Conv(Layer):
    """DynamicDepthwiseConv2d and what it is compared with."""

    @staticmethod
    def draw(case: Case, random, large: bool) -> None:
        Layer.draw(case, random, large)
        channels = random.randint(1, 96 if large else 24)
        case['layer'] = random.choice([*DYNAMIC_CONV])
        case['kwargs'].update(
            channels=channels,
            kernel_size=random.choice([1, 3, 3, 5, 7, (1, 3), (5, 1), (3, 7)]))
        if case['layer'] == 'gap':
            case['kwargs']['reduction'] = random.choice(
                [r for r in (1, 2, 3, 4) if channels % r == 0])

    @staticmethod
    def build(case: Case) -> nn.Module:
        return DYNAMIC_CONV[case['layer']](**case['kwargs'])

    @staticmethod
    def input_shape(case: Case) -> Tuple[int, ...]:
        return case['batch'], case['kwargs']['channels'], *case['size']

    @staticmethod
    def output_shapes(case: Case) -> Sequence[Tuple[int, ...]]:
        return [Conv.input_shape(case)]

    @staticmethod
    def check(checker: 'Checker', outs: Tuple[Tensor, ...]) -> None:
        if checker.x.ndim == 3:
            checker.close('sequence', checker.run(checker.x[:, :, None]),
                          [out[:, :, None] for out in outs])
        checker.unit_delta((2, 3))


KINDS = dict(backbone=Backbone, pyramid=Pyramid, linear=Linear, conv=Conv)


class Checker:
    """What a case is checked with.

    Attributes:
        checked (Counter): How often each invariant was looked at.
        batch_error (float): Largest relative difference between a sample in
            its batch and alone.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.kind = KINDS[case['kind']]
        self.checked: Counter = Counter()
        self.batch_error = 0.
        self.dtype = getattr(torch, case['dtype'])
        self.precision = 'bfloat16' if case['autocast'] else case['dtype']
        torch.manual_seed(case['seed'])
        model = self.kind.build(case)
        if case['random_params']:
            for param in model.parameters():
                nn.init.normal_(param, std=param[0].numel()**-0.5)
        self.model = model.to(self.dtype).train(case['train'])
        self.x = self._input()

    def _input(self) -> Tensor:
        case = self.case
        shape = self.kind.input_shape(case)
        scale = 10.**case['exponent']
        x = torch.randn(shape, dtype=torch.float64)
        if case['values'] == 'scaled':
            x = x * scale
        elif case['values'] == 'pixels':
            x = (x * 60 + 120).round().clamp(0, 255)
            if case['dtype'] == 'float16':
                x = x / 255
        elif case['values'] == 'constant':
            x = torch.full(shape, scale, dtype=torch.float64)
        elif case['values'] == 'zero':
            x = torch.zeros(shape, dtype=torch.float64)
        elif case['values'] == 'outlier' and x.numel():
            x.view(-1)[torch.randint(x.numel(), (1, ))] = scale
        return x.to(self.dtype)

    def run(self, x: Tensor, model: nn.Module = None) -> Tuple[Tensor, ...]:
        """The outputs, with the same random masks each time."""
        torch.manual_seed(self.case['seed'])
        with self._autocast():
            return self.kind.call(model or self.model, x)

    def _autocast(self):
        if not self.case['autocast']:
            return contextlib.nullcontext()
        return torch.autocast('cpu', torch.bfloat16)

    def true(self, invariant: str, holds: bool, message: Any) -> None:
        self.checked[invariant] += 1
        if not holds:
            raise Fault(invariant, str(message))

    def finite(self, invariant: str, tensors: Sequence[Tensor]) -> None:
        for i, tensor in enumerate(tensors):
            self.true(invariant,
                      tensor.isfinite().all().item(),
                      f'of {i}, {tuple(tensor.shape)}')

    def same(self, invariant: str, actual: Sequence[Tensor],
             expected: Sequence[Tensor]) -> None:
        """Equal to the bit."""
        self.true(
            invariant,
            len(actual) == len(expected)
            and all(a.equal(b) for a, b in zip(actual, expected)),
            f'differs by {_error(actual, expected):.2g}')

    def close(self,
              invariant: str,
              actual: Sequence[Tensor],
              expected: Sequence[Tensor],
              noise: Callable[[], float] = None) -> float:
        """Equal but for rounding; returns the relative error."""
        self.finite(invariant, actual)
        error = _error(actual, expected)
        limit = TOLERANCES[self.precision]
        if error > limit:
            limit = max(limit, MARGIN * (noise or self.noise)())
        self.true(invariant, error <= limit,
                  f'differs by {error:.2g}, more than {limit:.2g}')
        return error

    def noise(self) -> float:
        """What rounding does to the outputs and gradients."""
        wide = Checker.__new__(Checker)
        wide.__dict__.update(self.__dict__)
        wide.model = copy.deepcopy(self.model).double()
        wide.x = self.x.double()
        wide.case = dict(self.case, autocast=False)
        with torch.no_grad():
            error = _error(self.run(self.x), wide.run(wide.x))
        if self.differentiable() and len(self.x):
            error = max(error, _error(self.gradients(), wide.gradients()))
        return error

    def differentiable(self) -> bool:
        return self.case['input_grad'] or any(p.requires_grad
                                              for p in self.model.parameters())

    @torch.enable_grad()
    def gradients(self, x: Tensor = None) -> Sequence[Tensor]:
        """Of the input, where it has one, and the parameters."""
        x = (self.x if x is None else x).detach().clone()
        x.requires_grad_(self.case['input_grad'])
        self.model.zero_grad()
        outs = self.run(x)
        generator = torch.Generator().manual_seed(self.case['seed'])
        sum((out * torch.randn(
            out.shape[1:], generator=generator, dtype=torch.float64).to(
                out.dtype)).sum() for out in outs).backward()
        return [
            t.grad for t in (x, *self.model.parameters()) if t.grad is not None
        ]

    def unit_delta(self, dim) -> None:
        """A normalized delta is no longer than 1."""
        if not self.case['kwargs']['normalize'] or self.case['autocast']:
            return
        x = self.x if self.x.ndim == 4 else self.x.unsqueeze(-3 if dim ==
                                                             1 else 2)
        weight = self.model.weight
        with torch.no_grad():
            delta = self.model.predict(x) - (
                weight if dim == 1 else weight.squeeze(1))
            norm = torch.linalg.vector_norm(delta.double(), dim=dim)
        # Of weights that were rounded to the dtype.
        slack = 1 + 20 * torch.finfo(self.dtype).eps * (
            1 + weight.detach().abs().max().double() * weight.numel()**0.5)
        self.true('norm of the delta', (norm <= slack).all().item(),
                  f'{norm.max().item() if norm.numel() else 0} > {slack}')


def _error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Largest of the tensors' errors, each relative to its largest entry."""
    worst = 0.
    for a, b in zip(actual, expected):
        if a.shape != b.shape:
            return float('inf')
        if not a.numel():
            continue
        a, b = a.detach().double(), b.detach().double()
        scale = b.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
        worst = max(worst, ((a - b).abs().max() / scale).nan_to_num(
            float('inf')).item())
    return worst


def _laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers in another place, with NaN around them."""
    if layout == 'channels_last' and x.ndim == 4:
        return x.clone(memory_format=torch.channels_last)
    if layout == 'sliced':
        room = x.new_full([2 * side for side in x.shape], float('nan'))
        view = room[tuple(slice(None, None, 2) for _ in x.shape)]
        return view.copy_(x)
    if layout == 'offset':
        room = x.new_full([side + 3 for side in x.shape], float('nan'))
        view = room[tuple(slice(2, -1) for _ in x.shape)]
        return view.copy_(x)
    if layout == 'expanded':
        return x[:1].expand_as(x) if len(x) else x
    return x.transpose(1, -1).contiguous().transpose(1, -1)


def check(case: Case) -> Checker:
    """Check all invariants of a case.

    Args:
        case (dict): As of :func:`draw`.

    Returns:
        Checker: With its figures.

    Raises:
        Fault: If an invariant does not hold.
    """
    checker = Checker(case)
    with torch.no_grad():
        outs = _check_outputs(checker)
        _check_samples(checker, outs)
    if checker.differentiable():
        _check_gradients(checker, outs)
    return checker


def _check_outputs(checker: Checker) -> Tuple[Tensor, ...]:
    case, x = checker.case, checker.x
    before = x.clone()
    outs = checker.run(x)
    checker.same('input is not modified', [x], [before])
    shapes = [tuple(out.shape) for out in outs]
    expected = checker.kind.output_shapes(case)
    checker.true('shape', shapes == list(expected),
                 f'{shapes}, not {expected}')
    if not case['autocast']:
        checker.true('dtype', {out.dtype
                               for out in outs} == {checker.dtype},
                     [out.dtype for out in outs])
    checker.finite('finite', outs)
    checker.same('twice the same', checker.run(x), outs)
    other = checker.kind.build(case).to(checker.dtype).train(case['train'])
    file = io.BytesIO()
    torch.save(checker.model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    checker.same('state dict', checker.run(x, other), outs)
    if not checker.kind.stochastic(case):
        laid_out = _laid_out(x, case['layout'])
        same = outs if laid_out.equal(x) else checker.run(
            laid_out.contiguous())
        checker.close(f'layout {case["layout"]}', checker.run(laid_out), same)
    checker.kind.check(checker, outs)
    return outs


def _check_samples(checker: Checker, outs: Tuple[Tensor, ...]) -> None:
    case, x = checker.case, checker.x
    if len(x) == 0:
        return
    if not checker.kind.stochastic(case):
        for i in range(len(x)):
            error = checker.close('batch independence',
                                  checker.run(x[i:i + 1]),
                                  [out[i:i + 1] for out in outs])
            checker.batch_error = max(checker.batch_error, error)
    spoilt, bad = _spoil(checker)
    others = [i for i in range(len(x)) if i != bad]
    checker.same(f'{case["bad"]} stays in its sample',
                 [out[others] for out in checker.run(spoilt)],
                 [out[others] for out in outs])


def _spoil(checker: Checker) -> Tuple[Tensor, int]:
    """The input with one sample, or a number in it, that is not finite."""
    case, spoilt = checker.case, checker.x.clone()
    bad = case['seed'] % len(spoilt)
    sample = spoilt[bad].view(-1)
    place = case['seed'] // 7 % sample.numel()
    where = slice(None) if case['bad_everywhere'] else place
    sample[where] = float(case['bad'])
    return spoilt, bad


def _check_gradients(checker: Checker, outs: Tuple[Tensor, ...]) -> None:
    case, x = checker.case, checker.x
    with torch.enable_grad():
        checker.close('without gradients',
                      [out.detach() for out in checker.run(x)], outs)
        grads = checker.gradients()
        if case['dtype'] == 'float16' and not all(grad.isfinite().all()
                                                  for grad in grads):
            return  # They leave its range, and training would scale the loss.
        checker.finite('finite gradients', grads)
        unused = [
            name for name, p in checker.model.named_parameters()
            if p.requires_grad and p.grad is None
        ]
        checker.true('all parameters take part', not unused, unused)
        checker.kind.check_gradients(checker)
        if not case['input_grad'] or len(x) == 0:
            return
        spoilt, bad = _spoil(checker)
        others = [i for i in range(len(x)) if i != bad]
        checker.same('gradients stay in their sample',
                     [checker.gradients(spoilt)[0][others]],
                     [grads[0][others]])
        if not checker.kind.stochastic(case):
            checker.close('gradient of a sample',
                          checker.gradients(x[bad:bad + 1])[:1],
                          [grads[0][bad:bad + 1]])
