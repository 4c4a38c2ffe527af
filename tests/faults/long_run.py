# Copyright (c) mmweightformer contributors. All rights reserved.
"""Train on the digits for long: is memory flat, and the loss finite?

A small Mask R-CNN, or a small classifier, is trained by tools/train.py with
its data loader's worker, in ten epochs, each with validation and a checkpoint.
In every iteration the loss is looked at, and the resident memory is read, of
this process and of it with its workers, whose memory is in part the same, and
what glibc has handed out to this process and not got back. The first epoch is
for warming up: memory may grow in it, and by less than 5 % from the second
epoch's median to the last one's.

The reserve of free memory that glibc keeps for later is held small, by what
the variable MALLOC_TRIM_THRESHOLD_=131072 does for any program. By default it
grows for some epochs, as arrays of many sizes come and go;
--default-allocator shows it.

    python tests/faults/long_run.py --dtype bfloat16 --iterations 3000
"""
import argparse
import ctypes
import math
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from mmdet.models import RPNHead, SingleRoIExtractor
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS, MODELS, OPTIM_WRAPPERS

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / 'tests'), str(ROOT / 'tools')]
from helpers import run_tool  # noqa: E402

EPOCHS, MAX_GROWTH = 10, 0.05
NAMES = ('resident memory', 'resident memory with workers', 'memory in use')
M_TRIM_THRESHOLD = -1  # of glibc's malloc.h
CONFIG = """
_base_ = {base!r}
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=64, depth=5)),
    **{model})
train_cfg = dict(max_epochs={epochs}, val_interval=1)
train_dataloader = dict(batch_size=4, dataset=dict(data_root={root!r}))
val_dataloader = dict(dataset=dict(data_root={root!r}))
optim_wrapper = dict(type={optim_wrapper!r})
custom_hooks = [dict(type='Watch')]
"""
DETECTOR = """
for transform in _base_.train_pipeline + _base_.test_pipeline:
    if transform['type'] == 'Resize':
        transform['scale'] = (64, 64)
train_dataloader['dataset']['pipeline'] = _base_.train_pipeline
val_dataloader['dataset']['pipeline'] = _base_.test_pipeline
val_evaluator = dict(
    ann_file={root!r} + '/annotations/instances_val2017.json')
"""


@OPTIM_WRAPPERS.register_module()
class CPUBfloat16(OptimWrapper):
    """What AmpOptimWrapper, which is for accelerators, does with bfloat16."""

    @contextmanager
    def optim_context(self, model):
        with super().optim_context(model), torch.autocast(
                'cpu', torch.bfloat16):
            yield


@MODELS.register_module()
class Float32RPNHead(RPNHead):
    """mmcv's NMS has no bfloat16 on CPUs."""

    def forward_single(self, x):
        return tuple(out.float() for out in super().forward_single(x))


@MODELS.register_module()
class Float32RoIExtractor(SingleRoIExtractor):
    """mmcv's RoIAlign has no bfloat16 on CPUs."""

    def forward(self, feats, rois, *args):
        return super().forward([f.float() for f in feats], rois.float(), *args)


@HOOKS.register_module()
class Watch(Hook):
    """Reads the loss and the resident memory of each iteration."""
    losses, memory = [], []

    def before_run(self, runner):
        for readings in self.losses, self.memory:
            readings.clear()

    def after_train_iter(self,
                         runner,
                         batch_idx,
                         data_batch=None,
                         outputs=None):
        self.losses.append(outputs['loss'].item())
        self.memory.append(read_memory())


class MallInfo(ctypes.Structure):
    """mallinfo2 of glibc's malloc.h."""
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ('arena', 'ordblks', 'smblks', 'hblks', 'hblkhd',
                     'usmblks', 'fsmblks', 'uordblks', 'fordblks', 'keepcost')
    ]


def read_memory():
    """Each of NAMES, in MiB."""
    process = psutil.Process()
    own = total = process.memory_info().rss
    for child in process.children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.NoSuchProcess:
            pass  # it has just ended
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallInfo
    info = mallinfo()
    return [
        value / 2**20 for value in (own, total, info.uordblks + info.hblkhd)
    ]


