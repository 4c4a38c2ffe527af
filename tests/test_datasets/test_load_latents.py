# Copyright (c) mmweightformer contributors. All rights reserved.
import numpy as np
import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, TRANSFORMS, DefaultScope

SHAPE = (2, 2, 4, 3, 5)  # flips, moments, channels, height, width


def load(path, **kwargs):
    transform = TRANSFORMS.build(dict(type='LoadLatents', **kwargs))
    return transform(dict(img_path=str(path)))


@pytest.fixture
def folder(tmp_path):
    """Of each of two classes one file, of its own means."""
    for i, name in enumerate('ab'):
        (tmp_path / name).mkdir()
        moments = np.zeros(SHAPE, np.float16)
        moments[0, 0], moments[1, 0] = 10 + i, 20 + i
        np.save(tmp_path / name / 'x.png.npy', moments)
    return tmp_path


def test_draws_from_the_moments(tmp_path):
    rng = np.random.default_rng(0)
    moments = np.abs(rng.standard_normal(SHAPE)).astype(np.float16)
    np.save(tmp_path / 'x.npy', moments)
    np.random.seed(0)
    results = [load(tmp_path / 'x.npy', flip_prob=0.25) for _ in range(4000)]
    flips = np.array([result['flip'] for result in results])
    assert abs(flips.mean() - 0.25) < 0.03
    drawn = torch.stack([result['img'] for result in results])
    assert (drawn.dtype, drawn.shape[1:]) == (torch.float32, SHAPE[2:])
    for flip in 0, 1:
        mean, std = moments[flip].astype(np.float32)
        images = drawn[torch.from_numpy(flips == bool(flip))].numpy()
        error = std / len(images)**0.5
        assert (np.abs(images.mean(0) - mean) <= 5 * error).all()
        np.testing.assert_allclose(images.std(0), std, rtol=0.12)


@pytest.mark.parametrize('prob, mean', [(0, 10), (1, 20)])
def test_picks_image_or_mirror_image(folder, prob, mean):
    result = load(folder / 'a' / 'x.png.npy', flip_prob=prob)
    assert torch.equal(result['img'], torch.full(SHAPE[2:], float(mean)))
    assert result['flip'] == bool(prob)
    assert result['img_shape'] == SHAPE[3:]


def test_reaches_the_model_of_mmpretrain(folder):
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        dataset = DATASETS.build(
            dict(
                type='ImageNet',
                data_root=str(folder),
                metainfo=dict(classes=('a', 'b')),
                extensions=['.npy'],
                pipeline=[
                    dict(type='LoadLatents', flip_prob=1.),
                    dict(type='PackInputs')
                ]))
        preprocessor = MODELS.build(dict(type='ClsDataPreprocessor'))
    batch = preprocessor(pseudo_collate([dataset[0], dataset[1]]), True)
    expected = torch.tensor([20., 21.]).view(2, 1, 1, 1).expand(2, *SHAPE[2:])
    assert torch.equal(batch['inputs'], expected)
    assert [s.gt_label.item() for s in batch['data_samples']] == [0, 1]
    assert all(sample.flip for sample in batch['data_samples'])


def test_refuses(tmp_path):
    with pytest.raises(ValueError, match=r'flip_prob .* \[0, 1\], got 2'):
        load('x.npy', flip_prob=2)
    with pytest.raises(TypeError, match="flip_prob .* got 'a'"):
        load('x.npy', flip_prob='a')
    np.save(tmp_path / 'x.npy', np.zeros((4, 3, 5)))
    with pytest.raises(ValueError, match=r'x\.npy .* got \(4, 3, 5\)'):
        load(tmp_path / 'x.npy')
    (tmp_path / 'y.npy').write_bytes(b'none')
    with pytest.raises(ValueError, match=r'y\.npy cannot be read'):
        load(tmp_path / 'y.npy')
    (tmp_path / 'z.npy').write_bytes(b'')
    with pytest.raises(ValueError, match=r'z\.npy cannot be read'):
        load(tmp_path / 'z.npy')


@pytest.mark.parametrize('content', [
    np.full(SHAPE, np.nan, np.float16),
    np.full(SHAPE, -1., np.float16),
    np.full(SHAPE, 1e300),
    np.ones(SHAPE, np.complex64),
    np.full(SHAPE, 'a'),
])
def test_names_a_file_of_other_values(tmp_path, content):
    np.save(tmp_path / 'x.npy', content)
    with pytest.raises(ValueError, match=r'x\.npy must hold'):
        load(tmp_path / 'x.npy')


@pytest.mark.parametrize('size', [None, 60, 0])
def test_names_a_damaged_file(tmp_path, size):
    """An archive, whole and truncated, in place of an array."""
    np.savez(tmp_path / 'x.npz', np.ones(SHAPE))
    (tmp_path / 'x.npy').write_bytes((tmp_path / 'x.npz').read_bytes()[:size])
    with pytest.raises(ValueError, match=r'x\.npy cannot be read'):
        load(tmp_path / 'x.npy')
