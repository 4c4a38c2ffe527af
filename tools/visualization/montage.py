# Copyright (c) mmweightformer contributors. All rights reserved.
"""Lay pictures of a folder out on one sheet."""
import argparse
from pathlib import Path

import cv2
import numpy as np

from mmweightformer.utils.atomic_file import write_atomically

SUFFIXES = ('.jpg', '.jpeg', '.png')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Lay pictures of a folder, such as tools/test.py's "
        '--show-dir, out on one sheet')
    parser.add_argument('folder', type=Path, help='the folder of pictures')
    parser.add_argument('out', type=Path, help='the image file to write')
    parser.add_argument(
        '--rows', type=int, default=4, help='defaults to %(default)s')
    parser.add_argument(
        '--columns', type=int, default=3, help='defaults to %(default)s')
    parser.add_argument(
        '--height',
        type=int,
        default=256,
        help='of each picture in pixels, defaults to %(default)s')
    args = parser.parse_args()
    for name in 'rows', 'columns', 'height':
        if getattr(args, name) < 1:
            parser.error(f'--{name} must be positive, got '
                         f'{getattr(args, name)}')
    return args


def main() -> None:
    args = parse_args()
    out = args.out
    if out.suffix.lower() not in SUFFIXES:
        raise SystemExit(f'out must end with one of {SUFFIXES}, got {out}')
    paths = sorted(
        path for path in args.folder.rglob('*')
        if path.suffix.lower() in SUFFIXES and path.is_file()
        and path.resolve() != out.resolve())
    paths = paths[:args.rows * args.columns]
    if not paths:
        raise SystemExit(f'{args.folder} holds no {SUFFIXES}')
    pictures = []
    for path in paths:
        pictures.append(cv2.imread(str(path)))
        if pictures[-1] is None:
            raise SystemExit(f'{path} cannot be read as a picture')
    args.columns = min(args.columns, len(paths))
    width = max(args.height * p.shape[1] // p.shape[0] for p in pictures) or 1
    rows = -(-len(paths) // args.columns)
    gap = 4
    sheet = np.full(
        (rows * (args.height + gap), args.columns * (width + gap), 3), 255,
        np.uint8)
    for i, picture in enumerate(pictures):
        h = args.height
        w = max(1, h * picture.shape[1] // picture.shape[0])
        y = i // args.columns * (args.height + gap)
        x = i % args.columns * (width + gap)
        sheet[y:y + h, x:x + w] = cv2.resize(
            picture, (w, h), interpolation=cv2.INTER_CUBIC)
    encoded, data = cv2.imencode(out.suffix, sheet[:-gap, :-gap])
    if not encoded:
        height, width = sheet.shape[:2]
        raise SystemExit(f'{out} cannot hold a sheet of {width}×{height} '
                         'pixels: fewer --rows, --columns or --height')
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(str(out), lambda file: file.write(data))
    except OSError as error:
        raise SystemExit(f'{out} cannot be written: {error.strerror}')
    print(f'{len(paths)} pictures of {args.folder} on {out}')


if __name__ == '__main__':
    main()
