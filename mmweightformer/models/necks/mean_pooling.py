# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Sequence, Tuple, Union

from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor

from ..checks import check_init_cfg


@MODELS.register_module()
class MeanPooling(BaseModule):
    """The means of feature maps, for a classifier on any package's backbone.

    MMPreTrain's ``GlobalAveragePooling`` refuses the list that some backbones
    of MMDetection return.

    Args:
        init_cfg (dict | list[dict], optional): Initialization config.
    """

    def __init__(self,
                 init_cfg: Union[dict, Sequence[dict], None] = None) -> None:
        check_init_cfg(init_cfg)
        super().__init__(init_cfg)

    def forward(self, feats: Sequence[Tensor]) -> Tuple[Tensor, ...]:
        """Feature maps (B, C, h, w) → their means (B, C)."""
        return tuple(feat.mean(dim=(2, 3)) for feat in feats)
