# Copyright (c) mmweightformer contributors. All rights reserved.
"""What a denoiser is told of the noise level and of places."""
import math

import torch
from torch import Tensor, nn


def angles(positions: Tensor, dims: int) -> Tensor:
    r"""The angles :math:`p \, 10000^{-2i/d}` of positions.

    Args:
        positions (Tensor): p, :math:`(N,)`, in any unit.
        dims (int): d, twice the number of frequencies.

    Returns:
        Tensor: :math:`(N, d/2)`, of the positions' dtype.
    """
    half = dims // 2
    index = torch.arange(half, dtype=positions.dtype, device=positions.device)
    exponents = -math.log(10000) * index / half
    # In float32, a rounding more would show at the last timesteps.
    return positions[:, None] * exponents.double().exp().to(positions.dtype)


def position_embedding(h: int, w: int, dims: int, like: Tensor) -> Tensor:
    """Fixed sines and cosines of the columns, then those of the rows.

    Args:
        h (int): Rows of the grid.
        w (int): Columns of the grid.
        dims (int): D, a multiple of 4.
        like (Tensor): Of the dtype and on the device of the result.

    Returns:
        Tensor: :math:`(h, w, D)`.
    """

    def embed(size: int) -> Tensor:
        places = torch.arange(size, dtype=torch.float64, device=like.device)
        phi = angles(places, dims // 2)
        return torch.cat([phi.sin(), phi.cos()], dim=1).to(like.dtype)

    columns, rows = embed(w)[None], embed(h)[:, None]
    return torch.cat([columns.expand(h, -1, -1), rows.expand(-1, w, -1)], 2)


class TimestepEmbedding(nn.Module):
    """256 cosines and sines of the timestep, then an MLP.

    Args:
        embed_dims (int): D.

    Shape:
        - Input: (B,), timesteps.
        - Output: (B, D).
    """
    frequency_dims = 256

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(self.frequency_dims, embed_dims)
        self.act = nn.SiLU()
        self.fc2 = nn.Linear(embed_dims, embed_dims)

    def forward(self, timesteps: Tensor) -> Tensor:
        # In float32 as published, whose rounding shows at late timesteps.
        phi = angles(timesteps.float(), self.frequency_dims)
        waves = torch.cat([phi.cos(), phi.sin()], dim=1)
        return self.fc2(self.act(self.fc1(waves.to(self.fc1.weight.dtype))))
