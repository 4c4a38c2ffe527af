# Copyright (c) mmweightformer contributors. All rights reserved.
"""Parameters and multiply-adds of a config's model, part by part."""
from collections import Counter
from copy import deepcopy
from functools import partial
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..models import DynamicLinear
from ..models.checks import check_int

REST = 'rest'


class Cost(NamedTuple):
    """What a part of a model costs.

    Attributes:
        name (str): The part: a child of the model, 'rest' for what belongs to
            none, 'backbone + neck' or 'total'.
        params (int): Parameters, each in the first part that holds it.
        macs (int): Multiply-adds of one image.
        macs_published (int): The same, with the factors of every
            :class:`DynamicLinear` multiplied from both ends, as published.
    """
    name: str
    params: int
    macs: int
    macs_published: int


class Complexity(NamedTuple):
    """The costs of a model.

    Attributes:
        rows (list[Cost]): The parts, then 'backbone + neck' where the model
            has both, then 'total', the sum of the parts.
        notes (list[str]): What the figures depend on.
    """
    rows: List[Cost]
    notes: List[str]


def model_complexity(cfg: Config, shape: Sequence[int]) -> Complexity:
    """Count the parameters and multiply-adds of a config's model.

    Multiply-adds are half of the operations that
    :class:`torch.utils.flop_counter.FlopCounterMode` counts: matrix products,
    attention and convolutions, with those of mmcv's deformable convolutions
    added. Norms, activations, poolings, RoIAlign and the like are not counted.
    What is counted is the inference of one image up to post-processing.
    Weights are not loaded, and the model runs without data where all of its
    operators can, else on the CPU.

    The RoI heads of a two-stage detector get as many proposals, and its mask
    heads as many detections, as its ``test_cfg`` lets through. Of a diffusion
    model, one step of its denoiser is counted, without guidance.

    Args:
        cfg (Config): A config with the fields ``model`` and, where types of
            the model are those of a package, ``default_scope``.
        shape (Sequence[int]): Height and width of the image in pixels, or of
            what the denoiser gets.

    Returns:
        Complexity: The costs of the children of the model that have any.

    Raises:
        TypeError: If a size is not an int.
        ValueError: If ``shape`` is not two positive sizes.
        Exception: Whatever the model raises when it is built or run.
    """
    if len(shape) != 2:
        raise ValueError(f'shape must be a height and a width, got {shape}')
    for size in shape:
        check_int('shape', size, 1)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        model = _build(cfg)
        params = _count_params(model)
        try:
            meter = _run(model.to('meta'), tuple(shape))
        except Exception:
            # Some operators, and whatever depends on values, need data. An
            # error of the model's own comes again from there.
            meter = _run(_build(cfg), tuple(shape))
    names = [name for name, _ in model.named_children()] + [REST]
    parts = {
        name: Cost(name, params[name], meter.macs[name], meter.published[name])
        for name in names if params[name] or meter.macs[name]
    }
    rows = list(parts.values())
    if 'backbone' in parts and 'neck' in parts:
        rows.append(_sum('backbone + neck', parts['backbone'], parts['neck']))
    rows.append(_sum('total', *parts.values()))
    return Complexity(rows, _notes(model, rows))


def _build(cfg: Config) -> nn.Module:
    # Some detectors write into their config.
    model = MODELS.build(deepcopy(cfg.model))
    # The counter stumbles over inputs of modules that require gradients.
    return model.eval().requires_grad_(False)


def _sum(name: str, *costs: Cost) -> Cost:
    return Cost(name, *(sum(column) for column in list(zip(*costs))[1:]))


def _notes(model: nn.Module, rows: Sequence[Cost]) -> List[str]:
    notes = []
    if _is_two_stage(model) and model.test_cfg.get('rpn'):
        notes.append('roi_head: for {} proposals and {} detections, the most '
                     'that test_cfg lets through'.format(*_roi_limits(model)))
    if any(row.name == 'auxiliary_head' for row in rows):
        notes.append('auxiliary_head: for training alone')
    if _is_diffusion(model):
        notes.append('denoiser: one step without guidance, which doubles it')
    return notes


def _count_params(model: nn.Module) -> Counter:
    params: Counter = Counter()
    # A shared one is named once.
    for name, param in model.named_parameters():
        params[_part_of(name)] += param.numel()
    return params


def _part_of(name: str) -> str:
    child, dot, _ = name.partition('.')
    return child if dot else REST


def _run(model: nn.Module, shape: Tuple[int, int]) -> '_Meter':
    """Run a model, which is of no use afterwards, and count."""
    device = next(model.parameters()).device
    channels = model.denoiser.in_channels if _is_diffusion(model) else 3
    image = torch.rand(1, channels, *shape, device=device)
    sample = BaseDataElement(
        metainfo=dict(
            img_shape=shape,
            ori_shape=shape,
            pad_shape=shape,
            batch_input_shape=shape,
            scale_factor=(1., 1.)),
        gt_instances=InstanceData())
    forward = partial(model, image, [sample], mode='tensor')
    if _is_two_stage(model):
        # In mode 'tensor', mask heads run on proposals, not on detections.
        forward = partial(model, image, [sample], mode='predict')
        _fix_rois(model, image)
    elif hasattr(model, 'encode_decode'):
        # Not all of mmseg's heads have a mode 'tensor'.
        forward = partial(model.encode_decode, image, [sample.metainfo])
    meter = _Meter(model)
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # The counter knows neither every fused kernel of attention nor
        # nn.MultiheadAttention's fast path.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), meter.counter:
            forward()
            meter.charge()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return meter


