# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from .tracing import is_traced


def adaptive_avg_pool2d(x: Tensor,
                        output_size: Union[int, Tuple[int, int]]) -> Tensor:
    """Adaptive average pooling that can be exported for images of any size.

    PyTorch's own where it runs at once. Where the code is traced, its bins,
    from floor(i·h/K) to ceil((i+1)·h/K), become two products with K×h and K×w
    matrices, since ONNX has no such pooling of an unknown size and
    ``torch.compile`` would compile each size by itself.

    Args:
        x (Tensor): Features, (B, C, h, w).
        output_size (int | tuple[int, int]): Height and width, or one number
            for both.

    Returns:
        Tensor: (B, C, H, W) of ``output_size``.
    """
    if not is_traced():
        return F.adaptive_avg_pool2d(x, output_size)
    h, w = x.shape[-2:]
    rows, columns = (output_size, ) * 2 if isinstance(output_size,
                                                      int) else output_size
    return _bins(h, rows, x) @ (x @ _bins(w, columns, x).mT)


def _bins(size: int, count: int, like: Tensor) -> Tensor:
    """The weights of each place in each bin, (count, size)."""
    i = torch.arange(count, device=like.device)[:, None]
    start, stop = i * size // count, ((i + 1) * size + count - 1) // count
    place = torch.arange(size, device=like.device)
    inside = (place >= start) & (place < stop)
    return inside.to(like.dtype) / (stop - start).to(like.dtype)