def train(task, dtype, iterations, folder):
    """Returns the loss and the memory of each iteration."""
    root, low = folder / 'digits', dtype == 'bfloat16'
    layout = dict(detector='coco', classifier='imagenet')[task]
    scenes, images = 2 * [4 * iterations // EPOCHS]
    error = run_tool(ROOT / 'tools/dataset_converters/digits.py', root,
                     '--size', 64, '--layouts', layout, '--num-train', scenes,
                     '--num-val', 20, '--imagenet-train', images,
                     '--imagenet-val', 20)
    if error is not None:
        sys.exit(error)
    if task == 'detector':
        name, more = 'mask_rcnn_wf_t_digits', DETECTOR
        few = dict(max_per_img=50)
        model = dict(
            neck=dict(in_channels=64),
            train_cfg=dict(rpn_proposal=few, rcnn=dict(sampler=dict(num=16))),
            test_cfg=dict(rpn=few))
        if low:
            model['rpn_head'] = dict(type='Float32RPNHead')
            model['roi_head'] = {
                f'{kind}_roi_extractor': dict(type='Float32RoIExtractor')
                for kind in ('bbox', 'mask')
            }
    else:
        name, more = 'wf_t_digits', ''
        model = dict(head=dict(in_channels=64))
    config = folder / 'config.py'
    config.write_text((CONFIG + more).format(
        base=str(ROOT / f'configs/digits/{name}.py'),
        model=model,
        epochs=EPOCHS,
        root=str(root / layout),
        optim_wrapper='CPUBfloat16' if low else 'OptimWrapper'))
    error = run_tool(ROOT / 'tools/train.py', config, '--work-dir',
                     folder / 'work')
    if error is not None:
        sys.exit(error)
    return Watch.losses, Watch.memory


def epoch_medians(memory):
    """Each of NAMES in each epoch."""
    length = len(memory) // EPOCHS
    return [[
        statistics.median(values)
        for values in zip(*memory[start:start + length])
    ] for start in range(0, length * EPOCHS, length)]


def growths(memory):
    """Of each of NAMES, from the second epoch to the last."""
    medians = epoch_medians(memory)
    return [last / second - 1 for second, last in zip(medians[1], medians[-1])]


def judge(losses, memory):
    """What is wrong, in words."""
    wrong = []
    for i, loss in enumerate(losses, 1):
        if not math.isfinite(loss):
            wrong.append(f'the loss of iteration {i} is {loss}')
            break
    for growth, name in zip(growths(memory), NAMES):
        if growth >= MAX_GROWTH:
            wrong.append(f'the {name} grew by {growth:.1%}, allowed is less '
                         f'than {MAX_GROWTH:.0%}')
    return wrong


def print_table(losses, memory):
    print('MiB:')
    print(f'| iterations | loss, mean | {" | ".join(NAMES)} |')
    print('|--:|--:' + '|--:' * len(NAMES) + '|')
    length = len(losses) // EPOCHS
    for i, medians in enumerate(epoch_medians(memory)):
        start = i * length
        loss = statistics.fmean(losses[start:start + length])
        values = ' | '.join(f'{value:.1f}' for value in medians)
        print(f'| {start + 1}–{start + length} | {loss:.3f} | {values} |')


def parse_args():
    parser = argparse.ArgumentParser(
        description='Train on the digits for long: is memory flat, and the '
        'loss finite?')
    parser.add_argument(
        '--task', choices=['detector', 'classifier'], default='detector')
    parser.add_argument(
        '--dtype', choices=['float32', 'bfloat16'], default='float32')
    parser.add_argument(
        '--iterations', type=int, default=3000, help=f'a multiple of {EPOCHS}')
    parser.add_argument('--default-allocator', action='store_true')
    args = parser.parse_args()
    if args.iterations < EPOCHS or args.iterations % EPOCHS:
        parser.error(f'--iterations must be a positive multiple of {EPOCHS}, '
                     f'got {args.iterations}')
    return args


def main():
    args = parse_args()
    if not args.default_allocator:
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, 131072)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        losses, memory = train(args.task, args.dtype, args.iterations,
                               Path(folder))
    minutes = (time.perf_counter() - start) / 60
    print(f'\n{args.task}, {args.dtype}, {len(losses)} iterations, '
          f'{minutes:.1f} minutes')
    print_table(losses, memory)
    print('Growth after the first epoch: ' +
          ', '.join(f'{name} {growth:+.2%}'
                    for name, growth in zip(NAMES, growths(memory))))
    wrong = judge(losses, memory)
    sys.exit('Failed: ' + '; '.join(wrong) if wrong else None)


if __name__ == '__main__':
    main()
