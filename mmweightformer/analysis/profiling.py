# Copyright (c) mmweightformer contributors. All rights reserved.
"""Where the time of a backbone goes: by its parts, and by operators."""
import re
from collections import Counter
from typing import Dict

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from .benchmark import Run
from .stages import StageClock

# Groups of operators by their names, of which the first that fits counts.
GROUPS = {
    'attention': 'attention',
    'convolution': 'conv',
    'GELU': 'gelu',
    'softmax': 'softmax',
    'norms': 'norm',
    'pooling': 'pool|mean',
    'optimizer': 'optimizer|adam|foreach|lerp|addcdiv|addcmul|aten::sqrt',
    'matrix products': 'mm$|matmul|linear|gemm|cutlass|dot',
    'copies and layout': 'copy|clone|contiguous|cat|pad|fill|zero|memcpy|'
    'memset|reorder',
    'elementwise': 'add|sub|mul|div|silu|sigmoid|clamp|sum|elementwise|pow',
}
OTHER = 'other'


def part_shares(run: Run, rounds: int = 5) -> Dict[str, float]:
    """Shares of a run's time by the parts of the backbone.

    A part is a module, or a layer of those that have an index, with their
    class; the layers of equal blocks are one part. Its methods ``predict`` and
    ``mlp``, if it has them, are parts of their own. What no inner part takes
    is the block's, or 'other'; of a training step, so are the backward pass
    and the optimizer.

    Args:
        run (Run): The run, of no use afterwards.
        rounds (int): Number of runs that are timed, after one that is not.
            Defaults to 5.

    Returns:
        dict[str, float]: The shares, which sum to 1, from large to small.
    """
    clock = StageClock(run.images.device)
    for name, module in run.model.named_modules():
        # Up to the first name behind a number, as in layers.0.fc1.
        if name and re.fullmatch(r'(\D+|\D*\.\d+|\D*\.\d+\.[^.]*)', name):
            part = re.sub(r'\.\d+', '.*', name)
            part = f'{part} ({type(module).__name__})'
            parent = run.model.get_submodule(name.rpartition('.')[0])
            if parent is run.model or not hasattr(parent, 'mlp') or \
                    name.endswith(('conv', 'norm1', 'norm2')):
                # A method mlp calls its layers another way if it is watched.
                clock.wrap(module, 'forward', part)
            for method in 'predict', 'mlp':
                if hasattr(module, method):
                    clock.wrap(module, method, f'{part}.{method}')
    run()
    clock.start()
    for _ in range(rounds):
        run()
    clock.stamp()
    return _shares(clock.seconds())


def operator_shares(run: Run, rounds: int = 3) -> Dict[str, float]:
    """Shares of a run's time by groups of PyTorch's operators.

    Args:
        run (Run): The run.
        rounds (int): Number of runs that are timed, after one that is not.
            Defaults to 3.

    Returns:
        dict[str, float]: The shares, which sum to 1, from large to small.
    """
    cuda = run.images.is_cuda
    groups = dict(GROUPS)
    if run.optimizer is None:
        del groups['optimizer']  # a forward pass may draw roots as well
    run()
    with profile(
            activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] *
                        cuda]) as profiler:
        for _ in range(rounds):
            run()
    seconds: Counter = Counter()
    for event in profiler.key_averages():
        if not cuda:
            seconds[_group(event.key, groups)] += event.self_cpu_time_total
        elif event.device_type == DeviceType.CUDA:
            seconds[_group(event.key, groups)] += event.self_device_time_total
    return _shares(seconds)


def _group(name: str, groups: Dict[str, str]) -> str:
    for group, pattern in groups.items():
        if re.search(pattern, name.lower()):
            return group
    return OTHER


def _shares(seconds: Dict[str, float]) -> Dict[str, float]:
    total = sum(seconds.values())
    return {
        part: value / total
        for part, value in sorted(seconds.items(), key=lambda item: -item[1])
    }
