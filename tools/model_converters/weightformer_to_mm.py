# Copyright (c) mmweightformer contributors. All rights reserved.
"""Convert a published checkpoint to OpenMMLab's format."""
import argparse

from mmweightformer.utils import (convert_checkpoint, load_official,
                                  official_to_mm)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Convert a published checkpoint to one of OpenMMLab: of '
        'a WeightFormer, with backbone.* for any model and head.* for '
        "mmpretrain's LinearClsHead, or of a WeightFormerDiT or a DiT, with "
        'denoiser.* for ClassConditionalDiffusion')
    parser.add_argument(
        'src',
        help='published .pt, .pth or .safetensors file; of the training '
        'checkpoint of a diffusion model, the averaged weights are taken')
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
