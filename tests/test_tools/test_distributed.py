# Copyright (c) mmweightformer contributors. All rights reserved.
"""Several processes on a CPU, as tools/dist_train.sh starts them."""
import atexit
import json
import os
import subprocess
import sys

import pytest
import torch
from helpers import free_port, run_tool
from mmengine.config import Config
from torch import distributed

CLASSIFIER = """
_base_ = 'mmpretrain::_base_/default_runtime.py'
custom_imports = dict(imports=['mmweightformer'])
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(num_classes=10, mean=[127.5] * 3, std=[127.5] * 3),
    backbone=dict(
        type='WeightFormer',
        arch=dict(embed_dims=32, depth=5),
        out_type='avg_featmap'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=32,
        loss=dict(type='CrossEntropyLoss')))
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CustomDataset',
        data_root='{root}/imagenet/train',
        pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')]))
val_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CustomDataset',
        data_root='{root}/imagenet/val',
        pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')]))
val_evaluator = dict(type='Accuracy', topk=5)
train_cfg = dict(by_epoch=False, max_iters=10, val_interval=10)
val_cfg = dict()
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=5e-4, weight_decay=0.05))
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=1))
randomness = dict(seed=0)
"""
DETECTOR = 'configs/digits/mask_rcnn_wf_t_digits.py'


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    root = tmp_path_factory.mktemp('digits')
    assert run_tool('tools/dataset_converters/digits.py', root, '--size', 64,
                    '--num-train', 4, '--num-val', 1, '--imagenet-train', 20,
                    '--imagenet-val', 11, '--layouts', 'imagenet',
                    'coco') is None
    return root


def run(*command, **env):
    """Run a command where there is no accelerator, and return its output."""
    result = subprocess.run([str(part) for part in command],
                            capture_output=True,
                            text=True,
                            env={
                                **os.environ, 'CUDA_VISIBLE_DEVICES': '-1',
                                'OMP_NUM_THREADS': '1',
                                **env
                            })
    output = result.stdout + result.stderr
    assert result.returncode == 0, output[-4000:]
    return output


def dist_train(tmp_path, config, *options, **env):
    """Train in two processes of this interpreter."""
    python = tmp_path / 'python'
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    port = free_port()
    output = run(
        'bash',
        'tools/dist_train.sh',
        config,
        2,
        *options,
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        PORT=str(port),
        **env)
    assert 'No accelerator: 2 processes on CPUs, by gloo' in output
    assert 'destroy_process_group' not in output
    return output


def parameters(work_dir, iteration):
    path = work_dir / f'iter_{iteration}.pth'
    state = torch.load(path, weights_only=False)['state_dict']
    return torch.cat([value.flatten() for value in state.values()])


def last_scalars(work_dir):
    path, = work_dir.glob('*/vis_data/scalars.json')
    return json.loads(path.read_text().splitlines()[-1])


def test_two_processes_equal_one_of_the_double_batch(digits, tmp_path):
    config = tmp_path / 'classifier.py'
    config.write_text(CLASSIFIER.replace('{root}', str(digits)))
    one, two = tmp_path / 'one', tmp_path / 'two'
    run(sys.executable, 'tools/train.py', config, '--work-dir', one)
    dist_train(tmp_path, config, '--work-dir', two, '--cfg-options',
               'train_dataloader.batch_size=2')
    expected = parameters(one, 10)
    torch.testing.assert_close(
        parameters(two, 10), expected, rtol=0, atol=1e-5)
    # Far less than what nine steps change.
    assert (parameters(one, 1) - expected).abs().max() > 1e-3
    # The eleven images, each once, though one process has one less.
    name = 'accuracy/top5'
    assert last_scalars(two)[name] == last_scalars(one)[name] > 0


def test_detector_has_no_unused_parameters(digits, tmp_path):
    """Or the second step raises an error."""
    options = [
        'model.backbone.arch._delete_=True',
        'model.backbone.arch.embed_dims=32', 'model.backbone.arch.depth=4',
        'model.neck.in_channels=32', 'train_dataloader.batch_size=1',
        'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False', 'val_cfg=None',
        'val_dataloader=None', 'val_evaluator=None', 'train_cfg.max_epochs=1',
        f'train_dataloader.dataset.data_root={digits}/coco',
        'find_unused_parameters=False', 'default_hooks.logger.interval=1'
    ]
    output = dist_train(tmp_path, DETECTOR, '--work-dir', tmp_path / 'work',
                        '--cfg-options', 'pretrained=None', *options)
    assert 'Epoch(train) [1][2/2]' in output


