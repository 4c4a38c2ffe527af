# Copyright (c) mmweightformer contributors. All rights reserved.
from functools import partial
from typing import Any, Dict, List, Optional

import torch
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from ...models import PredictedLinear
from ...models.checks import check_int
from ...models.predicted_weights import delta_ratio, predicted_layers

RATIO, PREDICTOR, WEIGHT = 'delta_ratio', 'predictor_grad', 'weight_grad'


@HOOKS.register_module()
class DynamicWeightsHook(Hook):
    r"""Log how strong predicted weights are, and how they learn.

    Logged are, of each layer whose weight is predicted,

    - ``delta_ratio``: :math:`\lVert \Delta W \rVert_F / \lVert W_0 \rVert_F`,
      the mean over the batch;
    - ``predictor_grad``: the norm of the gradient of what predicts, that is
      of all parameters of the layer but ``weight`` and ``bias``;
    - ``weight_grad``: the norm of the gradient of ``weight``, :math:`W_0`.

    They go to the visualizer's backends as ``dynamic_weights/LAYER/NAME``.
    The logger's line, and what it sends there, has the means of the ratio
    over linear layers and over convolutions, and both norms over all layers
    together; it repeats the last ones if it is written more often.

    Gradients are those of the iteration's own backward pass, unscaled and
    before clipping. Under gradient accumulation, that is one of the batches
    that are accumulated, whose loss MMEngine divides by their number. Under
    distributed training, all figures are those of the first process and its
    part of the batch. A layer without a gradient, such as a frozen one, has
    no norm.

    Iterations that are not logged cost nothing. In one that is, weights are
    predicted once more, for 16 samples at a time. Iterations are counted as
    :class:`mmengine.hooks.LoggerHook` counts them, within an epoch if there
    are any; of an epoch that is no longer than the interval, the last one is
    logged.

    Args:
        interval (int): Every how many iterations it logs. Defaults to 50.

    Raises:
        TypeError: If ``interval`` is not an int.
        ValueError: If it is not positive; when training begins, if the model
            has no layer whose weight is predicted.

    Examples:
        >>> custom_hooks = [dict(type='DynamicWeightsHook', interval=50)]
    """

    # Ahead of the logger.
    priority = 'NORMAL'

    def __init__(self, interval: int = 50) -> None:
        check_int('interval', interval, 1)
        self.interval = interval
        self._handles: List[Any] = []

    def _remove_handles(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def before_train(self, runner: Runner) -> None:
        self._remove_handles()  # of an iteration that failed
        model = runner.model
        if is_model_wrapper(model):
            model = model.module
        try:
            self._layers = predicted_layers(model)
        except ValueError as error:
            raise ValueError(f'DynamicWeightsHook: {error}') from error

    def before_train_iter(self,
                          runner: Runner,
                          batch_idx: int,
                          data_batch: Any = None) -> None:
        if not self._is_logged(runner, batch_idx):
            return
        self._ratios: Dict[str, Tensor] = {}
        self._squares: Dict[str, Dict[str, Dict[str, Tensor]]] = {}
        scaler = getattr(runner.optim_wrapper, 'loss_scaler', None)
        # It may change with the step.
        self._scale = 1. if scaler is None else scaler.get_scale()
        for name, layer in self._layers.items():
            self._handles.append(
                layer.register_forward_pre_hook(
                    partial(self._keep_ratio, name)))
            for param_name, param in layer.named_parameters():
                if param_name != 'bias' and param.requires_grad:
                    norms = self._squares.setdefault(name, {})
                    kind = WEIGHT if param_name == 'weight' else PREDICTOR
                    self._handles.append(
                        param.register_hook(
                            partial(self._keep_square,
                                    norms.setdefault(kind, {}), param_name)))

    def _is_logged(self, runner: Runner, batch_idx: int) -> bool:
        if self.every_n_inner_iters(batch_idx, self.interval):
            return True
        length = len(runner.train_dataloader)
        return length <= self.interval and batch_idx + 1 == length

    def _keep_ratio(self, name: str, layer: nn.Module, args: tuple) -> None:
        # Once, if the forward pass is repeated in the backward pass.
        if name not in self._ratios and len(args[0]):
            self._ratios[name] = delta_ratio(layer, args[0].detach()).mean()

    def _keep_square(self, squares: Dict[str, Tensor], name: str,
                     grad: Tensor) -> None:
        # A sum of squares leaves the range of float16.
        wide = torch.promote_types(grad.dtype, torch.float32)
        squares[name] = grad.detach().to(wide).square().sum()

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Any = None,
                         outputs: Optional[dict] = None) -> None:
        if not self._handles:
            return
        self._remove_handles()
        values = {RATIO: self._ratios, PREDICTOR: {}, WEIGHT: {}}
        for name, norms in self._squares.items():
            for kind, squares in norms.items():
                if squares:
                    norm = sum(squares.values()).sqrt() / self._scale
                    values[kind][name] = norm
        if not self._ratios:
            runner.logger.warning(
                'DynamicWeightsHook: no layer whose weight is predicted was '
                'called as a module in this iteration, so no ratio is logged. '
                'A compiled model may not call hooks.')
        scalars = {}
        for kind, by_layer in values.items():
            for name, value in by_layer.items():
                scalars[f'dynamic_weights/{name}/{kind}'] = value.item()
        runner.visualizer.add_scalars(scalars, step=runner.iter + 1)
        for key, value in self._summarize(values).items():
            runner.message_hub.update_scalar(f'train/{key}', value)

    def _summarize(self, values: Dict[str, Dict[str, Tensor]]) -> dict:
        """What the logger's line has."""
        groups: Dict[str, List[Tensor]] = {}
        for name, ratio in values[RATIO].items():
            linear = isinstance(self._layers[name], PredictedLinear)
            key = f'{RATIO}_{"linear" if linear else "conv"}'
            groups.setdefault(key, []).append(ratio)
        summary = {
            key: torch.stack(ratios).mean().item()
            for key, ratios in groups.items()
        }
        for kind in PREDICTOR, WEIGHT:
            if values[kind]:
                norms = torch.stack(list(values[kind].values()))
                summary[kind] = norms.norm().item()
        return summary
