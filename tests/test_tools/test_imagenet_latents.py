# Copyright (c) mmweightformer contributors. All rights reserved.
import cv2
import numpy as np
import pytest
import torch
from helpers import run_tool
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope

diffusers = pytest.importorskip('diffusers')

TOOL = 'tools/dataset_converters/imagenet_latents.py'
OPTIONS = ['--size', 16, '--batch-size', 2, '--num-workers', 0]


def build_autoencoder(path):
    """A random one, 2 pixels a latent."""
    autoencoder = diffusers.AutoencoderKL(
        down_block_types=['DownEncoderBlock2D'] * 2,
        up_block_types=['UpDecoderBlock2D'] * 2,
        block_out_channels=[4, 8],
        norm_num_groups=2,
        layers_per_block=1,
        scaling_factor=0.5)
    autoencoder.save_pretrained(path)
    return autoencoder.eval()


@pytest.fixture
def folder(tmp_path):
    """An autoencoder, and three images of two classes."""
    build_autoencoder(tmp_path / 'vae')
    rng = np.random.default_rng(0)
    for name in 'a/0.JPEG', 'a/0.png', 'b/1.png':
        path = tmp_path / 'src' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = cv2.resize(rng.integers(0, 256, (4, 6, 3), np.uint8), (60, 40))
        cv2.imwrite(str(path), image)
    return tmp_path


def run(folder, *options):
    return run_tool(TOOL, folder / 'vae', folder / 'src', folder / 'dst',
                    *OPTIONS, *options)


@torch.no_grad()
def expected_moments(path, vae, flip):
    """Of the image as the training's config makes it, or its mirror image."""
    pipeline = Config.fromfile('configs/dit_s_2_in1k_256.py').train_pipeline
    for step in pipeline:
        if step.type == 'RandomFlip':
            step.prob = float(flip)
        for key in {'scale', 'crop_size'} & step.keys():
            step[key] = 16
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        inputs = Compose(pipeline)(dict(img_path=str(path)))['inputs']
    image = inputs.flip(0)[None].float() / 127.5 - 1
    latents = diffusers.AutoencoderKL.from_pretrained(vae).encode(image)
    latents = latents.latent_dist
    return 0.5 * torch.cat([latents.mean, latents.std])


def test_moments_of_image_and_mirror_image(folder):
    assert run(folder) is None
    images = [path for path in (folder / 'src').rglob('*') if path.is_file()]
    files = sorted((folder / 'dst').rglob('*.npy'))
    assert len(files) == len(images) == 3
    for image in images:
        path = folder / 'dst' / image.parent.name / f'{image.name}.npy'
        moments = np.load(path)
        assert (moments.dtype, moments.shape) == (np.float16, (2, 2, 4, 8, 8))
        for flip in 0, 1:
            expected = expected_moments(image, folder / 'vae', flip)
            torch.testing.assert_close(
                torch.from_numpy(moments[flip]).float(),
                expected,
                rtol=2e-3,
                atol=1e-4)
    assert not list((folder / 'dst').rglob('*.part'))


def test_goes_on_where_it_was(folder, capsys):
    assert run(folder) is None
    first, second, third = sorted((folder / 'dst').rglob('*.npy'))
    made = second.read_bytes()
    first.write_bytes(b'kept')
    second.unlink()
    assert run(folder) is None
    assert '3 images, 2 of them done' in capsys.readouterr().out
    assert first.read_bytes() == b'kept'
    assert second.read_bytes() == made
    assert run(folder) is None  # with nothing to do


def test_names_images_that_cannot_be_read(folder):
    bad = folder / 'src' / 'a' / 'bad.png'
    bad.write_bytes(b'none')
    (folder / 'src' / 'a' / 'empty.png').write_bytes(b'')
    error = run(folder)
    assert '2 images cannot be read' in error
    assert str(bad) in error and 'empty.png' in error
    assert len(list((folder / 'dst').rglob('*.npy'))) == 3


def test_refuses_to_mix(folder):
    assert run(folder) is None
    error = run(folder, '--size', 32)
    assert "'size': 16" in error and 'name another folder' in error


def test_refuses(folder, capsys):
    assert '--size must be a multiple of 2, ' in run(folder, '--size', 15)
    assert run(folder, '--batch-size', 0) == 2
    assert '--batch-size must be at least 1, got 0' in capsys.readouterr().err
    assert '--device none' in run(folder, '--device', 'none')
    arguments = [folder / 'src', folder / 'dst', *OPTIONS]
    assert 'missing: no' in run_tool(TOOL, 'no', *arguments)
    assert 'holds no AutoencoderKL' in run_tool(TOOL, folder / 'src',
                                                *arguments)
    assert 'no such folder' in run_tool(TOOL, folder / 'vae', 'no', *OPTIONS,
                                        folder / 'dst')
    assert 'holds no .jpg' in run_tool(TOOL, folder / 'vae', folder / 'vae',
                                       folder / 'dst', *OPTIONS)
    assert not (folder / 'dst').exists()
