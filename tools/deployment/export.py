# Copyright (c) mmweightformer contributors. All rights reserved.
"""Export a config's model to ONNX, torch.export or TorchScript."""
import argparse
import logging
import os
import os.path as osp
import sys
from copy import deepcopy

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmweightformer.deployment import PARTS, SUFFIXES, Exportable, export
from mmweightformer.utils import load_state_dict

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
import common  # noqa: E402


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Export the model of a config for images of any number '
        'and size, and check the file against PyTorch on five shapes before '
        'it gets its name. A classifier and a segmentor are exported up to '
        'their logits, the latter in the size of the image; a detector up to '
        'the levels of its pyramid (p2 has stride 4), without RPN, RoI heads '
        'and post-processing.',
        epilog='The input, "image", is (B, 3, H, W) in float32 as it leaves '
        'the data preprocessor: channels ordered, normalized and padded. What '
        'that takes (mean, std, bgr_to_rgb, pad_size_divisor) is in the '
        'metadata of the file. .onnx and .pt2 need PyTorch 2.9 or newer, and '
        '.onnx the packages onnx, onnxruntime and onnxscript.')
    common.add_config_arguments(parser)
    parser.add_argument(
        'checkpoint',
        nargs='?',
        help='checkpoint file; without one the weights are random')
    parser.add_argument(
        '--out',
        required=True,
        metavar='FILE',
        help='the file to write, its suffix is the format: .onnx, .pt2 '
        '(torch.export) or .pt (TorchScript)')
    parser.add_argument(
        '--part',
        choices=PARTS,
        default='model',
        help="'backbone' exports the backbone alone. Defaults to 'model'")
    args = parser.parse_args()
    common.check_suffix(parser, args.out, SUFFIXES)
    return args


def build_exportable(cfg: Config, args: argparse.Namespace) -> Exportable:
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        model = MODELS.build(deepcopy(cfg.model))
    module = Exportable(model, args.part)
    if args.checkpoint is not None:
        load_weights(module, args.checkpoint)
    return module


def load_weights(module: Exportable, path: str) -> None:
    """Load all that is exported, whatever else a checkpoint holds."""
    try:
        lacking = module.model.load_state_dict(
            load_state_dict(path), strict=False).missing_keys
    except RuntimeError as error:
        # The first line is a heading.
        raise ValueError(f'{path}: {str(error).splitlines()[-1].strip()}')
    if lacking:
        raise ValueError(f'{path} lacks {len(lacking)} weights of what is '
                         f'exported, such as {lacking[0]}')


def describe(cfg: Config, args: argparse.Namespace) -> dict:
    """What a file has to say about itself."""
    metadata = dict(config=osp.basename(args.config), part=args.part)
    if args.checkpoint is not None:
        metadata['checkpoint'] = osp.basename(args.checkpoint)
    # mmpretrain's configs have it beside the model.
    before = cfg.model.get('data_preprocessor') or cfg.get(
        'data_preprocessor') or {}
    metadata['mean'] = before.get('mean')
    metadata['std'] = before.get('std')
    metadata['bgr_to_rgb'] = bool(
        before.get('bgr_to_rgb') or before.get('to_rgb'))
    metadata['pad_size_divisor'] = before.get('pad_size_divisor') or 1
    return metadata


def main() -> None:
    # Of operators that no model here has.
    torch._logging.set_logs(all=logging.ERROR)
    args = parse_args()
    cfg = common.load_config(args)
    common.require_fields(cfg, args.config, 'model')
    try:
        module = build_exportable(cfg, args)
        checks = export(module, args.out, describe(cfg, args))
    except Exception as error:
        # What a model raises is up to its code.
        sys.exit(f'{args.config} was not exported to {args.out}: '
                 f'{type(error).__name__}: {error}')
    for shape, error in checks:
        print(f'{"×".join(map(str, shape))}: differs from PyTorch by '
              f'{error:.1e}')
    weights = args.checkpoint or 'random weights, as no checkpoint was given'
    print(f'{args.out}: {os.path.getsize(args.out) / 1e6:.1f} MB, '
          f'{", ".join(module.output_names)}, {weights}')


if __name__ == '__main__':
    main()
