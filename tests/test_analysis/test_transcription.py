# Copyright (c) mmweightformer contributors. All rights reserved.
import pytest
import torch
from helpers import SMALL, build_backbone, randomize, relative_error
from mmengine.registry import MODELS

from mmweightformer.analysis.transcription import LiteralWeightFormer

LITERAL = dict(type='LiteralWeightFormer', arch=SMALL)


@pytest.mark.parametrize('batch', [1, 3])
@pytest.mark.parametrize('shape', [(64, 64), (80, 80), (48, 112), (16, 32)])
def test_equals_weightformer(shape, batch):
    ours = randomize(build_backbone(out_indices=(1, -1))).double()
    literal = MODELS.build(dict(LITERAL, out_indices=(1, -1))).double()
    assert isinstance(literal, LiteralWeightFormer)
    literal.load_state_dict(ours.state_dict())
    images = torch.rand(batch, 3, *shape, dtype=torch.float64)
    outputs = []
    for model in ours, literal:
        x = images.clone().requires_grad_()
        outs = model(x)
        sum(out.square().sum() for out in outs).backward()
        grads = [param.grad for param in model.parameters()]
        outputs.append([*outs, x.grad, *grads])
    for actual, expected in zip(*outputs, strict=True):
        assert actual.shape == expected.shape
        assert relative_error(actual, expected) < 1e-10
    with torch.inference_mode():
        for out, (a, b) in zip(outs, zip(ours(images), literal(images))):
            assert relative_error(a, out) < 1e-10
            assert relative_error(b, out) < 1e-10


def test_stays_in_the_dtype():
    model = randomize(MODELS.build(LITERAL)).bfloat16()
    out, = model(torch.rand(2, 3, 32, 32, dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16 and out.isfinite().all()


def test_refuses():
    with pytest.raises(ValueError, match="out_type must be one of .'featmap'"):
        MODELS.build(dict(LITERAL, out_type='raw'))
    with pytest.raises(ValueError, match='patch_size=16, got 40×32'):
        MODELS.build(LITERAL)(torch.rand(1, 3, 40, 32))
