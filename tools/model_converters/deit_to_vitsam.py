# Copyright (c) mmweightformer contributors. All rights reserved.
"""Bring DeiT, pre-trained by mmpretrain, into ViTSAM for detection."""
import argparse
import os
import textwrap

from mmweightformer.utils import (deit_to_vitsam, load_state_dict,
                                  save_state_dict)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Convert a checkpoint of mmpretrain's VisionTransformer, "
        'such as DeiT, to one of its ViTSAM, which attends within windows. '
        'The class token and the final norm are dropped.')
    parser.add_argument('src', help="checkpoint of mmpretrain's classifier")
    parser.add_argument('dst', help='file to write')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    if os.path.isdir(args.dst) or not os.path.basename(args.dst):
        raise SystemExit(f'dst must name a file, got {args.dst!r}')
    if os.path.realpath(args.src) == os.path.realpath(args.dst):
        raise SystemExit(f'dst must not be src, got {args.dst!r} for both')
    try:
        src = load_state_dict(args.src)
        state = deit_to_vitsam(src)
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f'{args.src}: {error}')
    try:
        save_state_dict(state, args.dst)
    except (OSError, RuntimeError) as error:  # torch wraps those of files
        raise SystemExit(f'{args.dst} cannot be written: {error}')
    dropped = ', '.join(name for name in src if name not in state)
    print(f'{len(state)} tensors of {args.src} written to {args.dst}; '
          f'dropped: {textwrap.shorten(dropped, 300, placeholder=" …")}')


if __name__ == '__main__':
    main()
