# Copyright (c) mmweightformer contributors. All rights reserved.
"""Export to ONNX, torch.export and TorchScript, each checked by its file."""
import importlib.util
import io
import json
import os
import os.path as osp
import tempfile
import warnings
from pathlib import Path
from typing import Callable, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor

from .exportable import Exportable

Runner = Callable[[Tensor], Sequence[Tensor]]

# What is checked: the batch, and what a side has over the least one. Odd and
# even grids, from the smallest.
SHAPES = ((1, 0, 0), (2, 47, 111), (1, 10, 152), (1, 113, 16), (3, 175, 175))
# Of the largest value of an output.
TOLERANCE = 1e-4


class Check(NamedTuple):
    """The comparison of an exported file with the model at one shape.

    Attributes:
        shape (tuple[int]): Of the image, (B, 3, H, W).
        error (float): The largest difference over the largest value, of the
            output where it is largest.
    """
    shape: Tuple[int, ...]
    error: float


def export(module: Exportable, path: str, metadata: dict) -> List[Check]:
    """Export to a file of any batch, height and width, and check it.

    The file is loaded again and compared with the module on five shapes, odd
    and non-square ones among them, and only then appears under its name.

    Args:
        module (Exportable): What to export.
        path (str): The file to write. Its suffix is the format: '.onnx',
            '.pt2' for torch.export or '.pt' for TorchScript.
        metadata (dict): What goes into the file, beside the least side of an
            image in pixels: as ``metadata_props`` in ONNX, each in JSON, else
            as the extra file ``metadata.json``.

    Returns:
        list[Check]: What was compared.

    Raises:
        ImportError: If a package is missing or too old for the format.
        OSError: If the file cannot be written.
        ValueError: If the suffix is unknown, the module cannot be exported,
            or the file does not do what the module does.
    """
    suffix = osp.splitext(path)[1]
    if suffix not in FORMATS:
        raise ValueError(f'the file must end with one of {list(FORMATS)}, got '
                         f'{path!r}')
    if osp.isdir(path):
        raise ValueError(
            f'{path} is a folder, so no file can be written there')
    write, load = FORMATS[suffix]
    least = module.least_side_captured if suffix == '.pt2' \
        else module.least_side
    metadata = dict(metadata, least_side=least)
    folder = osp.dirname(path) or '.'
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix='.export-') as tmp:
        part = osp.join(tmp, osp.basename(path))
        with torch.no_grad(), warnings.catch_warnings():
            # The tracers warn of each branch, which the check will tell.
            warnings.simplefilter('ignore')
            try:
                write(module, part, metadata)
                run = load(part)
            except (ImportError, OSError):
                raise
            except Exception as error:
                raise ValueError(f'{suffix}: {_reason(error)}') from error
            checks = _compare(module, run, least)
        os.replace(part, path)
    return checks


def _reason(error: BaseException) -> str:
    """The first line of what was first raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or ['']
    return f'{type(error).__name__}: {lines[0]}'


def _compare(module: Exportable, run: Runner, least: int) -> List[Check]:
    checks = []
    generator = torch.Generator().manual_seed(0)
    for batch, more_rows, more_columns in SHAPES:
        shape = batch, 3, least + more_rows, least + more_columns
        at = 'at ' + '×'.join(map(str, shape))
        image = torch.randn(shape, generator=generator)
        outs = []
        for name, function in ('the model', module), ('the file', run):
            try:
                outs.append(function(image))
            except Exception as error:
                # What is raised is up to the model or the runtime.
                raise ValueError(f'{at} {name} fails: '
                                 f'{_reason(error)}') from error
        errors = []
        for name, b, a in zip(module.output_names, *outs, strict=True):
            if a.shape != b.shape:
                raise ValueError(f'{at} {name} is {tuple(a.shape)} in the '
                                 f'file and {tuple(b.shape)} in PyTorch')
            largest = b.abs().max().clamp_min(torch.finfo(b.dtype).tiny)
            errors.append((a - b).abs().max() / largest)
        error = torch.stack(errors).max().item()
        if not error <= TOLERANCE:  # nor is it NaN
            raise ValueError(f'{at} the file differs from PyTorch by '
                             f'{error:.1e} of the largest value, more than '
                             f'{TOLERANCE}')
        checks.append(Check(shape, error))
    return checks


def _example() -> Tensor:
    # No two sizes of it or its grids are equal, or one, by chance.
    return torch.randn(2, 3, 203, 329)


def _capture(module: Exportable) -> torch.export.ExportedProgram:
    least = module.least_side_captured
    sizes = {
        0: torch.export.Dim('batch'),
        2: torch.export.Dim('height', min=least),
        3: torch.export.Dim('width', min=least)
    }
    return torch.export.export(
        module, (_example(), ), dynamic_shapes=dict(image=sizes))


def _check_torch(suffix: str) -> None:
    if torch.__version__ < (2, 9):
        raise ImportError(f'{suffix} needs PyTorch 2.9 or newer, and this is '
                          f'{torch.__version__}; .pt (TorchScript) works')


def _write_onnx(module: Exportable, path: str, metadata: dict) -> None:
    _check_torch('.onnx')
    lacking = [
        name for name in ('onnx', 'onnxruntime', 'onnxscript')
        if importlib.util.find_spec(name) is None
    ]
    if lacking:
        raise ImportError('ONNX needs what is not installed: pip install ' +
                          ' '.join(lacking))
    import onnx
    program = torch.onnx.export(
        _capture(module),
        dynamo=True,
        input_names=['image'],
        output_names=module.output_names,
        # Only the names of the axes, the rest is captured.
        dynamic_shapes=dict(image={
            0: 'batch',
            2: 'height',
            3: 'width'
        }),
        opset_version=OPSET,
        verbose=False)
    model = program.model_proto
    onnx.helper.set_model_props(model, {
        key: json.dumps(value)
        for key, value in metadata.items()
    })
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _load_onnx(path: str) -> Runner:
    import onnxruntime
    session = onnxruntime.InferenceSession(
        path, providers=['CPUExecutionProvider'])
    return lambda image: [
        torch.from_numpy(out)
        for out in session.run(None, dict(image=image.numpy()))
    ]


def _write_pt2(module: Exportable, path: str, metadata: dict) -> None:
    _check_torch('.pt2')
    buffer = io.BytesIO()  # writing to a full disk, PyTorch aborts
    torch.export.save(
        _capture(module),
        buffer,
        extra_files={'metadata.json': json.dumps(metadata)})
    Path(path).write_bytes(buffer.getbuffer())


def _load_pt2(path: str) -> Runner:
    return torch.export.load(path).module()


def _write_torchscript(module: Exportable, path: str, metadata: dict) -> None:
    traced = torch.jit.trace(module, (_example(), ), check_trace=False)
    buffer = io.BytesIO()
    torch.jit.save(
        traced, buffer, _extra_files={'metadata.json': json.dumps(metadata)})
    Path(path).write_bytes(buffer.getbuffer())


OPSET = 20
FORMATS = {
    '.onnx': (_write_onnx, _load_onnx),
    '.pt2': (_write_pt2, _load_pt2),
    '.pt': (_write_torchscript, torch.jit.load),
}
SUFFIXES = tuple(FORMATS)
