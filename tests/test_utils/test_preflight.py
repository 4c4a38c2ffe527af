# Copyright (c) mmweightformer contributors. All rights reserved.
import pytest
from mmengine.config import Config

from mmweightformer.utils import find_missing_files

HTTP = dict(backend='http')


def missing(stages=('train', ), **cfg):
    return find_missing_files(Config(cfg), stages)


@pytest.mark.parametrize('dataset, expected', [
    (dict(data_root='no/', ann_file='a.json', data_prefix=dict(img='b/')),
     ['no/b/  (D.data_prefix.img)', 'no/a.json  (D.ann_file)']),
    (dict(data_root='', ann_file='no/a.json'), ['no/a.json  (D.ann_file)']),
    (dict(data_root='no', ann_file='/no/a.json'), ['/no/a.json  (D.ann_file)'
                                                   ]),
    (dict(data_root='no', data_prefix='b'), ['no/b  (D.data_prefix.img)']),
    (dict(type='RepeatDataset',
          dataset=dict(ann_file='no')), ['no  (D.dataset.ann_file)']),
    (dict(type='ConcatDataset',
          datasets=[dict(ann_file='no')]), ['no  (D.datasets[0].ann_file)']),
    (dict(type='ImageNet', data_root='no',
          split='val'), ['no/val  (D.data_prefix.img)']),
    (dict(
        type='mmpretrain.ImageNet',
        data_root='no',
        data_prefix='b',
        split='val'), ['no/b  (D.data_prefix.img)']),
    (dict(data_root='tests', ann_file='conftest.py'), []),
])
def test_names_what_is_missing(dataset, expected):
    field = 'train_dataloader.dataset'
    assert missing(train_dataloader=dict(dataset=dataset)) == [
        line.replace('(D', f'({field}') for line in expected
    ]


@pytest.mark.parametrize('dataset', [
    dict(type='CIFAR10', data_root='no', data_prefix=''),
    dict(data_root='no', ann_file='https://host/a.json'),
    dict(data_root='s3://no', ann_file='a.json'),
    dict(data_root='no', ann_file='a.json', backend_args=HTTP),
    dict(data_root='no', ann_file='a', pipeline=[dict(backend_args=HTTP)]),
    dict(data_root=None, ann_file=None, data_prefix=None),
    dict(data_root=['no'], ann_file=['no', 'no'], data_prefix=['no']),
])
def test_leaves_alone_what_it_cannot_judge(dataset):
    assert missing(train_dataloader=dict(dataset=dataset)) == []


def test_checkpoints():
    init = dict(type='Pretrained', checkpoint='no.pth')
    model = dict(backbone=dict(init_cfg=[init]))
    assert missing(model=model) == [
        'no.pth  (model.backbone.init_cfg[0].checkpoint)'
    ]
    # Testing takes all weights from the checkpoint that it is given.
    assert missing(('test', ), model=model) == []
    init['checkpoint'] = 'torchvision://resnet50'
    assert missing(model=dict(init_cfg=init)) == []
    assert missing(load_from='no.pth') == ['no.pth  (load_from)']


def test_only_the_stages_asked_for():
    loader = dict(dataset=dict(ann_file='no'))
    assert missing(('test', ), train_dataloader=loader) == []
    assert missing(('test', ),
                   test_evaluator=[dict(ann_file='no')
                                   ]) == ['no  (test_evaluator[0].ann_file)']


def test_what_generation_needs():
    features = dict(type='ClassifierFeatures', config='no.py', checkpoint='no')
    evaluator = dict(
        type='GenerationMetric', features=features, reference='no.npz')
    expected = [
        'no.npz  (test_evaluator.reference)',
        'no  (test_evaluator.features.checkpoint)'
    ]
    assert missing(('test', ), test_evaluator=evaluator) == expected
    assert missing(('train', ), test_evaluator=evaluator) == []
    features['checkpoint'] = 'tests/conftest.py'
    evaluator['reference'] = None
    assert missing(('test', ), test_evaluator=evaluator) == []


@pytest.mark.parametrize('stage', ['train', 'test'])
def test_autoencoder(stage):

    def lines(autoencoder):
        return missing((stage, ), model=dict(autoencoder=autoencoder))

    assert lines('no') == ['no  (model.autoencoder)']
    assert lines(None) == lines('tests') == []
