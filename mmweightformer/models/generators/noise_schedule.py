# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Any, Tuple

from ..checks import check_int
from ..optional import import_optional


def build_schedulers(noise_schedule: dict) -> Tuple[Any, Any]:
    """The schedulers of diffusers for DDPM and for DDIM.

    Args:
        noise_schedule (dict): The arguments that they have in common.

    Returns:
        tuple: A DDPMScheduler and a DDIMScheduler.

    Raises:
        ImportError: If diffusers is not installed.
        TypeError: If ``noise_schedule`` is not a dict, or its
            ``num_train_timesteps`` no int.
        ValueError: If ``noise_schedule`` has an argument that is not theirs,
            or a wrong value.
    """
    diffusers = import_optional('diffusers', 'ClassConditionalDiffusion')
    if not isinstance(noise_schedule, dict):
        raise TypeError('noise_schedule must be a dict, got '
                        f'{noise_schedule!r}')
    steps = noise_schedule.get('num_train_timesteps', 1000)
    check_int('noise_schedule.num_train_timesteps', steps, 2)
    try:
        # Noise is what the loss trains to predict.
        ddpm = diffusers.DDPMScheduler(
            **noise_schedule,
            prediction_type='epsilon',
            variance_type='learned_range',
            timestep_spacing='linspace')
        # Unlike DDPM's, its steps are taken to be of equal length.
        ddim = diffusers.DDIMScheduler(
            **noise_schedule,
            prediction_type='epsilon',
            timestep_spacing='trailing')
    except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f'noise_schedule: {error}; it must hold arguments '
                         "of diffusers' schedulers, got "
                         f'{noise_schedule}') from error
    if len(ddpm.betas) != steps:
        raise ValueError('noise_schedule.trained_betas must have as many '
                         f'variances as num_train_timesteps={steps}, got '
                         f'{len(ddpm.betas)}')
    if not ((ddpm.betas > 0) & (ddpm.betas < 1)).all():
        raise ValueError(
            'noise_schedule must have variances between 0 and 1, got '
            f'{ddpm.betas.min().item():g} to {ddpm.betas.max().item():g}')
    if not ddpm.config.clip_sample_range > 0:
        raise ValueError('noise_schedule.clip_sample_range must be positive, '
                         f'got {ddpm.config.clip_sample_range}')
    return ddpm, ddim
