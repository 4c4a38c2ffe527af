# Copyright (c) mmweightformer contributors. All rights reserved.
"""Convert a published WeightFormer checkpoint to OpenMMLab's format."""
import argparse

from mmweightformer.utils import (convert_checkpoint, load_official,
                                  official_to_mm)


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
        _, state = convert_checkpoint(args.src, args.dst, load_official,
                                      official_to_mm)
    except ValueError as error:
        raise SystemExit(str(error))
    print(f'{len(state)} tensors of {args.src} written to {args.dst}')


if __name__ == '__main__':
    main()
