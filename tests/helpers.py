# Copyright (c) mmweightformer contributors. All rights reserved.
import os
import re
import runpy
import socket
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from unittest import mock

import pytest
import reference
import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, OPTIM_WRAPPERS, DefaultScope
from mmengine.visualization import Visualizer
from torch.utils.flop_counter import FlopCounterMode

from mmweightformer.utils import official_to_mm

# The size of the golden files.
SMALL = dict(embed_dims=32, depth=5)

captured = pytest.mark.skipif(
    torch.__version__ < (2, 9), reason='needs torch.export of PyTorch 2.9')


def randomize(module):
    """Random parameters of a size at which every path matters."""
    for param in module.parameters():
        torch.nn.init.normal_(param, std=param[0].numel()**-0.5)
    return module


def build_backbone(arch=SMALL, **kwargs):
    return MODELS.build(dict(type='WeightFormer', arch=arch, **kwargs))


def backbone_state(official):
    """An official state dict under the names of the backbone alone."""
    return {
        name[len('backbone.'):]: value
        for name, value in official_to_mm(official).items()
        if name.startswith('backbone.')
    }


def official_backbone(state=None, **kwargs):
    """A backbone in float64 with official parameters, by default random."""
    if state is None:
        state = reference.random_state(**SMALL)
    backbone = build_backbone(**kwargs).double().eval()
    # A backbone without the final norm has no place for its parameters.
    needed = backbone.state_dict().keys()
    state = backbone_state(state)
    backbone.load_state_dict({k: v for k, v in state.items() if k in needed})
    return backbone


def relative_error(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def build_on_meta(cfg):
    """The model of a config, without memory."""
    # Some backbones read their drop path rates from it.
    on_cpu = partial(torch.linspace, device='cpu')
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        with MODELS.switch_scope_and_registry(None) as registry:
            with mock.patch('torch.linspace', on_cpu), torch.device('meta'):
                return registry.build(cfg.model).eval()


def count_macs(function, *args):
    """Multiply-adds by torch's own counter."""
    with FlopCounterMode(display=False) as counter:
        function(*args)
    return counter.get_total_flops() / 2


# Of one size and of all; PyTorch 2.5 tells wide images from tall ones.
GRAPHS_FOR_ALL_SIZES = 2 if torch.__version__ >= (2, 9) else 3


def run_tool(path, *arguments):
    """Run a tool in this process.

    Returns:
        What it exits with: None, a number or the message of an error.
    """
    arguments = [path, *map(str, arguments)]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, 'argv', arguments))
        # Of one name there is one in a process, which draws into the folder
        # of the tool run before.
        for visualizer in _with_subclasses(Visualizer):
            stack.enter_context(
                mock.patch.dict(visualizer._instance_dict, clear=True))
        try:
            runpy.run_path(path, run_name='__main__')
        except SystemExit as stop:
            return stop.code


def _with_subclasses(cls):
    yield cls
    for subclass in cls.__subclasses__():
        yield from _with_subclasses(subclass)


def run_command(*command, **env):
    """Run a command from the root of the checkout."""
    return subprocess.run([str(part) for part in command],
                          capture_output=True,
                          text=True,
                          env={
                              **os.environ, 'PYTHONWARNINGS': 'ignore',
                              **env
                          })


def with_small_files(kilobytes, *command):
    """A command that can write no larger file, as on a full disk."""
    return 'bash', '-c', f'ulimit -f {kilobytes}; exec "$@"', 'bash', *command


# A line and its code: PyTorch 2.5 has one whatever the filters are.
WARNING = re.compile(r'^.*:\d+: \w+Warning: .*\n  .*\n', re.M)


def refusal(result):
    """The few lines with which a command stops."""
    assert result.returncode != 0
    assert 'Traceback' not in result.stderr
    message = WARNING.sub('', result.stderr)
    assert len(message.strip().splitlines()) <= 10
    return message


def free_port():
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        return free.getsockname()[1]


@OPTIM_WRAPPERS.register_module()
class ScaledOptimWrapper(OptimWrapper):
    """As AmpOptimWrapper scales the loss, which needs a GPU."""

    def __init__(self, growth_interval=2000, **kwargs):
        super().__init__(**kwargs)
        self.loss_scaler = torch.amp.GradScaler(
            'cpu', init_scale=1024., growth_interval=growth_interval)

    def backward(self, loss, **kwargs):
        self.loss_scaler.scale(loss).backward(**kwargs)
        self._inner_count += 1

    def step(self, **kwargs):
        self.loss_scaler.step(self.optimizer)
        self.loss_scaler.update()


class Malicious:
    """Prints when it is unpickled."""

    def __reduce__(self):
        return print, ('unpickled', )


def conversion_refused(converter, src, messages):
    """A converter says why it does not take ``src``, and leaves nothing."""
    error = run_tool(converter, src, src.parent / 'dst.pth')
    assert list(src.parent.iterdir()) == ([src] if src.exists() else [])
    assert len(error.splitlines()) < 10
    for message in [str(src), *messages]:
        assert message in error


def destinations_refused(converter, src):
    """A converter writes neither over ``src`` nor where no file can be."""
    content = src.read_bytes()
    assert 'dst must not be src' in run_tool(converter, src, src)
    assert 'dst must name a file' in run_tool(converter, src, src.parent)
    assert 'cannot be written' in run_tool(converter, src, src / 'a.pth')
    assert src.read_bytes() == content
    assert list(src.parent.iterdir()) == [src]
