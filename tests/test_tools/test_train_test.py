# Copyright (c) mmweightformer contributors. All rights reserved.
"""tools/train.py and tools/test.py, as they are called."""
import fcntl
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from helpers import refusal, run_command, with_small_files

CONFIG = 'configs/digits/mask_rcnn_wf_t_digits.py'
COCO = 'configs/mask_rcnn_wf_t_coco.py'


def succeed(*command, **env):
    result = run_command(*command, **env)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    return result.stdout + result.stderr


def refused(*command, **env):
    return refusal(run_command(*command, **env))


@pytest.fixture(scope='module')
def data_root(tmp_path_factory):
    root = tmp_path_factory.mktemp('digits')
    succeed(sys.executable, 'tools/dataset_converters/digits.py', root,
            '--num-train', 10, '--num-val', 4, '--size', 64, '--layouts',
            'coco')
    return root / 'coco'


@pytest.fixture(scope='module')
def options(data_root):
    """Ten images, two iterations an epoch."""
    annotations = data_root / 'annotations' / 'instances_val2017.json'
    return [
        '--cfg-options', 'train_cfg.max_epochs=1', 'train_cfg.val_interval=1',
        'train_dataloader.batch_size=5', 'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False',
        'val_dataloader.num_workers=0',
        'val_dataloader.persistent_workers=False',
        'test_dataloader.num_workers=0',
        'test_dataloader.persistent_workers=False',
        f'train_dataloader.dataset.data_root={data_root}',
        f'val_dataloader.dataset.data_root={data_root}',
        f'test_dataloader.dataset.data_root={data_root}',
        f'val_evaluator.ann_file={annotations}',
        f'test_evaluator.ann_file={annotations}', 'randomness.seed=0',
        'default_hooks.logger.interval=1'
    ]


@pytest.fixture(scope='module')
def trained(options, tmp_path_factory):
    work_dir = tmp_path_factory.mktemp('trained')
    succeed(sys.executable, 'tools/train.py', CONFIG, '--work-dir', work_dir,
            *options)
    return work_dir


def logged(work_dir):
    """The training steps of the last run, as (epoch, iter, loss)."""
    scalars = max(work_dir.glob('*/vis_data/scalars.json'))
    steps = map(json.loads, scalars.read_text().splitlines())
    return [(s['epoch'], s['iter'], s['loss']) for s in steps if 'loss' in s]


def test_checkpoint_and_log(trained):
    assert (trained / 'last_checkpoint').read_text().endswith('epoch_1.pth')
    assert [step[:2] for step in logged(trained)] == [(1, 1), (1, 2)]
    assert (trained / Path(CONFIG).name).exists()


def test_same_seed_same_losses(trained, options, tmp_path):
    """Through the installed mmdet's own tool, which only has the config."""
    import mmdet
    tool = Path(mmdet.__file__).parent / '.mim' / 'tools' / 'train.py'
    succeed(sys.executable, tool, CONFIG, '--work-dir', tmp_path, *options)
    assert logged(tmp_path) == logged(trained)


@pytest.mark.parametrize('explicit', [False, True])
def test_resume(trained, options, explicit, tmp_path):
    checkpoint = trained / 'epoch_1.pth'
    os.symlink(checkpoint, tmp_path / 'epoch_1.pth')
    (tmp_path / 'last_checkpoint').write_text(str(checkpoint))
    resume = ['--resume', checkpoint] if explicit else ['--resume']
    succeed(sys.executable, 'tools/train.py', CONFIG, '--work-dir', tmp_path,
            *resume, *options, 'train_cfg.max_epochs=2')
    assert [step[:2] for step in logged(tmp_path)] == [(2, 3), (2, 4)]


def test_test(trained, options, tmp_path):
    out = tmp_path / 'predictions.pkl'
    output = succeed(sys.executable, 'tools/test.py', CONFIG,
                     trained / 'epoch_1.pth', '--work-dir', tmp_path, '--out',
                     out, '--show-dir', 'drawn', *options)
    table = output[output.index('\ncoco/bbox_mAP '):]
    assert '\ncoco/segm_mAP ' in table
    predictions = pickle.loads(out.read_bytes())
    assert len(predictions) == 4
    assert 'masks' in predictions[0]['pred_instances']
    assert len(list(tmp_path.glob('*/drawn/*.jpg'))) == 4


