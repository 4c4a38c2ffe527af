# Copyright (c) mmweightformer contributors. All rights reserved.
"""Make a small real dataset of digits in photographs, with no download.

Scikit-learn's handwritten digits are pasted over crops of its two sample
photographs, and the scenes are written as COCO instances (``coco/``), as
ADE20K-style semantic maps (``ade/``: 1 is the background, 2..11 are the digits
0..9, and 0, which ``reduce_zero_label=True`` ignores, does not occur) and, one
digit an image, as ImageNet folders (``imagenet/``). Training and validation
share no handwritten digit and no pixel of a photograph.

The same arguments give the same files, and a larger count the same first
ones. A folder that the same arguments made is kept, one that other arguments
made is replaced as a whole, and one without our ``digits.json`` is refused.

    python tools/dataset_converters/digits.py data/digits --size 128
"""
import argparse
import json
import os
import os.path as osp
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from pycocotools import mask as mask_utils

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
from common import plain_errors  # noqa: E402

TOOL = Path(__file__).name
VERSION = 2  # raise it when the same arguments give other files
CREDITS = ('Handwritten digits (E. Alpaydin and C. Kaynak, UCI) over the '
           'photographs china.jpg (danielbuechele) and flower.jpg (vultilion),'
           ' all from scikit-learn')
LICENSE = dict(
    id=1,
    name='CC BY 2.0 (the photographs)',
    url='https://creativecommons.org/licenses/by/2.0/')
CLASSES = tuple('0123456789')
SPLITS = ('train', 'val')
DARK, WHITE = 40, 250
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
MIN_VISIBLE = 0.7  # the part of a digit that later ones may not cover
MAX_BOX_OVERLAP = 0.25  # of the smaller box
TRIES = 30


class Source(NamedTuple):
    """What one split is made of."""
    digits: np.ndarray  # (N, 8, 8), 0..1
    labels: np.ndarray  # (N, )
    photos: list  # RGB, uint8


def split_digits(labels, seed):
    """Share the digits out by class; returns each split's indices."""
    from sklearn.model_selection import train_test_split
    indices = train_test_split(
        np.arange(len(labels)),
        test_size=0.2,
        stratify=labels,
        random_state=seed)
    return dict(zip(SPLITS, indices))


def split_columns(width):
    """Returns the columns of a photograph that each split may use."""
    edge = round(0.7 * width)
    return dict(train=slice(0, edge), val=slice(edge, width))


def load_sources(seed):
    """Returns the ``Source`` of each split."""
    try:
        from sklearn.datasets import load_digits, load_sample_images
        data, photos = load_digits(), load_sample_images().images
    except ImportError as error:
        raise SystemExit(f'{TOOL} needs scikit-learn for its images: '
                         'pip install scikit-learn pillow') from error
    sources = {}
    for split, chosen in split_digits(data.target, seed).items():
        digits = data.images[chosen].astype(np.float32) / 16
        parts = [p[:, split_columns(p.shape[1])[split]] for p in photos]
        sources[split] = Source(digits, data.target[chosen], parts)
    return sources


def crop_photo(photos, size, ease, rng):
    """Returns a varied crop of one photograph as float32 of ``size``."""
    photo = photos[rng.integers(len(photos))]
    height, width = size
    # The same zoom in both splits, though validation's part is narrower.
    fit = min(photo.shape[0] / height, photo.shape[1] / width)
    scale = min(rng.uniform(80, 190) / min(size), fit)
    h, w = max(1, int(scale * height)), max(1, int(scale * width))
    y = rng.integers(photo.shape[0] - h + 1)
    x = rng.integers(photo.shape[1] - w + 1)
    crop = photo[y:y + h, x:x + w]
    if rng.random() < 0.5:
        crop = crop[:, ::-1]
    crop = cv2.resize(
        np.ascontiguousarray(crop, np.float32), (width, height),
        interpolation=cv2.INTER_AREA if scale > 1 else cv2.INTER_CUBIC)
    # Less contrast and darker than the photograph: the digits are light.
    gain = rng.uniform(0.6, 1.1) * rng.uniform(0.9, 1.1, 3) * (1 - ease)
    mean = crop.mean()
    bright = 0.6 * mean + 15
    bright += ease * (DARK - bright) + rng.uniform(-20, 20)
    return ((crop - mean) * gain + bright).astype(np.float32)


