# Copyright (c) mmweightformer contributors. All rights reserved.
import itertools
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseDataPreprocessor, BaseModel
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement, InstanceData
from torch import nn

from mmweightformer.analysis import stages
from mmweightformer.analysis.stages import (STAGES, StageClock,
                                            compare_test_loops,
                                            drop_pretrained, keep_first_images,
                                            set_image_size)


class Time:
    """A clock that stands still unless it is told to go on."""
    now = 0.

    def perf_counter(self):
        return self.now

    def work(self, seconds):
        self.now += seconds


@pytest.fixture
def time(monkeypatch):
    time = Time()
    monkeypatch.setattr(stages, 'time', time)
    return time


def test_stages_exclude_those_within(time):
    clock = StageClock()
    time.work(7)
    clock.start()
    with clock.stage('a'):
        time.work(1)
        with clock.stage('b'):
            time.work(2)
            with clock.stage('a'):
                time.work(4)
        time.work(8)
    time.work(16)
    clock.stamp()
    time.work(32)
    assert clock.seconds() == dict(a=13, b=2, other=16)


def test_a_stage_ends_where_its_method_raises(time):
    owner = SimpleNamespace(work=lambda: time.work(1) or 1 / 0)
    clock = StageClock()
    clock.wrap(owner, 'work', 'a')
    with pytest.raises(ZeroDivisionError):
        owner.work()
    time.work(2)
    clock.stamp()
    assert clock.seconds() == dict(a=1, other=2)


def test_on_cuda_nothing_waits_before_the_end(time, monkeypatch):
    """With stand-ins for events, in milliseconds."""
    waited = []

    class Event:

        def __init__(self, enable_timing):
            assert enable_timing and not waited

        def record(self):
            self.moment = time.now

        def elapsed_time(self, end):
            assert waited
            return 1e3 * (end.moment - self.moment)

    monkeypatch.setattr(torch.cuda, 'Event', Event)
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda: waited.append(1))
    clock = StageClock('cuda:0')
    with clock.stage('a'):
        time.work(3)
    assert clock.seconds() == dict(other=0, a=3)


# What each part of the toy takes, in seconds of the clock above.
COSTS = dict(
    load=1,
    preprocess=2,
    backbone=4,
    neck=8,
    forward=16,
    predict_by_feat=32,
    process=64,
    predict=128)


class Part(nn.Module):

    def __init__(self, name, work):
        super().__init__()
        self.name, self.work = name, work

    def forward(self, x):
        self.work(self.name)
        return x


class Head(Part):

    def predict(self, x):
        return self.predict_by_feat(self(x))

    def predict_by_feat(self, x):
        self.work('predict_by_feat')
        return x


class Preprocessor(BaseDataPreprocessor):

    def forward(self, data, training=False):
        data = super().forward(data, training)
        self.work('preprocess')
        return data


class Detector(BaseModel):
    """Finds as many instances in an image as its index says."""

    def __init__(self, work, heads=1):
        super().__init__(Preprocessor())
        self.data_preprocessor.work = self.work = work
        self.backbone = Part('backbone', work)
        self.neck = Part('neck', work)
        self.head = nn.ModuleList(Head('forward', work) for _ in range(heads))
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs, data_samples=None, mode='tensor'):
        x = self.neck(self.backbone(torch.stack(inputs)))
        for head in self.head:
            head.predict(x)
        self.work('predict')
        for sample in data_samples:
            sample.pred_instances = InstanceData(scores=torch.ones(sample.i))
        return data_samples


