# Copyright (c) mmweightformer contributors. All rights reserved.
import copy
import sys

import pytest
import torch
from helpers import randomize
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement

diffusers = pytest.importorskip('diffusers')

ARCH = dict(embed_dims=16, depth=3, patch_size=2)


def build(**kwargs):
    denoiser = dict(
        type='WeightFormerDiT', arch=ARCH, in_channels=3, num_classes=5)
    denoiser.update(kwargs.pop('denoiser', {}))
    model = MODELS.build(
        dict(
            dict(
                type='ClassConditionalDiffusion',
                denoiser=denoiser,
                input_size=(4, 6),
                test_cfg=dict(num_steps=4)), **kwargs))
    # At its published initialization a denoiser returns zeros.
    randomize(model.denoiser)
    return model


def data_samples(labels):
    return [
        BaseDataElement(
            metainfo=dict(sample_idx=i), gt_label=torch.tensor([label]))
        for i, label in enumerate(labels)
    ]


def test_loss_is_that_of_the_denoiser():
    model, x = build(drop_label_rate=0.), torch.rand(4, 3, 4, 6) * 2 - 1
    calls = []
    model.denoiser.register_forward_hook(lambda m, args, out: calls.append(
        (args, out)))
    losses = model(x, data_samples([0, 1, 2, 4]), mode='loss')
    ((noisy, timesteps, labels), out), = calls
    assert labels.tolist() == [0, 1, 2, 4]
    kept = (1 - torch.linspace(1e-4, 0.02, 1000)).cumprod(0)[timesteps]
    kept = kept[:, None, None, None]
    noise = (noisy - kept.sqrt() * x) / (1 - kept).sqrt()
    assert noise.std() == pytest.approx(1, abs=0.2)
    torch.testing.assert_close(
        losses['loss_mse'], (out[:, :3] - noise).square().mean(),
        rtol=1e-4,
        atol=0)


def test_the_bound_trains_the_variance_alone():
    model = build()
    losses = model(
        torch.rand(4, 3, 4, 6), data_samples([0, 1, 2, 4]), mode='loss')
    bias = model.denoiser.final_layer.linear.bias
    # A token is p × p × 2C, the noise first.
    mse, bound = (
        torch.autograd.grad(losses[name], bias,
                            retain_graph=True)[0].view(4, 6)
        for name in ('loss_mse', 'loss_vb'))
    assert mse[:, :3].all() and not mse[:, 3:].any()
    assert bound[:, 3:].all() and not bound[:, :3].any()


def test_labels_are_dropped_at_the_rate():
    model = build(drop_label_rate=0.3)
    seen = []
    model.denoiser.register_forward_pre_hook(
        lambda m, args: seen.append(args[2]))
    model(torch.rand(2000, 3, 4, 6), data_samples([2] * 2000), mode='loss')
    null = (seen[0] == 5).float().mean().item()
    assert null == pytest.approx(0.3, abs=0.05)
    assert set(seen[0].tolist()) == {2, 5}


@pytest.mark.parametrize('sampler', ['ddpm', 'ddim'])
def test_a_sample_depends_on_its_class_and_seed_alone(sampler):
    clipped = dict(beta_schedule='linear', clip_sample=True)
    model = build(noise_schedule=clipped).eval()
    labels, seeds = torch.tensor([0, 1, 1, 3]), [5, 6, 7, 5]
    kwargs = dict(sampler=sampler, guidance_scale=2.)
    images = model.sample(labels, seeds, **kwargs)
    assert images.dtype == torch.uint8 and images.shape == (4, 3, 4, 6)
    for i in range(4):
        alone = model.sample(labels[i:i + 1], seeds[i:i + 1], **kwargs)[0]
        assert (alone.int() - images[i].int()).abs().max() <= 1  # rounding
    assert (images[1] != images[2]).any() and (images[0] != images[3]).any()


