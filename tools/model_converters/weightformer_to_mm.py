# Copyright (c) mmweightformer contributors. All rights reserved.
"""Convert a published WeightFormer checkpoint to OpenMMLab's format."""
import argparse
import os

from mmweightformer.utils import load_official, official_to_mm, save_state_dict


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
    if os.path.isdir(args.dst) or not os.path.basename(args.dst):
        raise SystemExit(f'dst must name a file, got {args.dst!r}')
    if os.path.realpath(args.src) == os.path.realpath(args.dst):
        raise SystemExit(f'dst must not be src, got {args.dst!r} for both')
    try:
        state = official_to_mm(load_official(args.src))
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f'{args.src}: {error}')
    try:
        save_state_dict(state, args.dst)
    except (OSError, RuntimeError) as error:  # torch wraps those of files
        raise SystemExit(f'{args.dst} cannot be written: {error}')
    print(f'{len(state)} tensors of {args.src} written to {args.dst}')


if __name__ == '__main__':
    main()
