# Copyright (c) mmweightformer contributors. All rights reserved.
import math
from functools import partial, wraps
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from mmengine.dist import all_gather_object, all_reduce
from mmengine.hooks import EMAHook, Hook
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...models.checks import check_choice, check_int
from ...utils.random_state import (get_random_state, kept_random_state,
                                   restore_random_state)

STOP, SKIP = 'stop', 'skip'
SKIPPED = 'train/skipped'


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Stop at a loss or a gradient that is not finite, or skip the step.

    Both are looked at after the backward pass and before the optimizer's
    step, so that NaN never reaches a weight. The message names the iteration,
    its learning rate and loss terms, and where NaN or infinity arose: the
    values and images of the batch, the first module whose output is not
    finite, with those of its parameters that are not, the loss term, or the
    parameters whose gradient is not finite. For that the forward pass is
    repeated, without gradients and from the same random state.

    A step that is skipped leaves weights, the state of the optimizer, of the
    loss scaler and of batch norms, and exponential moving averages as they
    are. The iteration counts all the same: data, random state and learning
    rate move on, and so does what a model changes in its own forward pass.
    Its loss terms that are not finite are not logged; the number of skipped
    iterations is, as ``skipped``.

    Under gradient accumulation the gradients of the batches before it are
    dropped as well, and the next step is that of the batches that follow.
    With a loss scaler, as of :class:`mmengine.optim.AmpOptimWrapper`, the
    gradients are left to it, which skips steps to find its scale, and only
    the loss is looked at. In distributed training all processes do the same.

    An iteration that is finite costs one pass over the gradients and one
    synchronization with the device, and, where there are batch norms, a copy
    of their statistics; it has no other forward pass.

    Args:
        action (str): 'stop' or 'skip'. Defaults to 'stop'.
        max_skips (int): How many iterations in a row may be skipped; the
            next one stops. Defaults to 10.

    Raises:
        TypeError: If ``max_skips`` is not an int; when training begins, if
            there are several optimizers.
        ValueError: If an argument has a wrong value, or the runner has
            another hook of this type.
        FloatingPointError: When training is to stop.

    Examples:
        >>> default_hooks = dict(
        ...     non_finite=dict(type='NonFiniteHook', action='skip'))
    """

    # Ahead of those that read the losses, and of moving averages.
    priority = 'HIGHEST'

    def __init__(self, action: str = STOP, max_skips: int = 10) -> None:
        check_choice('action', action, (STOP, SKIP))
        check_int('max_skips', max_skips, 1)
        self.action = action
        self.max_skips = max_skips
        self._handle: Any = None

    def before_train(self, runner: Runner) -> None:
        self.after_train(runner)  # a training that failed
        optim_wrapper = runner.optim_wrapper
        if isinstance(optim_wrapper, OptimWrapperDict):
            raise TypeError('NonFiniteHook needs one optimizer, got several: '
                            f'{", ".join(optim_wrapper.optim_wrappers)}; '
                            'tools/train.py is without it by --cfg-options '
                            'default_hooks.non_finite=None')
        if sum(isinstance(hook, NonFiniteHook) for hook in runner.hooks) > 1:
            raise ValueError(
                'one NonFiniteHook is allowed, got several: the configs of '
                'mmweightformer have one as default_hooks.non_finite')
        self._runner = runner
        self._in_a_row = 0
        self._is_skipped = False
        self._model = runner.model
        if is_model_wrapper(self._model):
            self._model = self._model.module
        self._norms = [
            m for m in self._model.modules()
            if isinstance(m, _BatchNorm) and m.track_running_stats
        ]
        self._handle = self._model.register_forward_pre_hook(
            self._keep_batch, with_kwargs=True)
        # Both are called by update_params, and by models that do not call it.
        self._kept = {
            name: vars(optim_wrapper).get(name)
            for name in ('backward', 'step')
        }
        self._backward, step = optim_wrapper.backward, optim_wrapper.step

        @wraps(step)  # with the mark of mmengine's schedulers
        def step_unless_skipped(**kwargs) -> None:
            if not self._is_skipped:
                step(**kwargs)

        optim_wrapper.backward = self._checked_backward
        optim_wrapper.step = step_unless_skipped

    def after_train(self, runner: Runner) -> None:
        if self._handle is None:
            return
        self._handle.remove()
        self._handle = self._batch = None
        for name, own in self._kept.items():
            delattr(runner.optim_wrapper, name)
            if own is not None:
                setattr(runner.optim_wrapper, name, own)

    def _keep_batch(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        if torch.is_grad_enabled():  # neither in validation nor when repeated
            self._batch = args, kwargs
            self._random_state = get_random_state()
            self._statistics = [[b.clone() for b in norm.buffers()]
                                for norm in self._norms]

    def _checked_backward(self, loss: Tensor, **kwargs) -> None:
        self._backward(loss, **kwargs)
        is_finite = self._is_finite(loss)
        all_reduce(is_finite, 'min')
        self._is_skipped = not is_finite.item()
        if not self._is_skipped:
            self._in_a_row = 0
            return
        report = self._report(loss)
        self._restore_statistics()
        self._runner.optim_wrapper.zero_grad()
        if self.action == STOP:
            raise FloatingPointError(report)
        self._in_a_row += 1
        if self._in_a_row > self.max_skips:
            raise FloatingPointError(
                f'{report}\nmax_skips={self.max_skips} iterations before it '
                'have been skipped')
        self._runner.logger.warning(f'Skipped. {report}')

    def _is_finite(self, loss: Tensor) -> Tensor:
        """1. or 0., on the device of the loss."""
        values = [loss.detach().float()]
        scaler = getattr(self._runner.optim_wrapper, 'loss_scaler', None)
        if scaler is None or not scaler.is_enabled():
            for group in self._runner.optim_wrapper.param_groups:
                # One pass over each, in which nothing overflows; on CPUs far
                # faster than isfinite() or a norm.
                values += [
                    extremum.to(loss.device, torch.float)
                    for p in group['params']
                    if p.grad is not None and p.grad.numel()
                    for extremum in torch.aminmax(p.grad)
                ]
        return torch.stack(values).isfinite().all().float()

    def _restore_statistics(self) -> None:
        for norm, kept in zip(self._norms, self._statistics):
            for buffer, value in zip(norm.buffers(), kept):
                buffer.copy_(value)

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Any = None,
                         outputs: Optional[dict] = None) -> None:
        self._batch = None
        averages = [h for h in runner.hooks if isinstance(h, EMAHook)]
        for hook in averages:
            vars(hook.ema_model).pop('update_parameters', None)
        if not self._is_skipped:
            return
        for hook in averages:
            hook.ema_model.update_parameters = _leave_average
        for name, value in list((outputs or {}).items()):
            if not _all_finite(value):
                del outputs[name]
        counts = runner.message_hub.log_scalars.get(SKIPPED)
        total = 0 if counts is None else counts.current()
        runner.message_hub.update_scalar(SKIPPED, total + 1)

    def _report(self, loss: Tensor) -> str:
        runner = self._runner
        found, losses = self._search(loss)
        ranks = all_gather_object(found)
        if len(ranks) > 1:
            ranks = [f'rank {i}: {f}' for i, f in enumerate(ranks) if f]
        rates = runner.optim_wrapper.get_lr()
        rate = rates.get('base_lr', rates['lr'])[0]
        terms = ', '.join(f'{k} {v:.4g}' for k, v in losses.items())
        return (f'NaN or infinity in iteration {runner.iter + 1}: ' +
                '; '.join(ranks) + f' (lr {rate:.4g}; {terms})')

    def _search(self, loss: Tensor) -> Tuple[str, Dict[str, float]]:
        """Where the fault is, and the terms of the loss."""
        args, kwargs = self._batch
        found = _faults_of_batch(args, kwargs)
        gradients = [
            name for name, p in self._model.named_parameters()
            if p.grad is not None and not p.grad.isfinite().all()
        ]
        module, losses = self._repeat(args, kwargs)
        terms = [k for k, v in losses.items() if not math.isfinite(v)]
        if module:
            found.append(module)
        elif terms:
            found.append(f'the loss term {terms[-1]}, though the outputs of '
                         'all modules are finite')
        elif not loss.isfinite():
            found.append('the loss, though not in a second forward pass')
        elif gradients:
            found.append(
                f'the gradient of {gradients[-1]}, though the loss is finite; '
                f'of all, those of {len(gradients)} parameters')
        return ', '.join(found), losses

    def _repeat(self, args: tuple,
                kwargs: dict) -> Tuple[str, Dict[str, float]]:
        """The first module that fails, and the terms of the loss."""
        found: List[str] = []

        def look(name, module, args, output):
            if found or _all_finite(output):
                return
            found.append(f'the output of {name} ({type(module).__name__})')
            for param_name, param in module.named_parameters(recurse=False):
                if not param.isfinite().all():
                    found[0] += f', whose {param_name} is not finite'

        handles = [
            module.register_forward_hook(partial(look, name))
            for name, module in self._model.named_modules() if name
        ]
        try:
            with kept_random_state(), torch.no_grad(), \
                    self._runner.optim_wrapper.optim_context(self._model):
                restore_random_state(self._random_state)
                losses = self._model(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        terms = self._model.parse_losses(losses)[1]
        return ''.join(found), {k: float(v) for k, v in terms.items()}


def _faults_of_batch(args: tuple, kwargs: dict) -> List[str]:
    """The inputs and the annotations that are not finite, and their images."""
    values = {**{f'input {i}': v for i, v in enumerate(args)}, **kwargs}
    paths: Dict[int, str] = {}
    found = []
    for value in values.values():
        if isinstance(value, (list, tuple)):
            for i, sample in enumerate(value):
                if isinstance(sample, BaseDataElement):
                    paths[i] = sample.get('img_path', f'number {i}')
                    found += [
                        f'the {name} of image {paths[i]}'
                        for name, field in sample.items()
                        if not _all_finite(field)
                    ]
    for name, value in values.items():
        if isinstance(value, Tensor) and not _all_finite(value):
            found += [
                f'{name} of image {paths.get(i, f"number {i}")}' for i, part in
                enumerate(value[None] if value.ndim == 0 else value)
                if not _all_finite(part)
            ]
    return found


def _tensors(value: Any) -> Iterator[Tensor]:
    """All floating-point tensors within an output of a module."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, (dict, BaseDataElement)):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, 'tensor'):  # boxes
        yield from _tensors(value.tensor)


def _all_finite(value: Any) -> bool:
    return all(t.isfinite().all() for t in _tensors(value))


def _leave_average(model: nn.Module) -> None:
    """In place of the average's own method, for a skipped iteration."""