def test_all_processes_skip_alike(digits, tmp_path):
    """And the message says on which of them the loss was not finite."""
    (tmp_path / 'one_rank.py').write_text("""
from mmengine.dist import get_rank
from mmengine.registry import HOOKS
from mmengine.hooks import Hook

@HOOKS.register_module()
class OneRank(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if get_rank() == 1 and runner.iter == 2:
            data_batch['inputs'][0] = data_batch['inputs'][0] * float('nan')
""")
    config = tmp_path / 'classifier.py'
    config.write_text(
        CLASSIFIER.replace('{root}', str(digits)).replace(
            "imports=['mmweightformer']",
            "imports=['mmweightformer', 'one_rank']") +
        "custom_hooks = [dict(type='OneRank'), "
        "dict(type='NonFiniteHook', action='skip')]")
    output = dist_train(
        tmp_path,
        config,
        '--work-dir',
        tmp_path / 'work',
        '--cfg-options',
        'train_cfg.max_iters=4',
        'train_cfg.val_interval=4',
        PYTHONPATH=str(tmp_path))
    for word in 'in iteration 3', 'rank 1: inputs of image', 'patch_embed':
        assert word in output
    weights = [parameters(tmp_path / 'work', i) for i in range(1, 5)]
    assert all(weight.isfinite().all() for weight in weights)
    assert [torch.equal(a, b)
            for a, b in zip(weights, weights[1:])] == [False, True, False]


# What the second of two processes does, while the first one waits for it.
DIES = """
import os, sys, time
sys.path.insert(0, 'tools')
from mmengine.config import Config
from process_group import init_process_group_on_cpu
from torch import distributed

init_process_group_on_cpu(Config(dict(
    launcher='pytorch', env_cfg=dict(dist_cfg=dict(timeout={timeout})))))
distributed.barrier()
if os.environ['RANK'] == '1':
    {what}
distributed.barrier()
"""

# As a tool does, with a message and no traceback.
STOPS = """from common import plain_errors
    with plain_errors():
        raise OSError(28, 'the disk is full')"""


@pytest.mark.parametrize(
    'what, timeout, words', [
        ('os.kill(os.getpid(), 9)', 60, 'is gone: it was killed'),
        ('pid = os.fork() or time.sleep(30); os.kill(os.getpid(), 9)', 60,
         'is gone: it was killed'),
        ('raise ValueError("a bug")', 60,
         'is gone: it was killed, or has ended'),
        (STOPS, 60, 'is gone: it was killed, or has ended'),
        ('os.kill(os.getpid(), 19)', 5, 'has been silent for'),
        ('pass', 60, None),
    ],
    ids=['killed', 'killed_with_a_worker', 'raises', 'stops', 'hangs', 'ends'])
def test_processes_end_together(what, timeout, words):
    port = free_port()
    script = DIES.format(what=what, timeout=timeout)
    both = [
        subprocess.Popen(
            [sys.executable, '-c', script],
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ, 'CUDA_VISIBLE_DEVICES': '-1',
                'OMP_NUM_THREADS': '1',
                'RANK': str(rank),
                'WORLD_SIZE': '2',
                'MASTER_ADDR': '127.0.0.1',
                'MASTER_PORT': str(port)
            }) for rank in range(2)
    ]
    try:
        error = both[0].communicate(timeout=60)[1]
        if words is None:
            both[1].wait(timeout=60)  # it may take longer to end
    finally:
        for process in both:
            process.kill()
            process.wait()
            process.stderr.close()
    if words is None:
        assert [process.returncode for process in both] == [0, 0]
    else:
        assert both[0].returncode == 1
        assert f'Process 1 of 2 {words}' in error
        assert 'Traceback' not in error


@pytest.fixture
def processes(monkeypatch):
    """The module under test, on a machine without an accelerator."""
    monkeypatch.syspath_prepend('tools')
    import process_group
    monkeypatch.setattr(process_group, 'get_device', lambda: 'cpu')
    for name in 'MASTER_ADDR', 'MASTER_PORT':
        monkeypatch.delenv(name, raising=False)
    return process_group


VARIABLES = [('slurm', 'SLURM_PROCID', 'SLURM_NTASKS'),
             ('mpi', 'OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE'),
             ('pytorch', 'RANK', 'WORLD_SIZE')]


@pytest.mark.parametrize('launcher, rank, world_size', VARIABLES)
def test_launchers(processes, launcher, rank, world_size, monkeypatch):
    monkeypatch.setenv(rank, '0')
    monkeypatch.setenv(world_size, '1')
    cfg = Config(
        dict(
            launcher=launcher,
            env_cfg=dict(dist_cfg=dict(backend='nccl', timeout=60)),
            find_unused_parameters=True))
    with pytest.raises(SystemExit, match='needs MASTER_ADDR'):
        processes.init_process_group_on_cpu(cfg)
    monkeypatch.setenv('MASTER_ADDR', '127.0.0.1')
    monkeypatch.setenv('MASTER_PORT', '0')  # any that is free
    try:
        processes.init_process_group_on_cpu(cfg)
        assert distributed.get_backend() == 'gloo'
        assert cfg.model_wrapper_cfg.find_unused_parameters
        assert cfg.model_wrapper_cfg.device_ids is None
    finally:
        atexit.unregister(distributed.destroy_process_group)
        distributed.destroy_process_group()


@pytest.mark.parametrize('launcher, device', [('none', 'cpu'),
                                              ('pytorch', 'cuda')])
def test_left_to_mmengine(processes, launcher, device, monkeypatch):
    monkeypatch.setattr(processes, 'get_device', lambda: device)
    cfg = Config(dict(launcher=launcher))
    processes.init_process_group_on_cpu(cfg)
    assert not distributed.is_initialized()
    assert 'model_wrapper_cfg' not in cfg