class Images(BaseDataset):

    def __init__(self, work, number):
        self.work, self.number = work, number
        super().__init__()

    def load_data_list(self):
        return [dict(i=i) for i in range(self.number)]

    def __getitem__(self, i):
        self.work('load')
        height = 8 + 8 * (i // 2)
        return dict(
            inputs=torch.zeros(3, height, 8),
            data_samples=BaseDataElement(metainfo=dict(i=i)))


class Metric(BaseMetric):

    def process(self, data_batch, data_samples):
        self.work('process')
        self.results.append(len(data_samples))

    def compute_metrics(self, results):
        raise AssertionError('the final sum is no part of the measurement')


COUNT = itertools.count()


class Pace(Hook):
    """Has each run of a loop take another factor of the time."""

    def __init__(self, factors):
        self.factors = iter(factors)

    def before_test_epoch(self, runner):
        self.factor = next(self.factors)


@pytest.fixture
def build(time, tmp_path):
    """A function that builds a runner of the toy."""

    def runner(factors=itertools.repeat(1), images=5, heads=1, **loader):

        def work(name):
            time.work(COSTS[name] * pace.factor)

        pace, metric = Pace(factors), Metric()
        metric.work = work
        return Runner(
            model=Detector(work, heads),
            work_dir=str(tmp_path),
            test_dataloader=dict(
                dataset=Images(work, images),
                sampler=dict(type='DefaultSampler', shuffle=False),
                batch_size=2,
                **loader),
            test_evaluator=[metric],
            test_cfg=dict(),
            custom_hooks=[pace],
            log_level='ERROR',
            experiment_name=f'test_stages_{next(COUNT)}')

    return runner


def test_speed_and_shares(build):
    """Of 5 images in 3 batches."""
    runner = build()
    speed, = compare_test_loops([runner], rounds=3)
    seconds = dict(
        data=5 * 1 + 3 * 2,
        backbone=3 * 4,
        neck=3 * 8,
        heads=3 * 16,
        metrics=3 * 64,
        other=3 * 128)
    seconds['post-processing'] = 3 * 32
    total = sum(seconds.values())
    assert speed.shares == pytest.approx(
        {stage: seconds[stage] / total
         for stage in STAGES})
    assert speed.images_per_second == pytest.approx(5 / total)
    assert speed.slowest == pytest.approx(speed.fastest)
    assert speed.ratio == 1
    assert speed.detections == (0 + 1 + 2 + 3 + 4) / 5
    assert speed.sizes == [(8, 8), (16, 8), (24, 8)]
    # Each round begins anew.
    assert runner.test_loop.evaluator.metrics[0].results == []


def test_loops_take_turns(build):
    runners, seen, progress = [build(), build(), build()], [], []
    for index, runner in enumerate(runners):
        runner.model.backbone.register_forward_hook(
            lambda *_, index=index: seen.append(index))
    compare_test_loops(runners, rounds=2, warmup=1, progress=progress.append)
    assert seen == 3 * (3 * [0] + 3 * [1] + 3 * [2])
    assert progress == 9 * [2, 2, 1]


def test_range_and_ratio_are_over_rounds(build):
    """But not over those of warm-up."""
    a, b = compare_test_loops(
        [build([999, 1, 2, 4]), build([1, 4, 4, 2])], rounds=3, warmup=1)
    assert [a.slowest / a.images_per_second,
            a.fastest / a.images_per_second] == pytest.approx([0.5, 2])
    assert b.slowest == pytest.approx(b.images_per_second)
    assert b.fastest == pytest.approx(2 * b.images_per_second)
    assert [a.ratio, b.ratio] == pytest.approx([1, 2])  # of 4, 2 and 1/2


def test_several_heads(build):
    one, two = compare_test_loops([build(), build(heads=2)], rounds=1)
    for stage in 'heads', 'post-processing':
        assert two.shares[stage] / two.shares['neck'] == pytest.approx(
            2 * one.shares[stage] / one.shares['neck'])


@pytest.mark.parametrize('options, error, message', [
    (dict(rounds=0), ValueError, 'rounds must be at least 1, got 0'),
    (dict(rounds=1.5), TypeError, 'rounds must be an int'),
    (dict(warmup=-1), ValueError, 'warmup must be at least 0'),
])
def test_wrong_numbers(build, options, error, message):
    with pytest.raises(error, match=message):
        compare_test_loops([build()], **options)


def test_wrong_runners(build):
    with pytest.raises(ValueError, match='runners must be .* got none'):
        compare_test_loops([])
    runner = build()
    del runner.model.backbone
    with pytest.raises(ValueError, match='a backbone, got Detector'):
        compare_test_loops([runner])
    with pytest.raises(ValueError, match='must have an image, got none'):
        compare_test_loops([build(images=1, drop_last=True)])


def test_what_fails_is_named(build):
    runner = build()
    runner.model.neck.forward = None
    with pytest.raises(
            RuntimeError, match='test_stages.* cannot be tested: TypeError: '):
        compare_test_loops([runner])


def config(*pipeline, **dataset):
    return Config(
        dict(
            test_dataloader=dict(
                num_workers=2,
                dataset=dict(type='A', pipeline=list(pipeline), **dataset))))


def test_first_images():
    cfg = config()
    keep_first_images(cfg, 3)
    assert cfg.test_dataloader.dataset.indices == [0, 1, 2]
    assert cfg.test_dataloader.persistent_workers
    # Within a wrapper, and without workers to keep.
    cfg = Config(
        dict(
            test_dataloader=dict(
                num_workers=0, dataset=dict(type='B', dataset=dict(
                    type='A')))))
    keep_first_images(cfg, 1)
    assert cfg.test_dataloader.dataset.dataset.indices == [0]
    assert 'persistent_workers' not in cfg.test_dataloader


def test_first_images_of_what():
    with pytest.raises(ValueError, match='number must be at least 1, got 0'):
        keep_first_images(config(), 0)
    with pytest.raises(ValueError, match='one test dataset, got 2'):
        keep_first_images(config(datasets=[1, 2]), 1)


LOAD, PACK = dict(type='LoadImageFromFile'), dict(type='PackSegInputs')


def test_image_size():
    cfg = config(LOAD,
                 dict(type='mmdet.Resize', scale_factor=2, keep_ratio=True),
                 dict(type='Pad', size=(9, 9)),
                 dict(type='Pad', size_divisor=32), PACK)
    set_image_size(cfg, (40, 60))
    assert cfg.test_dataloader.dataset.pipeline == [
        LOAD,
        dict(type='mmdet.Resize', scale=(60, 40), keep_ratio=True),
        dict(type='Pad', size=(60, 40)),
        dict(type='Pad', size_divisor=32), PACK
    ]


def test_image_size_without_resize():
    cfg = config(LOAD, PACK)
    set_image_size(cfg, (40, 60))
    assert cfg.test_dataloader.dataset.pipeline == [
        LOAD, dict(type='Resize', scale=(60, 40), keep_ratio=True), PACK
    ]


@pytest.mark.parametrize('pipeline, message', [
    ([], r'begin with loading an image, got \[\]'),
    ([PACK], 'begin with loading an image'),
    ([LOAD, dict(type='ResizeEdge', scale=8)], 'got ResizeEdge'),
    ([LOAD, dict(type='CenterCrop', crop_size=8)], 'got CenterCrop'),
    ([LOAD, dict(type='TestTimeAug', transforms=[])], 'got TestTimeAug'),
])
def test_image_size_of_other_pipelines(pipeline, message):
    with pytest.raises(ValueError, match=message):
        set_image_size(config(*pipeline), (40, 60))


def test_wrong_image_size():
    with pytest.raises(ValueError, match='size must be at least 1, got 0'):
        set_image_size(config(LOAD), (8, 0))
    with pytest.raises(TypeError, match='size must be an int'):
        set_image_size(config(LOAD), (8., 8))


def test_initialization_loads_nothing():
    weights, normal = dict(type='Pretrained', checkpoint='a'), dict(type='B')
    cfg = Config(
        dict(
            model=dict(
                init_cfg=normal,
                backbone=dict(init_cfg=weights),
                heads=[dict(init_cfg=[normal, weights]),
                       dict(init_cfg=None)])))
    drop_pretrained(cfg)
    assert cfg.model == dict(
        init_cfg=normal,
        backbone=dict(init_cfg=None),
        heads=[dict(init_cfg=[normal]),
               dict(init_cfg=None)])
