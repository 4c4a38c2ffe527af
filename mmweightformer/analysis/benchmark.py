# Copyright (c) mmweightformer contributors. All rights reserved.
"""Time and memory of backbones, measured side by side."""
from functools import partial
from statistics import median
from typing import (Callable, Dict, Iterator, NamedTuple, Optional, Sequence,
                    Tuple)

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from .peak_memory import Usage, lacks_memory, memory_meter
from .timing import time_in_turns
from .zoo import build_backbone

MODES = ('inference', 'train')
DTYPES = ('float32', 'bfloat16', 'float16', 'float64')
# Seconds from which a single run, that of the memory, is exact enough.
LONG = 30.


class Setting(NamedTuple):
    """What a backbone is run for.

    Attributes:
        mode (str): 'inference', or 'train' for a training step: forward pass,
            a loss on the last output, backward pass and a step of AdamW.
        batch (int): Number of images.
        dtype (str): Type of the images, and of the parameters.
        device (str): 'cpu', or a CUDA device.
        compile (str, optional): A mode of :func:`torch.compile`.
    """
    mode: str = 'inference'
    batch: int = 1
    dtype: str = 'float32'
    device: str = 'cpu'
    compile: Optional[str] = None

    def __str__(self) -> str:
        text = f'{self.mode}, batch {self.batch}, {self.dtype}'
        return text + (f', compiled ({self.compile})' if self.compile else '')


class Result(NamedTuple):
    """What came out for a backbone, a setting and an image size.

    Attributes:
        model (str): Name of the backbone.
        setting (Setting): What it was run for.
        size (int): Height and width of the images in pixels.
        seconds (tuple[float]): Time of each round's run; empty if none was.
        memory (float, optional): Peak of memory over what stood before the
            run, in MiB. None where it is not known.
        macs (float, optional): Multiply-adds of a run: matrix products,
            attention and convolutions. The backward pass counts twice the
            forward pass. None where they cannot be counted.
        left_out (str): Why the backbone was not run, else empty.
    """
    model: str
    setting: Setting
    size: int
    seconds: Tuple[float, ...] = ()
    memory: Optional[float] = None
    macs: Optional[float] = None
    left_out: str = ''

    @property
    def images_per_second(self) -> float:
        return self.setting.batch / median(self.seconds)


