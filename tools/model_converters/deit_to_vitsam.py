# Copyright (c) mmweightformer contributors. All rights reserved.
"""Bring DeiT, pre-trained by mmpretrain, into ViTSAM for detection."""
import argparse
import textwrap

from mmweightformer.utils import (convert_checkpoint, deit_to_vitsam,
                                  load_state_dict)


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
    try:
        src, state = convert_checkpoint(args.src, args.dst, load_state_dict,
                                        deit_to_vitsam)
    except ValueError as error:
        raise SystemExit(str(error))
    dropped = ', '.join(name for name in src if name not in state)
    print(f'{len(state)} tensors of {args.src} written to {args.dst}; '
          f'dropped: {textwrap.shorten(dropped, 300, placeholder=" …")}')


if __name__ == '__main__':
    main()