def render_digit(digit, height, rng):
    """Enlarge a digit to about ``height`` pixels, a little turned and bent.

    Returns:
        np.ndarray: The opacity, 0..1, cropped to what is not transparent.
    """
    stretch = rng.uniform(0.85, 1.15)**0.5
    cell = height / 8 * np.array([stretch, 1 / stretch])
    matrix = cv2.getRotationMatrix2D((3.5, 3.5), rng.uniform(-10, 10), 1)
    side = int(1.5 * height) + 4
    matrix = cell[:, None] * matrix
    matrix[:, 2] += (side - 1) / 2 - 3.5 * cell
    ink = cv2.warpAffine(digit, matrix, (side, side), flags=cv2.INTER_CUBIC)
    # The edge is about a pixel wide at any size; a lower level is bolder.
    level = rng.uniform(0.32, 0.48)
    alpha = np.clip(0.5 + (ink - level) * cell.mean() * 1.5, 0, 1)
    x, y, w, h = cv2.boundingRect((alpha > 0).astype(np.uint8))
    return alpha[y:y + h, x:x + w]


def choose_colour(background, rng):
    """Returns a random colour lighter than ``background``."""
    colours = rng.integers(0, 256, (24, 3)).astype(np.float32)
    gap = (colours @ LUMA)[:, None] - (background @ LUMA).reshape(-1)
    clear = (gap >= rng.uniform(80, 130)).mean(1)
    good = np.flatnonzero(clear >= 0.9)
    return colours[good[0] if len(good) else (colours @ LUMA).argmax()]


def leaves_visible(obj, window, ink):
    """Whether an object stays visible under ``ink`` in ``window``."""
    ends = [(max(a.start, b.start), min(a.stop, b.stop))
            for a, b in zip(obj['window'], window)]
    common = np.prod([max(stop - start, 0) for start, stop in ends])
    smaller = min(obj['ink'].size, ink.size)
    visible = obj['mask'].sum() - obj['mask'][window][ink].sum()
    return (common <= MAX_BOX_OVERLAP * smaller
            and visible >= MIN_VISIBLE * obj['ink'].sum())


def compose(source, size, labels, scale, spread, ease, rng):
    """Paste digits of ``labels`` over a crop of a photograph.

    Args:
        source (Source): The split's digits and photographs.
        size (tuple[int]): Height and width.
        labels (Iterable[int]): The classes, the lowest digit first.
        scale (tuple[float]): Least and greatest height of a digit, as part of
            the image's shorter side.
        spread (float): 0 for digits in the centre, 1 for anywhere.
        ease (float): 0 for coloured digits over the photograph, 1 for white
            ones on a plain dark ground.
        rng (np.random.Generator): The randomness.

    Returns:
        tuple: The RGB uint8 image and, for each digit that found a place, a
        dict of ``label``, ``mask`` (bool, what is visible of it), and, from
        before later digits covered some, ``ink`` (bool) in its ``window``.
    """
    image = crop_photo(source.photos, size, ease, rng)
    objects = []
    for label in labels:
        samples = source.digits[source.labels == label]
        alpha = render_digit(samples[rng.integers(len(samples))],
                             min(size) * rng.uniform(*scale), rng)
        ink = alpha >= 0.5
        room = np.subtract(size, ink.shape) + 0.999
        for _ in range(TRIES):
            corner = room * (0.5 + spread * (rng.random(2) - 0.5))
            y, x = corner.astype(int)
            window = slice(y, y + ink.shape[0]), slice(x, x + ink.shape[1])
            if all(leaves_visible(obj, window, ink) for obj in objects):
                break
        else:
            continue
        for obj in objects:
            obj['mask'][window] &= ~ink
        mask = np.zeros(size, bool)
        mask[window] = ink
        objects.append(
            dict(label=int(label), mask=mask, ink=ink, window=window))
        part = image[window]
        colour = choose_colour(part, rng)
        colour += ease * (WHITE - colour)
        part += alpha[..., None] * (colour - part)
    image += rng.uniform(0, 4) * rng.standard_normal(image.shape, np.float32)
    return np.clip(image, 0, 255).round().astype(np.uint8), objects


def make_scene(sources, split, index, args):
    """Returns image ``index`` of a split of the COCO and ADE layouts."""
    rng = np.random.default_rng([args.seed, SPLITS.index(split), index])
    labels = rng.integers(10, size=rng.integers(1, args.max_objects + 1))
    return compose(sources[split], args.size, labels, (0.3, 0.6), 1, 0, rng)


def make_crop(sources, split, index, args):
    """Returns image ``index`` of a split of the ImageNet layout."""
    rng = np.random.default_rng([args.seed, 2 + SPLITS.index(split), index])
    # From hard to easy: on scenes alone, a classifier that starts at random
    # stays at chance for thousands of images.
    ease = args.min_ease + (1 - args.min_ease) * rng.random()
    return compose(sources[split], args.size, [index % 10], (0.6, 0.85), 0.6,
                   ease, rng)


def make_all(make, sources, split, name, args):
    """Yields each index with its image and objects; says how far it is."""
    count = args.counts[make][split]
    for index in range(count):
        yield (index, *make(sources, split, index, args))
        if (index + 1) % 100 == 0 or index + 1 == count:
            print(f'\r{name} {split}: {index + 1}/{count}', end='', flush=True)
    print()