def test_test_time_augmentation(trained, options, tmp_path):
    command = [
        sys.executable, 'tools/test.py', CONFIG, trained / 'epoch_1.pth',
        '--work-dir', tmp_path, '--tta', *options
    ]
    assert 'no masks' in refused(*command)
    output = succeed(*command, 'model.roi_head.mask_head=None',
                     'test_evaluator.metric=bbox')
    assert 'coco/bbox_mAP ' in output


def test_coco_config_trains(data_root, options, tmp_path):
    """On scenes whose digits go by the names of ten classes of COCO."""
    from mmdet.datasets import CocoDataset
    root = tmp_path / 'coco'
    shutil.copytree(data_root, root)
    for path in (root / 'annotations').iterdir():
        annotations = json.loads(path.read_text())
        for category in annotations['categories']:
            name = CocoDataset.METAINFO['classes'][category['id'] - 1]
            category['name'] = name
        path.write_text(json.dumps(annotations))
    moved = [option.replace(str(data_root), str(root)) for option in options]
    succeed(sys.executable, 'tools/train.py', COCO, '--work-dir', tmp_path,
            *moved, 'train_dataloader.dataset.pipeline.2.scale=(160,160)',
            'val_dataloader.dataset.pipeline.1.scale=(160,160)',
            'train_dataloader.dataset.filter_cfg.min_size=1',
            'pretrained=None')
    assert [step[:2] for step in logged(tmp_path)] == [(1, 1), (1, 2)]
    assert (tmp_path / 'epoch_1.pth').exists()


def test_loss_that_is_not_finite_stops(options, tmp_path):
    error = refused(sys.executable, 'tools/train.py', CONFIG, '--work-dir',
                    tmp_path, *options, 'optim_wrapper.optimizer.lr=1e30')
    assert 'NaN or infinity in iteration 2: the output of backbone.' in error
    assert not list(tmp_path.glob('*.pth'))


def test_full_disk_stops(options, tmp_path):
    error = refused(
        *with_small_files(8192, sys.executable, 'tools/train.py', CONFIG,
                          '--work-dir', tmp_path, *options))
    assert 'a checkpoint could not be written (File too large' in error
    assert 'There is no former one' in error
    assert not list(tmp_path.glob('*.pth*'))


