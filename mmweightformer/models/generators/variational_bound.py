# Copyright (c) mmweightformer contributors. All rights reserved.
import math

import torch
from torch import Tensor


def variational_bound(betas: Tensor, clean: Tensor, noisy: Tensor,
                      timesteps: Tensor, noise: Tensor,
                      fraction: Tensor) -> Tensor:
    r"""The term of the variational bound of each sample's timestep.

    .. math::
        L_t &= \mathrm{KL}(q(x_{t-1} \mid x_t, x_0) \,\|\,
                           p(x_{t-1} \mid x_t)) \\
        L_0 &= -\log p(x_0 \mid x_1)

    with the learned variance of "Improved Denoising Diffusion Probabilistic
    Models", eq. 15, :math:`\exp(v \log\beta_t + (1 - v) \log\tilde\beta_t)`.
    :math:`L_0` is that of 256 levels in [-1, 1].

    Args:
        betas (Tensor): Variances of the steps, (T,), T at least 2.
        clean (Tensor): :math:`x_0`, (B, C, H, W).
        noisy (Tensor): :math:`x_t`, as ``clean``, where t = 0 is the first
            step.
        timesteps (Tensor): t, int64, (B,), from 0 to T - 1.
        noise (Tensor): The predicted noise, as ``clean``.
        fraction (Tensor): 2v - 1, as ``clean``.

    Returns:
        Tensor: Bits per dimension, (B,).
    """
    betas = betas.double()
    kept = (1 - betas).cumprod(0)
    kept_before = torch.cat([kept.new_ones(1), kept[:-1]])
    posterior = betas * (1 - kept_before) / (1 - kept)
    # That of the first step is zero, and has no logarithm.
    posterior[0] = posterior[1]

    def at(values: Tensor) -> Tensor:
        values = values.to(clean.device)[timesteps]
        return values.to(clean.dtype)[:, None, None, None]

    def mean(x0: Tensor) -> Tensor:
        return (at(betas * kept_before.sqrt() / (1 - kept)) * x0 + at(
            (1 - betas).sqrt() * (1 - kept_before) / (1 - kept)) * noisy)

    predicted = at(kept.rsqrt()) * noisy - at((1 / kept - 1).sqrt()) * noise
    low, high = at(posterior.log()), at(betas.log())
    log_variance = low + (fraction + 1) / 2 * (high - low)
    first = _discrete_nll(clean, mean(predicted), log_variance)
    later = _kl(mean(clean), low, mean(predicted), log_variance)
    is_first = (timesteps == 0)[:, None, None, None]
    return torch.where(is_first, first, later).mean((1, 2, 3)) / math.log(2)


def _kl(mean1: Tensor, log_variance1: Tensor, mean2: Tensor,
        log_variance2: Tensor) -> Tensor:
    """KL divergence of two normal distributions."""
    ratio = log_variance1 - log_variance2
    square = (mean1 - mean2).square() * (-log_variance2).exp()
    return (ratio.exp() + square - 1 - ratio) / 2


def _discrete_nll(x: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Of a level of 1/127.5, the outer ones of which have no outer end."""
    scale, half = (-log_variance / 2).exp(), 1 / 255
    above, below = scale * (x - mean + half), scale * (x - mean - half)
    # Differences of the smaller tails, which do not round to zero.
    inside = torch.special.ndtr(-below.abs().maximum(above.abs()))
    inside = (torch.special.ndtr(above) - torch.special.ndtr(below)).where(
        (above > 0) & (below < 0),
        torch.special.ndtr(-below.abs().minimum(above.abs())) - inside)
    log_inside = inside.clamp_min(1e-12).log()
    log_likelihood = torch.where(
        x < -0.999, torch.special.log_ndtr(above),
        torch.where(x > 0.999, torch.special.log_ndtr(-below), log_inside))
    return -log_likelihood