class _Meter:
    """Charges what is counted to the child of the model that is at work.

    A child is at work within ``forward`` and ``predict`` of each of its
    modules: a model may call any of them, past all hooks.
    """

    def __init__(self, model: nn.Module) -> None:
        self.counter = FlopCounterMode(display=False)
        self.macs: Counter = Counter()
        self.published: Counter = Counter()
        self.at_work = REST
        self.charged = 0
        for name, module in model.named_modules():
            if module is model:
                continue
            child = name.split('.')[0]
            for method in 'forward', 'predict':
                if hasattr(module, method):
                    function = getattr(module, method)
                    setattr(module, method, self._charging(child, function))
            if isinstance(module, DynamicLinear):
                module.predict = partial(self._predict, child, module,
                                         module.predict)
            elif hasattr(module, 'deform_groups'):
                module.register_forward_hook(
                    partial(self._after_deformable, child))

    def _charging(self, child: str, function: Callable) -> Callable:

        def charging(*args, **kwargs):
            self.charge()
            outer, self.at_work = self.at_work, child
            out = function(*args, **kwargs)
            self.charge()
            self.at_work = outer
            return out

        return charging

    def charge(self) -> None:
        """Charge what was counted since the last time."""
        total = self.counter.get_total_flops() // 2
        self.macs[self.at_work] += total - self.charged
        self.published[self.at_work] += total - self.charged
        self.charged = total

    def _predict(self, child: str, layer: DynamicLinear,
                 predict: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        self.charge()
        before = self.charged
        out = predict(x)
        self.charge()
        self.published[child] += _published_macs(layer, x) - (
            self.charged - before)
        return out

    def _after_deformable(self, child: str, conv: nn.Module, args: tuple,
                          out: Tensor) -> None:
        # Of mmcv, past the counter.
        macs = conv.weight.numel() * out[:, 0].numel()
        self.macs[child] += macs
        self.published[child] += macs


def _published_macs(layer: DynamicLinear, x: Tensor) -> int:
    """Of the prediction of :class:`DynamicLinear` in its published order."""
    batch, h, w, c = x.shape
    pooled = max(h // 2, 1) * max(w // 2, 1)
    (a, _), (b, out) = layer.w1.shape, layer.w2.shape
    factors = pooled * (c * (a + b) + a * c + b * out)
    return batch * (factors + pooled * c * out)


def _is_two_stage(model: nn.Module) -> bool:
    return getattr(model, 'roi_head', None) is not None


def _is_diffusion(model: nn.Module) -> bool:
    return getattr(model, 'denoiser', None) is not None


def _roi_limits(model: nn.Module) -> Tuple[Optional[int], Optional[int]]:
    """Most proposals and detections of a two-stage detector."""
    stages = [model.test_cfg.get(stage) or {} for stage in ('rpn', 'rcnn')]
    return tuple(stage.get('max_per_img') for stage in stages)


def _fix_rois(model: nn.Module, image: Tensor) -> None:
    """Make post-processing return as many boxes as ``test_cfg`` allows.

    What it would return depends on the weights.
    """

    def boxes(number):
        box = image.new_tensor([0., 0., image.shape[3], image.shape[2]])
        return InstanceData(
            bboxes=box.repeat(number, 1),
            scores=image.new_ones(number),
            labels=image.new_zeros(number, dtype=torch.long))

    def return_boxes(number):
        return lambda *args, **kwargs: [boxes(number)]

    def return_results(mask_preds, results_list, *args, **kwargs):
        return results_list

    proposals, detections = _roi_limits(model)
    roi_head = model.roi_head
    for head, stand_in in [
        (model.rpn_head, return_boxes(proposals)),
        (getattr(roi_head, 'bbox_head', None), return_boxes(detections)),
        (getattr(roi_head, 'mask_head', None), return_results),
    ]:
        for module in head.modules() if head is not None else ():
            if hasattr(module, 'predict_by_feat'):
                module.predict_by_feat = stand_in
    for module in roi_head.modules():
        # RoIAlign needs data, SingleRoIExtractor chooses levels by it.
        if hasattr(module, 'map_roi_levels'):
            module.forward = partial(_empty_roi_features, module)


def _empty_roi_features(extractor: nn.Module, feats: Sequence[Tensor],
                        rois: Tensor, **kwargs) -> Tensor:
    size = extractor.roi_layers[0].output_size
    return feats[0].new_zeros(len(rois), extractor.out_channels, *size)