def write_image(path, image):
    """Write an RGB (JPEG of OpenCV's quality 95) or a one-channel image."""
    image = image[..., ::-1] if image.ndim == 3 else image
    if not cv2.imwrite(str(path), image):
        raise OSError(f'cannot write {path}')


def write_coco(root, sources, args):
    """Write instances with exact masks (RLE) in COCO's layout."""
    (root / 'annotations').mkdir(parents=True)
    height, width = args.size
    for split in SPLITS:
        data = dict(
            info=dict(description=CREDITS, version=str(VERSION)),
            licenses=[LICENSE],
            images=[],
            annotations=[],
            categories=[
                dict(id=i, name=name, supercategory='digit')
                for i, name in enumerate(CLASSES, 1)
            ])
        (root / f'{split}2017').mkdir()
        for index, image, objects in make_all(make_scene, sources, split,
                                              'coco', args):
            name = f'{index + 1:012d}.jpg'
            write_image(root / f'{split}2017' / name, image)
            data['images'].append(
                dict(
                    id=index + 1,
                    file_name=name,
                    height=height,
                    width=width,
                    license=1))
            for obj in objects:
                rle = mask_utils.encode(
                    np.asfortranarray(obj['mask'], np.uint8))
                data['annotations'].append(
                    dict(
                        id=len(data['annotations']) + 1,
                        image_id=index + 1,
                        category_id=obj['label'] + 1,
                        segmentation=dict(rle, counts=rle['counts'].decode()),
                        bbox=mask_utils.toBbox(rle).tolist(),
                        area=int(mask_utils.area(rle)),
                        iscrowd=0))
        path = root / 'annotations' / f'instances_{split}2017.json'
        path.write_text(json.dumps(data))


def write_ade(root, sources, args):
    """Write the same scenes as semantic maps in ADE20K's layout."""
    for split, name in zip(SPLITS, ('training', 'validation')):
        for kind in ('images', 'annotations'):
            (root / kind / name).mkdir(parents=True)
        for index, image, objects in make_all(make_scene, sources, split,
                                              'ade', args):
            labels = np.ones(args.size, np.uint8)
            for obj in objects:
                labels[obj['mask']] = obj['label'] + 2
            stem = f'{index + 1:012d}'
            write_image(root / 'images' / name / f'{stem}.jpg', image)
            write_image(root / 'annotations' / name / f'{stem}.png', labels)


def write_imagenet(root, sources, args):
    """Write one digit an image, the classes in turn, in a folder a class."""
    for split in SPLITS:
        for name in CLASSES:
            (root / split / name).mkdir(parents=True)
        for index, image, objects in make_all(make_crop, sources, split,
                                              'imagenet', args):
            folder = root / split / CLASSES[objects[0]['label']]
            write_image(folder / f'{index + 1:08d}.jpg', image)


WRITERS = dict(coco=write_coco, ade=write_ade, imagenet=write_imagenet)


