# Copyright (c) mmweightformer contributors. All rights reserved.
"""Reads each file of a dataset as training will."""
import os
import os.path as osp
from typing import Any, Callable, List, NamedTuple, Optional

import numpy as np
import torch
from mmengine.dataset import Compose
from mmengine.utils import track_parallel_progress, track_progress
from PIL import Image, UnidentifiedImageError

from .faults import Faults

EXIF_ORIENTATION = 0x0112
IGNORED = 255


class Found(NamedTuple):
    """A fault of one file: what, which, and whether a run stops at it."""
    what: str
    name: str
    stops: bool


class Reader:
    """Loads an item by the loading transforms of its pipeline.

    Args:
        dataset (BaseDataset): The dataset, which may have no pipeline.
        pipeline (list): The transforms that load.
        num_classes (int, optional): Labels must be below. Default: None.
        trains (bool): Whether a wrong label meets a loss. Default: True.
    """

    def __init__(self,
                 dataset: Any,
                 pipeline: list,
                 num_classes: Optional[int] = None,
                 trains: bool = True) -> None:
        self.dataset, self.load = dataset, Compose(pipeline)
        self.num_classes, self.trains = num_classes, trains

    def __len__(self) -> int:
        return len(self.dataset)

    def __call__(self, index: int) -> List[Found]:
        """Returns what is wrong with an item."""
        item = self.dataset.get_data_info(index)
        image_path = item['img_path']
        try:
            item = self.load(item)
        except FileNotFoundError:
            return []  # named by the check of the lists
        except Exception as error:
            # What a reader raises is up to it.
            path = image_path
            if item.get('img') is not None:
                path = item.get('seg_map_path') or path
            if osp.isfile(path) and osp.getsize(path) == 0:
                error = 'it is empty'
            text = str(error).replace(path, '').strip(': \n') or 'no text'
            return [
                Found('files cannot be read',
                      f'{path} ({text.splitlines()[-1][:120]})', True)
            ]
        if item.get('img') is None:
            return []  # not an image's file
        found = self._check_image(item, image_path)
        if item.get('gt_seg_map') is not None:
            found += self._check_map(item)
        if hasattr(item.get('gt_masks'), 'masks'):
            found += self._check_masks(item, image_path)
        return found

    def _check_image(self, item: dict, path: str) -> List[Found]:
        (height, width), found = item['ori_shape'][:2], []
        rotated = ''
        try:
            with Image.open(path) as image:
                if image.getexif().get(EXIF_ORIENTATION, 1) >= 5:
                    rotated = ', after it is turned by its EXIF orientation'
                image.load()
        except UnidentifiedImageError:
            pass  # another format than Pillow knows, and it was read
        except (OSError, SyntaxError, ValueError,
                Image.DecompressionBombError) as error:
            found.append(
                Found('images are damaged, and trained on as far as they go',
                      f'{path} ({error})', False))
        named = item.get('height', height), item.get('width', width)
        if named != (height, width):
            found.append(
                Found(
                    'images have another size than their annotations say, so '
                    'that boxes and masks are perhaps elsewhere',
                    f'{path} is {width}×{height}{rotated}, not '
                    f'{named[1]}×{named[0]}', False))
        return found

    def _check_map(self, item: dict) -> List[Found]:
        labels, path = item['gt_seg_map'], item['seg_map_path']
        if labels.ndim != 2:
            return [
                Found('masks must have one channel', f'{path} has '
                      f'{labels.shape[-1]}', True)
            ]
        found = []
        highest = _highest_label(path)
        if highest > 255:
            found.append(
                Found('labels above 255 are taken modulo 256',
                      f'{path} has {highest}', False))
        if labels.shape != item['img'].shape[:2]:
            size, of_image = ('×'.join(map(str, array.shape[1::-1]))
                              for array in (labels, item['img']))
            found.append(
                Found('masks must be as large as their images',
                      f'{path} is {size}, not {of_image}', True))
        if self.num_classes is not None:
            values = np.unique(labels)
            wrong = values[(values >= self.num_classes) & (values != IGNORED)]
            if len(wrong):
                shift = int(bool(item.get('reduce_zero_label')))
                last = self.num_classes - 1 + shift
                found.append(
                    Found(
                        f'labels of a mask must be {shift} to {last}, or '
                        f'{IGNORED}, which is ignored' +
                        (' as is 0'
                         if shift else ' (0 is for reduce_zero_label=True)'),
                        f'{path} has {", ".join(map(str, wrong[:5] + shift))}',
                        self.trains))
        return found

    def _check_masks(self, item: dict, path: str) -> List[Found]:
        masks, ignored = item['gt_masks'].masks, item['gt_ignore_flags']
        return [
            Found('masks have no pixel, and are trained on as empty',
                  f'{path} in box {np.round(box.tolist(), 1).tolist()}', False)
            for mask, flag, box in zip(masks, ignored,
                                       item['gt_bboxes'].tensor)
            if not flag and not np.any(mask)
        ]


def _highest_label(path: str) -> float:
    """That of a file of one channel."""
    try:
        with Image.open(path) as image:
            return image.getextrema()[1]
    except OSError:
        return 0  # another format than Pillow knows, and it was read


_reader: Optional[Callable] = None


def _start_worker(reader: Callable) -> None:
    global _reader
    _reader = reader
    torch.set_num_threads(1)


def _read(index: int) -> List[Found]:
    return _reader(index)


def check_files(reader: Reader, where: str, faults: Faults) -> None:
    """Read all items of a dataset, and show the progress.

    Args:
        reader (Reader): Reads an item.
        where (str): The dataset's place in the config.
        faults (Faults): What is wrong is added to it.
    """
    indices = list(range(len(reader)))
    num_workers = min(os.cpu_count() or 1, 8, len(indices) // 100)
    if num_workers > 1:
        results = track_parallel_progress(
            _read,
            indices,
            num_workers,
            initializer=_start_worker,
            initargs=(reader, ),
            chunksize=16)
    else:
        results = track_progress(reader, indices)
    for found in results:
        for what, name, stops in found:
            faults.add(where, what, name, stops)