class Run:
    """Runs a backbone on random images, and returns when that is done.

    Args:
        name (str): Name of the backbone, as in :func:`build_backbone`.
        size (int): Height and width of the images in pixels.
        setting (Setting): What it is run for.
        threads (int): Number of threads, on the CPU.

    Attributes:
        model (nn.Module): The backbone.
    """

    def __init__(self, name: str, size: int, setting: Setting,
                 threads: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        device = torch.device(setting.device)
        dtype = getattr(torch, setting.dtype)
        self.model = build_backbone(name, size)
        self.model.to(device, dtype)
        self.model.train(setting.mode == 'train')
        self.images = torch.rand(setting.batch, 3, size, size)
        self.images = self.images.to(device, dtype)
        self.optimizer = None
        if setting.mode == 'train':
            params = [p for p in self.model.parameters() if p.requires_grad]
            self.optimizer = torch.optim.AdamW(params)
            # Its state belongs to what stands before a step.
            for param in params:
                param.grad = torch.zeros_like(param)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.forward = self.model
        if setting.compile is not None:
            self.forward = torch.compile(self.model, mode=setting.compile)
            self()  # which compiles it

    def __call__(self) -> None:
        if self.optimizer is None:
            with torch.inference_mode():
                self.forward(self.images)
        else:
            outputs = self.forward(self.images)
            _last(outputs).float().square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        _synchronize(self.images.device)


def _run_alone(*args) -> Run:
    # It compiles a function for a limited number of sizes and models, and
    # from the second size on it would compile for any.
    torch.compiler.reset()
    return Run(*args)


def _last(outputs) -> Tensor:
    while isinstance(outputs, (tuple, list)):
        outputs = outputs[-1]
    return outputs


def _synchronize(device: torch.device) -> None:
    if device.type == 'cuda':
        torch.cuda.synchronize(device)


def count_macs(name: str, size: int, setting: Setting) -> Optional[float]:
    """Multiply-adds of a run, or None where the backbone needs data."""
    model = build_backbone(name, size)
    model.eval()
    model.to('meta').requires_grad_(False)
    images = torch.empty(setting.batch, 3, size, size, device='meta')
    # The counter does not know every fused kernel of attention.
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model(images)
    except Exception:
        return None  # some operators have no such kernel
    forward = counter.get_total_flops() / 2
    return forward * (3 if setting.mode == 'train' else 1)


def matmul_peak(setting: Setting, threads: int) -> float:
    """Multiply-adds a second of the fastest of some matrix products."""
    torch.set_num_threads(threads)
    best = 0.
    device = torch.device(setting.device)
    sizes = [2048, 4096, 8192] if device.type == 'cuda' else [512, 1024, 2048]
    for size in sizes:
        a = torch.rand(size, size, device=device)
        a = a.to(getattr(torch, setting.dtype))

        def product():
            torch.mm(a, a)
            _synchronize(device)

        best = max(best,
                   size**3 / min(time_in_turns(dict(mm=product), 1.)['mm']))
    return best


def benchmark(
    names: Sequence[str],
    sizes: Sequence[int],
    setting: Setting,
    threads: Optional[int] = None,
    budget: float = 10.,
    advance: Callable[[str, float],
                      None] = lambda *_: None) -> Iterator[Result]:
    """Measure backbones side by side.

    First the memory of each is measured, see :func:`memory_meter`, size by
    size; one that does not fit is left out from there on. Then, at each size,
    all that fit are built and take turns, see :func:`time_in_turns`. One that
    needed more than 30 seconds before keeps that time and is not run again.

    Args:
        names (Sequence[str]): Names, as in :func:`build_backbone`.
        sizes (Sequence[int]): Heights of the square images in pixels.
        setting (Setting): What they are run for.
        threads (int, optional): Number of threads on the CPU. Defaults to
            PyTorch's.
        budget (float): Seconds for the rounds at each size. Defaults to 10.
        advance (Callable): Is called with what is done next, and the share of
            all work that was done since the last call.

    Yields:
        Result: One for each size and name.
    """
    threads = threads or torch.get_num_threads()
    sizes = sorted(sizes)
    share = 0.5 / sum(size**2 for size in sizes)
    usages: Dict[Tuple[str, int], Usage] = {}
    left_out: Dict[Tuple[str, int], str] = {}
    for name in names:
        with memory_meter(setting.device) as measure:
            reason = ''
            for size in sizes:
                advance(f'{name}, {size}²: memory', 0)
                prepare = partial(_run_alone, name, size, setting, threads)
                if not reason:
                    try:
                        usages[name, size] = measure(prepare)
                    except Exception as error:
                        # What a model raises is up to its code.
                        left_out[name, size] = explain(error)
                        if lacks_memory(error):
                            reason = f'did not fit at {size}² already'
                else:
                    left_out[name, size] = reason
                advance('', share * size**2 / len(names))
    for size in sizes:
        advance(f'{size}²: time', 0)
        times = {
            name: [usages[name, size].seconds]
            for name in names if (name, size) in usages
        }
        torch.compiler.reset()
        runs = {
            name: Run(name, size, setting, threads)
            for name, (seconds, ) in times.items() if seconds < LONG
        }
        if runs:
            times.update(time_in_turns(runs, budget))
        for name in names:
            if name in times:
                yield Result(name, setting, size, tuple(times[name]),
                             usages[name, size].memory,
                             count_macs(name, size, setting))
            else:
                yield Result(
                    name, setting, size, left_out=left_out[name, size])
        advance('', share * size**2)


def explain(error: Exception) -> str:
    """One line on an error."""
    if lacks_memory(error):
        return 'needs more memory than there is'
    first = (str(error).strip().splitlines() or [''])[0]
    return f'{type(error).__name__}: {first}'