def test_predict_sets_an_image_of_each_label():
    model = build(test_cfg=dict(num_steps=2, seed=3)).eval()
    samples = model(
        torch.zeros(3, 3, 9, 9), data_samples([4, 0, 4]), mode='predict')
    assert [s.pred_img.shape for s in samples] == [(3, 4, 6)] * 3
    assert (samples[0].pred_img != samples[2].pred_img).any()
    other = build(test_cfg=dict(num_steps=2, seed=4)).eval()
    other.load_state_dict(model.state_dict())
    again = other(
        torch.zeros(3, 3, 9, 9), data_samples([4, 0, 4]), mode='predict')
    assert (samples[0].pred_img != again[0].pred_img).any()


def oracle(model, clean):
    """Make the denoiser know the image that there is."""
    kept = model.noise.alphas_cumprod

    def forward(x, timesteps, labels):
        a = kept[timesteps][:, None, None, None]
        known = clean.repeat(len(x) // len(clean), 1, 1, 1)
        noise = (x - a.sqrt() * known) / (1 - a).sqrt()
        return torch.cat([noise, -torch.ones_like(noise)], dim=1)

    model.denoiser.forward = forward


@pytest.mark.parametrize('sampler', ['ddpm', 'ddim'])
@pytest.mark.parametrize('steps', [1, 3, 250, 1000])
def test_a_perfect_denoiser_gives_the_image(sampler, steps):
    model = build().eval()
    levels = torch.randint(256, (2, 3, 4, 6))
    oracle(model, levels / 127.5 - 1)
    images = model.sample(
        torch.tensor([0, 1]), [0, 1],
        sampler=sampler,
        num_steps=steps,
        guidance_scale=3.)
    assert (images.int() - levels).abs().max() <= 1


def test_steps_are_reported():
    steps = []
    build().eval().sample(
        torch.tensor([0]), [0], num_steps=7, on_step=lambda: steps.append(1))
    assert len(steps) == 7


@pytest.fixture
def autoencoder(tmp_path):
    module = diffusers.AutoencoderKL(
        block_out_channels=(8, 8),
        down_block_types=('DownEncoderBlock2D', ) * 2,
        up_block_types=('UpDecoderBlock2D', ) * 2,
        norm_num_groups=4,
        latent_channels=4,
        scaling_factor=0.5)
    module.save_pretrained(tmp_path)
    return module.eval(), tmp_path


def test_latents_of_a_local_autoencoder(autoencoder):
    module, path = autoencoder
    model = build(autoencoder=str(path), denoiser=dict(in_channels=4)).eval()
    assert not any('autoencoder' in name for name in model.state_dict())
    seen = []
    model.denoiser.register_forward_pre_hook(lambda m, args: seen.append(args))
    samples = data_samples([0, 1])
    # Images are encoded, and latents are taken as they are.
    model(torch.rand(2, 3, 8, 12), samples, mode='loss')
    model(torch.rand(2, 4, 4, 6), samples, mode='loss')
    assert [x.shape for x, *_ in seen] == [(2, 4, 4, 6)] * 2
    latents = torch.randn(2, 4, 4, 6)
    oracle(model, latents)
    images = model.sample(torch.tensor([0, 1]), [0, 1])
    with torch.no_grad():
        expected = module.decode(latents / 0.5).sample
    expected = ((expected + 1) * 127.5).clamp(0, 255)
    assert (images - expected).abs().max() <= 1.01
    # An average of the weights shares it.
    assert copy.deepcopy(model).autoencoder is model.autoencoder


@pytest.mark.parametrize('kwargs, message', [
    (dict(test_cfg=dict(sampler='euler')), "sampler must be one of .*'euler'"),
    (dict(test_cfg=dict(num_steps=1001)), 'num_steps must be from 1 to 1000'),
    (dict(test_cfg=dict(guidance_scale=-1)), 'guidance_scale must be 0'),
    (dict(test_cfg=dict(steps=3)), "a key of test_cfg must be .*'steps'"),
    (dict(noise_schedule=dict(beta_schedule='no')), 'noise_schedule: .*no'),
    (dict(noise_schedule=dict(betas=3)), 'noise_schedule: .*betas'),
    (dict(input_size=0), 'input_size must be at least 1'),
    (dict(input_size=(1, 2, 3)), 'input_size must be one size or two'),
    (dict(drop_label_rate=1.), 'drop_label_rate must be in'),
    (dict(autoencoder=3), 'autoencoder must be the path'),
])
def test_wrong_arguments_are_named(kwargs, message):
    with pytest.raises((TypeError, ValueError), match=message):
        build(**kwargs)


def test_wrong_labels_are_named():
    with pytest.raises(ValueError, match='from 0 to 4, as num_classes=5, got'):
        build()(torch.rand(1, 3, 4, 6), data_samples([5]), mode='loss')


def test_missing_autoencoder_is_named(tmp_path):
    model = build(
        autoencoder=str(tmp_path / 'no'), denoiser=dict(in_channels=4))
    with pytest.raises(FileNotFoundError, match='autoencoder is missing'):
        model(torch.rand(1, 3, 8, 8), data_samples([0]), mode='loss')
    model = build(autoencoder=str(tmp_path), denoiser=dict(in_channels=4))
    with pytest.raises(ValueError, match='holds no AutoencoderKL'):
        model(torch.rand(1, 3, 8, 8), data_samples([0]), mode='loss')


def test_says_that_diffusers_is_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, 'diffusers', None)
    with pytest.raises(ImportError, match=r'\.\[optional\]'):
        build()