def draw_contact_sheet(path, sources, args, columns=6):
    """Draw the first images of each split with their boxes and masks."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    rows = [('scenes', make_scene, s, i) for s in SPLITS for i in (0, columns)]
    rows += [('imagenet', make_crop, s, 0) for s in SPLITS]
    figure = Figure((2.1 * columns, 2.1 * len(rows)))
    grid = dict(left=0.03, right=0.995, bottom=0.005, top=0.985)
    grid.update(wspace=0.04, hspace=0.04)
    axes = figure.subplots(len(rows), columns, gridspec_kw=grid)
    for line, (title, make, split, first) in zip(axes, rows):
        line[0].set_ylabel(f'{title}, {split}', fontsize=12)
        for index, ax in enumerate(line, first):
            ax.set(xticks=[], yticks=[])
            if index >= args.counts[make][split]:
                continue
            image, objects = make(sources, split, index, args)
            ax.imshow(image)
            for obj in objects:
                colour = colormaps['tab10'](obj['label'])
                x, y, w, h = cv2.boundingRect(obj['mask'].astype(np.uint8))
                x, y = x - 0.5, y - 0.5  # a pixel's corner, not its centre
                ax.plot([x, x + w, x + w, x, x], [y, y, y + h, y + h, y],
                        color=colour)
                ax.contour(obj['mask'], [0.5], colors='w', linewidths=0.7)
                tag = dict(facecolor=colour, pad=1, linewidth=0)
                name = CLASSES[obj['label']]
                ax.text(x, y, name, color='w', fontsize=8, bbox=tag)
    figure.savefig(path, dpi=110, metadata=dict(Software=TOOL))


def number(low, high):
    """Returns an argument type for whole numbers from ``low`` to ``high``."""

    def convert(text):
        if text.isdecimal() and low <= int(text) <= high:
            return int(text)
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a whole number from {low} to {high}')

    return convert


def fraction(text):
    """An argument type for numbers from 0 to 1."""
    try:
        if 0 <= float(text) <= 1:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f'{text!r} is not a number from 0 to 1')


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'out_dir',
        nargs='?',
        type=Path,
        default=Path('data/digits'),
        metavar='OUT_DIR',
        help='where the layouts go (default: %(default)s)')
    parser.add_argument(
        '--size',
        nargs='+',
        type=number(32, 1024),
        default=[128],
        metavar='N',
        help='height and width of the images, or one number for both '
        '(default: 128)')
    numbers = dict(
        num_train=(1800, 1, 999999, 'number of training scenes'),
        num_val=(200, 1, 999999, 'number of validation scenes'),
        imagenet_train=(8000, 10, 999999, 'training images of all classes'),
        imagenet_val=(500, 10, 999999, 'validation images of all classes'),
        max_objects=(4, 1, 20, 'most digits in a scene'),
        seed=(0, 0, 2**32 - 1, 'seed of the split and of the images'))
    for name, (default, low, high, text) in numbers.items():
        parser.add_argument(
            '--' + name.replace('_', '-'),
            type=number(low, high),
            default=default,
            metavar='N',
            help=f'{text} (default: {default})')
    parser.add_argument(
        '--min-ease',
        type=fraction,
        default=0.,
        metavar='EASE',
        help='of the imagenet layout, from 0, the default, to 1, where all '
        'digits are white on a plain dark ground')
    parser.add_argument(
        '--layouts',
        nargs='+',
        choices=list(WRITERS),
        default=list(WRITERS),
        help='what to write (default: all)')
    args = parser.parse_args(argv)
    if len(args.size) > 2:
        parser.error(f'argument --size: {args.size} is neither one number '
                     'nor height and width')
    if args.out_dir.exists() and not args.out_dir.is_dir():
        parser.error(f'argument OUT_DIR: {args.out_dir} is not a folder')
    args.size = (args.size * 2)[:2]
    args.counts = {
        make_scene: dict(train=args.num_train, val=args.num_val),
        make_crop: dict(train=args.imagenet_train, val=args.imagenet_val)
    }
    return args


def describe(layout, args):
    """Returns what ``digits.json`` says of a layout made with ``args``."""
    meta = dict(tool=TOOL, version=VERSION, seed=args.seed, size=args.size)
    if layout == 'imagenet':
        if args.min_ease:
            meta['min_ease'] = args.min_ease
        return dict(meta, images=args.counts[make_crop])
    return dict(
        meta, images=args.counts[make_scene], max_objects=args.max_objects)


def is_current(folder, meta):
    """Whether ``meta`` describes a layout; refuses another's folder."""
    if not os.path.lexists(folder):
        return False
    try:
        found = json.loads((folder / 'digits.json').read_text())
        if found['tool'] == TOOL:
            return found == meta
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise SystemExit(f'{folder} was not made by {TOOL} (it has no digits.json '
                     'of it): move it away or choose another OUT_DIR')


def check_sheet(path):
    """Refuse to replace a picture that was not drawn here."""
    mark = f'Software\0{TOOL}'.encode()
    if os.path.lexists(path) and mark not in path.read_bytes():
        raise SystemExit(f'{path} was not made by {TOOL}: move it away or '
                         'choose another OUT_DIR')


@plain_errors()
def main(argv=None):
    args = parse_args(argv)
    root, sheet = args.out_dir, args.out_dir / 'contact_sheet.png'
    metas = {name: describe(name, args) for name in args.layouts}
    stale = [n for n in metas if not is_current(root / n, metas[n])]
    if stale:
        check_sheet(sheet)
        sources = load_sources(args.seed)
        root.mkdir(parents=True, exist_ok=True)
        # All is made aside and then renamed, so that a killed run leaves
        # nothing that looks complete, only this hidden folder.
        with tempfile.TemporaryDirectory(prefix='.digits-', dir=root) as temp:
            temp = Path(temp)
            for name in stale:
                WRITERS[name](temp / name, sources, args)
                path = temp / name / 'digits.json'
                path.write_text(json.dumps(metas[name]))
            draw_contact_sheet(temp / sheet.name, sources, args)
            os.replace(temp / sheet.name, sheet)
            for name in stale:
                if os.path.lexists(root / name):
                    os.replace(root / name, temp / f'old-{name}')
                os.replace(temp / name, root / name)
    for name in metas:
        images = metas[name]['images']
        print(f'{root / name}: {images["train"]} training and {images["val"]} '
              'validation images' + ('' if name in stale else ', up to date'))
    print(f'{sheet}: samples')


if __name__ == '__main__':
    main()