def test_one_training_a_folder(options, tmp_path):
    command = [
        sys.executable, 'tools/train.py', CONFIG, '--work-dir', tmp_path,
        *options
    ]
    with open(tmp_path / 'lock', 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert f'at work in {tmp_path}' in refused(*command)
    succeed(*command)


def test_without_default_hooks(options, tmp_path):
    succeed(sys.executable, 'tools/train.py', CONFIG, '--work-dir', tmp_path,
            *options, 'default_hooks.non_finite=None',
            'default_hooks.visualization=None', 'default_hooks.logger=None')
    assert (tmp_path / 'epoch_1.pth').exists()
    assert not list(tmp_path.glob('*/vis_data/scalars.json'))


def test_no_such_default_hook():
    error = refused(sys.executable, 'tools/train.py', CONFIG, '--cfg-options',
                    'default_hooks.non_finit=None')
    assert 'default_hooks.non_finit is None' in error
    assert 'non_finite' in error


def test_missing_data_is_named(tmp_path):
    error = refused(sys.executable, 'tools/train.py', COCO, '--work-dir',
                    tmp_path, '--cfg-options',
                    'train_dataloader.dataset.data_root=nowhere/coco',
                    'val_dataloader.dataset.data_root=nowhere/coco')
    for path in ('nowhere/coco/annotations/instances_train2017.json',
                 'nowhere/coco/train2017/', 'nowhere/coco/val2017/',
                 'train_dataloader.dataset.ann_file', 'README.md'):
        assert path in error


def test_missing_checkpoint_is_named(options, tmp_path):
    for command in (['tools/test.py', CONFIG, 'no.pth'],
                    ['tools/train.py', CONFIG, '--resume', 'no.pth']):
        error = refused(sys.executable, *command, '--work-dir', tmp_path,
                        *options)
        assert 'no.pth  (load_from)' in error


@pytest.mark.parametrize('config', [CONFIG, COCO])
def test_missing_pretrained_checkpoint_is_named(config, options, tmp_path):
    error = refused(sys.executable, 'tools/train.py', config, '--work-dir',
                    tmp_path, *options, 'pretrained=no.pth')
    assert 'no.pth  (model.backbone.init_cfg.checkpoint)' in error
    assert 'pretrained=None' in error


def test_pretrained_reaches_the_backbone(trained, options, tmp_path):
    """The weights of a training checkpoint, before the first step."""
    checkpoint = trained / 'epoch_1.pth'
    succeed(sys.executable, 'tools/train.py', CONFIG, '--work-dir', tmp_path,
            *options, f'pretrained={checkpoint}',
            'optim_wrapper.optimizer.lr=0.')
    start, end = (
        torch.load(path, weights_only=False)['state_dict']
        for path in (checkpoint, tmp_path / 'epoch_1.pth'))
    for name in start:
        if name.startswith('backbone.'):
            assert torch.equal(start[name], end[name]), name
    assert not torch.equal(start['rpn_head.rpn_cls.weight'],
                           end['rpn_head.rpn_cls.weight'])


def test_pretrained_needs_a_backbone(tmp_path):
    config = tmp_path / 'c.py'
    config.write_text("model = dict(type='ToyModel')\n")
    assert 'pretrained is for a model with a backbone' in refused(
        sys.executable, 'tools/train.py', config, '--cfg-options',
        'pretrained=None')


def test_missing_image_is_named(trained, data_root, options, tmp_path):
    image = sorted((data_root / 'val2017').iterdir())[0]
    moved = image.rename(tmp_path / 'moved')
    try:
        error = refused(sys.executable, 'tools/test.py', CONFIG,
                        trained / 'epoch_1.pth', '--work-dir', tmp_path,
                        *options, 'test_dataloader.num_workers=1')
        assert str(image.parent) in error
        assert image.name in error
    finally:
        moved.rename(image)


@pytest.mark.parametrize('arguments, message', [
    (['train.py', 'no.py'], 'no.py'),
    (['test.py', CONFIG, 'a.pth', '--out', 'a.json'], '.pkl'),
    (['train.py'], 'config'),
    (['train.py', CONFIG, '--launcher', 'ssh'], 'slurm'),
    (['train.py', CONFIG, '--launcher', 'pytorch'], 'RANK is not set'),
    (['train.py', CONFIG, '--cfg-options', 'default_scope.x=1'
      ], f'{CONFIG} cannot be loaded'),
    (['train.py', 'configs/metafiles/object_detection.yml'], 'has no model'),
    (['test.py', CONFIG, 'LICENSE'], 'LICENSE is not a checkpoint'),
    (['test.py', CONFIG, 'tests'], 'tests is not a file'),
])
def test_wrong_arguments(arguments, message):
    assert message in refused(sys.executable, f'tools/{arguments[0]}',
                              *arguments[1:])


@pytest.mark.parametrize(
    'script',
    ['dist_train.sh', 'dist_test.sh', 'slurm_train.sh', 'slurm_test.sh'])
def test_launch_scripts_need_arguments(script):
    assert 'Usage: ' in refused('bash', f'tools/{script}', 'c.py')


@pytest.mark.parametrize('script, arguments, expected', [
    ('dist_train.sh', ['c.py', 4, '--amp', '--work-dir', 'a b'],
     'train.py c.py --launcher pytorch --amp --work-dir a b'),
    ('dist_test.sh', ['c.py', 'c.pth', 4, '--tta'
                      ], 'test.py c.py c.pth --launcher pytorch --tta'),
    ('slurm_train.sh', ['part', 'job', 'c.py', 'work', '--amp'],
     'train.py c.py --work-dir=work --launcher slurm --amp'),
    ('slurm_test.sh', ['part', 'job', 'c.py', 'c.pth', '--tta'
                       ], 'test.py c.py c.pth --launcher slurm --tta'),
])
def test_launch_scripts(script, arguments, expected, tmp_path):
    """With stand-ins for the launchers, which print their arguments."""
    for name in 'python', 'srun':
        stand_in = tmp_path / name
        stand_in.write_text('#!/bin/sh\necho "$@"\n')
        stand_in.chmod(0o755)
    output = succeed(
        'bash',
        f'tools/{script}',
        *arguments,
        PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert expected in output
    gpus = '--nproc_per_node=4' if 'dist' in script else '--ntasks=8'
    assert gpus in output