@pytest.mark.parametrize('schedule', [
    dict(prediction_type='v_prediction'),
    dict(variance_type='fixed_small'),
    dict(beta_start=-1.),
    dict(beta_start=2., beta_end=5.),
    dict(beta_start=0., beta_end=0.),
    dict(clip_sample_range=0),
    dict(trained_betas=[.1, .2, .3]),
    dict(beta_schedule='sigmoid'),
    dict(num_train_timesteps=-4),
    dict(steps=10),
])
def test_refuses_a_wrong_noise_schedule(schedule):
    with pytest.raises(ValueError, match='noise_schedule'):
        build(noise_schedule=schedule)


@pytest.mark.parametrize('kwargs, message', [
    (dict(input_size=7), 'multiple of the denoiser.* patch_size, 2, got 7'),
    (dict(input_size=(8, 7)), r'patch_size, 2, got \(8, 7\)'),
    (dict(input_size=None), 'input_size must be an int .* got None'),
    (dict(noise_schedule=5), 'noise_schedule must be a dict, got 5'),
])
def test_refuses_before_training(kwargs, message):
    with pytest.raises((TypeError, ValueError), match=message):
        build(**kwargs)


def test_every_input_has_a_label():
    with pytest.raises(ValueError, match='each of 2 inputs, got 1'):
        build()(torch.rand(2, 3, 4, 6), data_samples([1]), mode='loss')


@pytest.mark.parametrize('labels', [[5], [-1], [0.5], [[1]]])
def test_refuses_labels_that_are_none(labels):
    with pytest.raises((TypeError, ValueError), match='label'):
        build().sample(torch.tensor(labels), [0])


def test_samples_that_are_not_finite_are_no_images():
    model = build()
    model.denoiser.final_layer.linear.bias.data.fill_(float('nan'))
    with pytest.raises(ValueError, match='not finite'):
        model.sample(torch.tensor([1]), [0])


def test_trains_in_half_precision():
    model = build(drop_label_rate=0.).bfloat16()
    losses = model(
        torch.rand(2, 3, 4, 6).bfloat16(), data_samples([0, 1]), mode='loss')
    sum(losses.values()).backward()
    assert all(loss.isfinite() for loss in losses.values())
    assert all(p.grad.isfinite().all() for p in model.parameters())
