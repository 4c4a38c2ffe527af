# Copyright (c) mmweightformer contributors. All rights reserved.
"""Convert a published WeightFormer checkpoint to OpenMMLab's format."""
import argparse
import os

import torch

from mmweightformer import __version__
from mmweightformer.utils import load_official, official_to_mm


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Convert a published WeightFormer checkpoint to one of '
        'OpenMMLab, with backbone.* for any model and head.* for '
        "mmpretrain's LinearClsHead")
    parser.add_argument('src', help='published .pth or .safetensors file')
    parser.add_argument('dst', help='file to write')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    try:
        state = official_to_mm(load_official(args.src))
        os.makedirs(os.path.dirname(args.dst) or '.', exist_ok=True)
        # Renamed when whole: a full disk leaves no half checkpoint.
        part = f'{args.dst}.part'
        torch.save(
            dict(
                state_dict=state,
                meta=dict(mmweightformer_version=__version__)), part)
        os.replace(part, args.dst)
    except (OSError, ValueError) as error:
        raise SystemExit(f'{args.src}: {error}')
    print(f'{len(state)} tensors of {args.src} written to {args.dst}')


if __name__ == '__main__':
    main()
