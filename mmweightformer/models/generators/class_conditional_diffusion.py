# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from ..checks import (check_cfg, check_choice, check_init_cfg, check_int,
                      check_rate, check_type)
from .autoencoder import Autoencoder
from .diffusion_transformer import DiffusionTransformer
from .noise_schedule import build_schedulers
from .variational_bound import variational_bound

SAMPLERS = ('ddpm', 'ddim')


def noise_seed(*parts: int) -> int:
    """One seed from several non-negative numbers, spread over 32 bits."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def _labels(data_samples: Sequence[BaseDataElement]) -> Tensor:
    return torch.cat([sample.gt_label for sample in data_samples])


@MODELS.register_module()
class ClassConditionalDiffusion(BaseModel):
    r"""Diffusion of images, or of latents of an autoencoder, by class.

    It is trained as DiT is: to predict the noise, and by the variational
    bound the variances,

    .. math::
        L = \lVert \epsilon - \epsilon(x_t, t, y) \rVert^2 + L_\mathrm{vb},

    of which the second term does not train the noise. Images are RGB in
    [-1, 1]: 127.5 is the mean and standard deviation of the data
    preprocessor.

    Args:
        denoiser (dict): Config of a :class:`DiffusionTransformer`.
        input_size (int | tuple[int, int]): Height and width of what the
            denoiser generates. Defaults to 32.
        noise_schedule (dict): Arguments of diffusers' schedulers, such as
            ``beta_schedule``, ``num_train_timesteps`` and ``clip_sample``.
            Defaults to DiT's: 1,000 linear steps, no clipping.
        drop_label_rate (float): Part of the labels that become the null class
            in training. Defaults to 0.1.
        autoencoder (str, optional): Local folder of an ``AutoencoderKL`` of
            diffusers. Images are encoded by it, and samples decoded; latents
            in place of images are taken as they are. Defaults to None: the
            denoiser is one of pixels.
        test_cfg (dict): What :meth:`sample` does where it is not told: the
            ``sampler``, 'ddpm' or 'ddim', ``num_steps``, ``guidance_scale``
            and the ``seed`` of :meth:`predict`. Defaults to DiT's: 250 steps
            of DDPM, no guidance, seed 0.
        data_preprocessor (dict, optional): Config of the data preprocessor.
        init_cfg (dict | list[dict], optional): Initialization config.

    Raises:
        ImportError: If diffusers is not installed.
        TypeError: If an argument has a wrong type.
        ValueError: If an argument has a wrong value.
    """
    default_test_cfg = dict(
        sampler='ddpm', num_steps=250, guidance_scale=1., seed=0)

    def __init__(self,
                 denoiser: dict,
                 input_size: Union[int, Tuple[int, int]] = 32,
                 noise_schedule: dict = dict(
                     beta_schedule='linear', clip_sample=False),
                 drop_label_rate: float = 0.1,
                 autoencoder: Optional[str] = None,
                 test_cfg: Optional[dict] = None,
                 data_preprocessor: Optional[dict] = None,
                 init_cfg: Union[dict, Sequence[dict], None] = None) -> None:
        check_init_cfg(init_cfg)
        if data_preprocessor is not None and not isinstance(
                data_preprocessor, nn.Module):
            data_preprocessor = check_cfg('data_preprocessor',
                                          data_preprocessor, MODELS.build)
        super().__init__(data_preprocessor, init_cfg)
        sizes = input_size
        if not isinstance(input_size, (tuple, list)):
            sizes = (input_size, input_size)
        if len(sizes) != 2:
            raise ValueError('input_size must be one size or two, got '
                             f'{input_size!r}')
        for size in sizes:
            check_int('input_size', size, 1)
        check_rate('drop_label_rate', drop_label_rate)
        self.input_size = tuple(sizes)
        self.drop_label_rate = drop_label_rate
        self.noise, self._ddim = build_schedulers(noise_schedule)
        self.test_cfg = dict(self.default_test_cfg)
        if test_cfg is not None:
            check_type('test_cfg', test_cfg, dict, 'a dict or None')
            self.test_cfg = self._sampling(**test_cfg)
        self.denoiser = check_cfg('denoiser', denoiser, MODELS.build)
        if not isinstance(self.denoiser, DiffusionTransformer):
            raise ValueError('denoiser must be a DiffusionTransformer, got '
                             f'{denoiser.get("type")!r}')
        patch_size = self.denoiser.patch_size
        if any(size % patch_size for size in sizes):
            raise ValueError("input_size must be a multiple of the denoiser's "
                             f'patch_size, {patch_size}, got {input_size}')
        self.autoencoder = None
        if autoencoder is not None:
            self.autoencoder = Autoencoder(autoencoder)

    @property
    def num_timesteps(self) -> int:
        """Number of steps from an image to noise."""
        return self.noise.config.num_train_timesteps

    def _sampling(self, **given) -> dict:
        """``test_cfg`` with what is given in place of it, checked."""
        for name in given:
            check_choice('a key of test_cfg', name, self.default_test_cfg)
        given = {k: v for k, v in given.items() if v is not None}
        cfg = {**self.test_cfg, **given}
        check_choice('sampler', cfg['sampler'], SAMPLERS)
        check_int('num_steps', cfg['num_steps'], 1, self.num_timesteps)
        check_int('seed', cfg['seed'], 0)
        scale = cfg['guidance_scale']
        if not isinstance(scale, (int, float)) or isinstance(scale, bool):
            raise TypeError(f'guidance_scale must be a number, got {scale!r}')
        if not 0 <= scale < float('inf'):
            raise ValueError('guidance_scale must be 0 or more and finite, '
                             f'got {scale}')
        return cfg

    def forward(
        self,
        inputs: Tensor,
        data_samples: Optional[Sequence[BaseDataElement]] = None,
        mode: str = 'tensor'
    ) -> Union[Tensor, Dict[str, Tensor], List[BaseDataElement]]:
        """Run the model in one of mmengine's modes.

        Args:
            inputs (Tensor): Images, or latents, (B, C, H, W).
            data_samples (Sequence[BaseDataElement], optional): With
                ``gt_label``; for 'predict' also with ``sample_idx``.
            mode (str): 'loss', 'predict', or 'tensor', which is the denoiser
                at the first timestep and without a class.

        Returns:
            dict | list | Tensor: As of :meth:`loss`, :meth:`predict` or the
            denoiser.
        """
        check_choice('mode', mode, ('loss', 'predict', 'tensor'))
        if mode == 'loss':
            return self.loss(inputs, data_samples)
        if mode == 'predict':
            return self.predict(inputs, data_samples)
        timesteps = inputs.new_zeros(inputs.shape[0], dtype=torch.long)
        return self.denoiser(inputs, timesteps,
                             timesteps + self.denoiser.num_classes)

    def loss(self, inputs: Tensor,
             data_samples: Sequence[BaseDataElement]) -> Dict[str, Tensor]:
        """The losses at a random timestep of each sample.

        Args:
            inputs (Tensor): Images, or latents, (B, C, H, W).
            data_samples (Sequence[BaseDataElement]): With ``gt_label``.

        Returns:
            dict[str, Tensor]: ``loss_mse``, of the noise, and ``loss_vb``, in
            bits per dimension.

        Raises:
            ValueError: If a label is not one of the denoiser's classes.
        """
        if self.autoencoder and self.autoencoder.is_image(inputs):
            inputs = self.autoencoder.encode(inputs)
        batch, device = inputs.shape[0], inputs.device
        labels = self._check_labels(_labels(data_samples)).to(device)
        if len(labels) != batch:
            raise ValueError('data_samples must hold a gt_label for each of '
                             f'{batch} inputs, got {len(labels)}')
        dropped = torch.rand(batch, device=device) < self.drop_label_rate
        labels = labels.masked_fill(dropped, self.denoiser.num_classes)
        timesteps = torch.randint(self.num_timesteps, (batch, ), device=device)
        # The bound has logarithms that half precision does not.
        inputs = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        noise = torch.randn_like(inputs)
        noisy = self.noise.add_noise(inputs, noise, timesteps)
        weight = self.denoiser.patch_embed.weight
        out = self.denoiser(noisy.to(weight.dtype), timesteps,
                            labels).to(inputs.dtype)
        predicted, fraction = out.chunk(2, dim=1)
        bound = variational_bound(self.noise.betas, inputs, noisy, timesteps,
                                  predicted.detach(), fraction)
        return dict(
            loss_mse=F.mse_loss(predicted, noise), loss_vb=bound.mean())

    def predict(
            self, inputs: Tensor,
            data_samples: Sequence[BaseDataElement]) -> List[BaseDataElement]:
        """Generate an image of each sample's class.

        Args:
            inputs (Tensor): Not looked at.
            data_samples (Sequence[BaseDataElement]): With ``gt_label`` and
                ``sample_idx``, which together with the seed of ``test_cfg``
                is all that its image depends on.

        Returns:
            list[BaseDataElement]: The same with ``pred_img``, RGB in uint8,
            (3, H, W).

        Raises:
            ValueError: If a label is not one of the denoiser's classes.
        """
        seeds = [
            noise_seed(self.test_cfg['seed'], sample.sample_idx)
            for sample in data_samples
        ]
        images = self.sample(_labels(data_samples), seeds)
        for sample, image in zip(data_samples, images):
            sample.set_field(image, 'pred_img')
        return list(data_samples)

    def _check_labels(self, labels: Tensor) -> Tensor:
        wrong = labels[(labels < 0) | (labels >= self.denoiser.num_classes)]
        if len(wrong):
            raise ValueError(
                f'a label must be from 0 to {self.denoiser.num_classes - 1}, '
                f'as num_classes={self.denoiser.num_classes}, got '
                f'{wrong[0].item()}')
        return labels

    @torch.no_grad()
    def sample(self,
               labels: Tensor,
               seeds: Sequence[int],
               guidance_scale: Optional[float] = None,
               num_steps: Optional[int] = None,
               sampler: Optional[str] = None,
               on_step: Optional[Callable[[], None]] = None) -> Tensor:
        """Generate images.

        Args:
            labels (Tensor): Classes, int64, (B,).
            seeds (Sequence[int]): Of the noise, one for each image, which
                depends on no other.
            guidance_scale (float, optional): Of classifier-free guidance; 1
                for none.
            num_steps (int, optional): Number of steps, up to that of
                training. DDIM's are of equal length where they divide that.
            sampler (str, optional): 'ddpm' or 'ddim', the one without noise.
            on_step (Callable, optional): Called behind each step.

        Returns:
            Tensor: RGB in uint8, (B, 3, H, W).

        Raises:
            TypeError: If an argument has a wrong type.
            ValueError: If an argument has a wrong value.
        """
        cfg = self._sampling(
            guidance_scale=guidance_scale,
            num_steps=num_steps,
            sampler=sampler)
        if labels.ndim != 1 or labels.dtype != torch.long:
            raise TypeError('labels must be int64, (B,), got '
                            f'{labels.dtype}, {tuple(labels.shape)}')
        self._check_labels(labels)
        if len(seeds) != len(labels):
            raise ValueError(f'there must be a seed for each of {len(labels)} '
                             f'labels, got {len(seeds)}')
        weight = self.denoiser.patch_embed.weight
        channels, labels = self.denoiser.in_channels, labels.to(weight.device)
        # On the CPU, so that every device makes the same images.
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        x = torch.stack([
            torch.randn(channels, *self.input_size, generator=generator)
            for generator in generators
        ]).to(weight.device)
        scheduler, kwargs = self._scheduler(cfg, generators)
        for t in scheduler.timesteps:
            out = self.denoiser.predict_guided(
                x.to(weight.dtype),
                t.to(x.device).expand(len(x)), labels,
                cfg['guidance_scale']).to(x.dtype)
            if cfg['sampler'] == 'ddim':
                out = out[:, :channels]
            x = scheduler.step(out, t, x, **kwargs).prev_sample
            if on_step is not None:
                on_step()
        if self.autoencoder:
            x = self.autoencoder.decode(x)
        if not x.isfinite().all():
            # As images they would be black, and scored.
            raise ValueError('samples are not finite: the weights are not, '
                             'or the training went wrong')
        return ((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)

    def _scheduler(self, cfg: dict, generators: list) -> Tuple:
        """Of diffusers, and the arguments of its steps."""
        kwargs = dict(generator=generators)
        scheduler = self.noise
        if cfg['sampler'] == 'ddim':
            scheduler = self._ddim
            # Without noise, and with the noise that a clipped image implies.
            kwargs = dict(
                use_clipped_model_output=self.noise.config.clip_sample)
        # Their steps are a state.
        scheduler = type(scheduler).from_config(scheduler.config)
        scheduler.set_timesteps(cfg['num_steps'])
        return scheduler, kwargs
