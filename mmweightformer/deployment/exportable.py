# Copyright (c) mmweightformer contributors. All rights reserved.
from copy import deepcopy
from typing import List, Tuple

import torch
from torch import Tensor, nn

from ..models.checks import check_choice, check_type
from ..models.layers.adaptive_pool import adaptive_avg_pool2d

PARTS = ('model', 'backbone')

# Of an image that every stride divides.
PROBE = 256


class _AdaptiveAvgPool2d(nn.AdaptiveAvgPool2d):
    """The same in operations that can be exported for any size of input."""

    def forward(self, x: Tensor) -> Tensor:
        return adaptive_avg_pool2d(x, self.output_size)


class Exportable(nn.Module):
    """What deployment runs of a model: from an image to tensors.

    A copy of the model for inference without what is not exported. Neither
    the data preprocessor nor post-processing is part of it: the image is
    normalized, resized and padded by the caller.

    Args:
        model (nn.Module): A classifier, segmentor or detector of an OpenMMLab
            package.
        part (str): What to export:

            - ``'model'``: a classifier's or segmentor's logits, the latter in
              the size of the image; of a detector the levels of the pyramid,
              without RPN and RoI heads.
            - ``'backbone'``: the outputs of the backbone alone.

            Defaults to 'model'.

    Raises:
        TypeError: If ``model`` is no module.
        ValueError: If the model has not that part.

    Shape:
        - Input: :math:`(B, 3, H, W)`.
        - Output: A tensor for each of ``output_names``.

    Attributes:
        output_names (list[str]): ``logits``; or ``p2`` for a pyramid's level
            of stride 4 and so on; or ``feat0`` and so on.
        least_side (int): The least height and width of an image in pixels:
            more than one patch.
        least_side_captured (int): The same for ``torch.export``, which takes
            a size of one for a constant. WeightFormer pools its grid by 2.
    """

    def __init__(self, model: nn.Module, part: str = 'model') -> None:
        super().__init__()
        check_type('model', model, nn.Module, 'a module with a backbone')
        check_choice('part', part, PARTS)
        children = dict(model.named_children())
        if 'backbone' not in children:
            raise ValueError('model must have a backbone to export, and '
                             f'{type(model).__name__} has no backbone')
        if part == 'backbone':
            self.kind, used = part, ['backbone']
        elif hasattr(model, 'encode_decode'):
            self.kind, used = 'segmentor', ['backbone', 'neck', 'decode_head']
        elif 'head' in children:
            self.kind, used = 'classifier', ['backbone', 'neck', 'head']
        else:
            self.kind, used = 'detector', ['backbone', 'neck']
        self.model = deepcopy(model).eval().requires_grad_(False)
        for name in children.keys() - set(used):
            setattr(self.model, name, None)
        _replace_pools(self.model)
        patch = max(getattr(model.backbone, 'out_strides', (16, )))
        self.output_names, stride = self._probe()
        self.least_side = patch + 1
        self.least_side_captured = max(3 * patch, stride) + 1

    def forward(self, image: Tensor) -> Tuple[Tensor, ...]:
        if self.kind == 'backbone':
            out = self.model.backbone(image)
        elif self.kind == 'segmentor':
            meta = dict(img_shape=image.shape[2:])
            out = self.model.encode_decode(image, [meta])
        elif self.kind == 'classifier':
            out = self.model(image, mode='tensor')
        else:
            out = self.model.extract_feat(image)
        return (out, ) if isinstance(out, Tensor) else tuple(out)

    @torch.no_grad()
    def _probe(self) -> Tuple[List[str], int]:
        """Names of the outputs, and the stride of the coarsest."""
        outs = self(torch.zeros(1, 3, PROBE, PROBE))
        strides = [PROBE // out.shape[2] for out in outs if out.ndim == 4]
        if self.kind in ('segmentor', 'classifier'):
            names = ['logits']
        elif self.kind == 'detector':
            names = [f'p{stride.bit_length() - 1}' for stride in strides]
        else:
            names = [f'feat{i}' for i in range(len(outs))]
        return names, max(strides, default=1)


def _replace_pools(model: nn.Module) -> None:
    """ONNX has no adaptive pooling from a size that is not known."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.AdaptiveAvgPool2d) and isinstance(
                    child.output_size, int):
                setattr(module, name, _AdaptiveAvgPool2d(child.output_size))
