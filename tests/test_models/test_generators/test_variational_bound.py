# Copyright (c) mmweightformer contributors. All rights reserved.
"""Against torch.distributions, in float64."""
import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from mmweightformer.models.generators.variational_bound import \
    variational_bound

BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
KEPT = (1 - BETAS).cumprod(0)


def draw(t, size=2):
    clean = torch.rand(size, 3, 4, 4, dtype=torch.float64) * 2 - 1
    noise, fraction = torch.randn(2, *clean.shape, dtype=torch.float64)
    noisy = KEPT[t].sqrt() * clean + (1 - KEPT[t]).sqrt() * noise
    return clean, noisy, torch.full((size, ), t), noise, fraction


def posterior(clean, noisy, t):
    """The mean and variance of the step back, from Bayes' rule."""
    before = KEPT[t - 1] if t else torch.ones(())
    # A product of N(noisy; sqrt(1 - beta) x, beta) and N(x; sqrt(b) x0, 1-b).
    precision = (1 - BETAS[t]) / BETAS[t] + 1 / (1 - before)
    mean = ((1 - BETAS[t]).sqrt() / BETAS[t] * noisy + before.sqrt() /
            (1 - before) * clean) / precision
    return mean, 1 / precision


@pytest.mark.parametrize('t', [1, 2, 500, 999])
def test_later_steps_are_kl_divergences(t):
    clean, noisy, timesteps, noise, fraction = draw(t)
    noise = noise + 0.1
    predicted = (noisy - (1 - KEPT[t]).sqrt() * noise) / KEPT[t].sqrt()
    mean, variance = posterior(clean, noisy, t)
    weight = (fraction + 1) / 2
    own = variance**(1 - weight) * BETAS[t]**weight
    expected = kl_divergence(
        Normal(mean, variance.sqrt()),
        Normal(posterior(predicted, noisy, t)[0], own.sqrt()))
    actual = variational_bound(BETAS, clean, noisy, timesteps, noise, fraction)
    torch.testing.assert_close(
        actual, expected.mean((1, 2, 3)) / math.log(2), rtol=1e-9, atol=0)


def test_no_divergence_from_the_true_noise_and_variance():
    clean, noisy, timesteps, noise, fraction = draw(300)
    bound = variational_bound(BETAS, clean, noisy, timesteps, noise,
                              torch.full_like(fraction, -1))
    torch.testing.assert_close(
        bound, torch.zeros_like(bound), atol=1e-9, rtol=0)


def test_the_first_step_is_a_likelihood_of_levels():
    """The probabilities of the 256 levels of a pixel are one in all."""
    levels = (torch.arange(256, dtype=torch.float64) / 127.5 - 1).view(
        256, 1, 1, 1)
    noisy = torch.full_like(levels, 0.1)
    for value in 0.1, 0.99, -3.:
        bits = variational_bound(BETAS, levels, noisy + value - 0.1,
                                 torch.zeros(256, dtype=torch.long),
                                 torch.zeros_like(levels),
                                 torch.zeros_like(levels))
        kept = bits[bits < 39]  # the others are cut off at 1e-12
        torch.testing.assert_close((0.5**kept).sum(),
                                   torch.ones((), dtype=torch.float64))
        assert levels[bits.argmin()].item() == pytest.approx(
            min(max(value, -1), 1), abs=0.01)


def test_samples_are_independent():
    mixed = [draw(t, 1) for t in (0, 1, 700)]
    batch = [torch.cat(column) for column in zip(*mixed)]
    torch.testing.assert_close(
        variational_bound(BETAS, *batch),
        torch.cat([variational_bound(BETAS, *one) for one in mixed]))


@pytest.mark.parametrize('t', [0, 1, 999])
def test_gradients_in_float32_are_finite(t):
    clean, noisy, timesteps, noise, fraction = (
        x.float() if x.is_floating_point() else x for x in draw(t))
    fraction.requires_grad_()
    variational_bound(BETAS, clean, noisy, timesteps, 5 * noise,
                      fraction).sum().backward()
    assert fraction.grad.isfinite().all() and fraction.grad.any()
