# Copyright (c) mmweightformer contributors. All rights reserved.
"""Checks of a file of COCO's form as mmdet will read it."""
import gc
import json
import math
import os.path as osp
from collections import Counter
from contextlib import contextmanager
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .check_lists import check_names, name_few
from .faults import Faults
from .run_length import count_pixels

KEYS = dict(
    images=('id', 'file_name', 'height', 'width'),
    annotations=('id', 'image_id', 'category_id', 'bbox', 'area'),
    categories=('id', 'name'))
# pycocotools draws an outline pixel by pixel, however long it is.
MAX_COORDINATE = 1e6
UNFILLED = ('counts of a mask must be whole numbers of at least 0, or these '
            'compressed, that add up to its pixels, or the rest of it is what '
            'memory holds')


@contextmanager
def _no_garbage_collection():
    """Half the time of reading millions of objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def check_coco(dataset: Any, field: str, with_mask: bool,
               faults: Faults) -> Optional[Sequence[str]]:
    """Check the annotations of an mmdet ``CocoDataset``, and their images.

    Args:
        dataset (CocoDataset): The dataset, which has read no file.
        field (str): The dataset's place in the config.
        with_mask (bool): Whether its pipeline loads masks.
        faults (Faults): What is wrong is added to it.

    Returns:
        list[str], optional: The classes in the order of their labels, which
        is that of the file; None where it cannot be read.
    """
    where = f'{dataset.ann_file}  ({field}.ann_file)'
    if 'img' not in dataset.data_prefix:
        faults.add(f'{field}.data_prefix', 'it must have img, the folder of '
                   'images')
        return None
    with _no_garbage_collection():
        data = _read(dataset.ann_file, where, dataset.test_mode, faults)
        if data is None:
            return None
        try:
            names = _check_categories(data, dataset, field, where, faults)
            if not names:
                return None
            _check_ids(data, dataset, where, faults)
            _check_images_left(data, dataset, field, where, faults)
            _check_annotations(data, dataset, with_mask, where, faults)
        except TypeError as error:  # such as an id that is a list
            faults.add(where, f"it has not COCO's form: {error}")
            return None
        check_names(dataset.data_prefix['img'],
                    [image['file_name'] for image in data['images']], where,
                    faults)
    return names


def _read(path: str, where: str, test_mode: bool,
          faults: Faults) -> Optional[Dict[str, List[dict]]]:
    """The file's content, or None where it has not COCO's form."""
    try:
        with open(path) as file:
            data = json.load(file)
    except (ValueError, RecursionError) as error:  # of JSON or of UTF-8
        faults.add(where, f'it is no JSON, or not written to its end: {error}')
        return None
    if isinstance(data, dict) and test_mode:
        data.setdefault('annotations', [])  # a test set may have none
    lists = {key: data.get(key) if isinstance(data, dict) else None
             for key in KEYS}  # yapf: disable
    lacking = [key for key, value in lists.items()
               if not isinstance(value, list)]  # yapf: disable
    if lacking:
        faults.add(
            where, "it has not COCO's form, a dict with the lists images, "
            f'annotations and categories: no {", ".join(lacking)}')
        return None
    sound = True
    for key, keys in KEYS.items():
        for i, entry in enumerate(lists[key]):
            if not isinstance(entry, dict):
                lacking = [f'not a dict but {entry!r:.30}']
            else:
                lacking = [name for name in keys if name not in entry]
                if key == 'images' and not lacking:
                    lacking = _bad_values(entry)
            if lacking:
                sound = False
                faults.add(where, f'{key} must have {", ".join(keys)}',
                           f'{key}[{i}] lacks {", ".join(lacking)}')
    return lists if sound else None


def _bad_values(image: dict) -> List[str]:
    bad = [key for key in ('height', 'width')
           if not _is_number(image[key]) or image[key] <= 0]  # yapf: disable
    if not isinstance(image['file_name'], str):
        bad.append('file_name')
    return [f'a valid {key}' for key in bad]


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _class_ids(data: dict, dataset: Any) -> Dict[Any, str]:
    classes = dataset.metainfo['classes']
    return {
        c['id']: c['name']
        for c in data['categories'] if c['name'] in classes
    }


def _show(names: Sequence[str]) -> str:
    return f'({name_few(names, 10)})'


def _check_categories(data: dict, dataset: Any, field: str, where: str,
                      faults: Faults) -> List[str]:
    classes = dataset.metainfo['classes']
    names = [category['name'] for category in data['categories']]
    found = [name for name in names if name in classes]
    if not found:
        faults.add(
            where, f'none of its {len(names)} categories {_show(names)} is one'
            f' of the {len(classes)} classes {_show(classes)}. Set {field}.'
            f'metainfo=dict(classes={_show(names)})')
        return []
    for values, what in ((found, 'names'),
                         ([c['id'] for c in data['categories']], 'ids')):
        for value, number in Counter(values).items():
            if number > 1:
                faults.add(where, f'{what} of categories occur more than once',
                           repr(value))
    for name in classes:
        if name not in names:
            faults.add(
                where,
                'classes are none of its categories, and the labels of those '
                'behind them are lower',
                repr(name),
                stops=False)
    if found != [name for name in classes if name in found]:
        faults.add(
            where,
            'its categories have another order than the classes, so that '
            'class_names of predictions are wrong',
            _show(found),
            stops=False)
    number = Counter(a['category_id'] for a in data['annotations'])
    for category in data['categories']:
        if category['name'] not in classes and number[category['id']]:
            faults.add(
                where,
                'annotations are left out, as their categories are none of '
                'the classes',
                f'{number[category["id"]]} of {category["name"]!r}',
                stops=False)
    return found


def _check_ids(data: dict, dataset: Any, where: str, faults: Faults) -> None:
    ids = {key: Counter(entry['id'] for entry in data[key]) for key in data}
    for key, stops, what in (
        ('images', False, 'ids of images occur more than once, and mmdet '
         'keeps the last of each'),
        ('annotations', dataset.ANN_ID_UNIQUE,
         'ids of annotations occur more than once'),
    ):
        for value, number in ids[key].items():
            if number > 1:
                faults.add(where, what, repr(value), stops)
    for key, known in (('image_id', 'images'), ('category_id', 'categories')):
        for ann in data['annotations']:
            if ann[key] not in ids[known]:
                faults.add(
                    where,
                    f'annotations are left out, as {known} have no such id',
                    f'{key}={ann[key]!r} of {ann["id"]}',
                    stops=False)


def _check_images_left(data: dict, dataset: Any, field: str, where: str,
                       faults: Faults) -> None:
    """As ``CocoDataset.filter_data`` does it."""
    filter_cfg = {} if dataset.test_mode else dataset.filter_cfg or {}
    class_ids = _class_ids(data, dataset)
    annotated = {a['image_id'] for a in data['annotations']
                 if a['category_id'] in class_ids}  # yapf: disable
    low = filter_cfg.get('min_size', 0)
    if not any((image['id'] in annotated
                or not filter_cfg.get('filter_empty_gt', False))
               and min(image['width'], image['height']) >= low
               for image in data['images']):
        faults.add(
            where, f'{field}.filter_cfg={dict(filter_cfg)} leaves none of its '
            f'{len(data["images"])} images, of which '
            f'{len(annotated & {i["id"] for i in data["images"]})} have '
            'annotations of the classes')


def _check_annotations(data: dict, dataset: Any, with_mask: bool, where: str,
                       faults: Faults) -> None:
    sizes = {i['id']: (i['height'], i['width']) for i in data['images']}
    class_ids = _class_ids(data, dataset)
    for ann in data['annotations']:
        size = sizes.get(ann['image_id'])
        if ann.get('ignore', False) or size is None:
            continue
        if with_mask and not _has_sound_polygons(ann.get('segmentation')):
            faults.add(
                where, 'coordinates of a polygon must be numbers within '
                f'±{MAX_COORDINATE:.0e}, or drawing it takes all memory',
                str(ann['id']))
        elif not (isinstance(ann['bbox'], list) and len(ann['bbox']) == 4
                  and all(map(_is_number, ann['bbox']))
                  and _is_number(ann['area'])):
            faults.add(
                where, 'a bbox must be [x, y, width, height] of finite numbers'
                ', and an area one number', f'{ann["id"]} with {ann["bbox"]}')
        elif _is_left_out(ann, size):
            faults.add(
                where,
                'annotations are left out, as their boxes are outside of the '
                'image, below one pixel wide or high, or have no area',
                f'{ann["id"]} with {ann["bbox"]}',
                stops=False)
        elif with_mask and ann['category_id'] in class_ids:
            what, stops = _check_segmentation(ann.get('segmentation'), size)
            if what:
                faults.add(where, what, str(ann['id']), stops)


def check_evaluated(path: str, evaluated: str, field: str,
                    faults: Faults) -> None:
    """Check what pycocotools needs once all images are through the model.

    Args:
        path (str): The dataset's file.
        evaluated (str): The evaluator's, which may be the same.
        field (str): The latter's place in the config.
        faults (Faults): What is wrong is added to it.
    """
    where, is_same = f'{evaluated}  ({field})', osp.samefile(path, evaluated)
    with _no_garbage_collection():
        # Of the dataset's own file all is said where that is checked.
        data = _read(evaluated, where, True, Faults() if is_same else faults)
        own = data if is_same else _read(path, '', True, Faults())
    if data is None or own is None:
        return
    for ann in data['annotations']:
        if type(ann['id']) is not int:
            faults.add(
                where, 'ids of annotations must be integers to be '
                'evaluated', repr(ann['id']))
        elif ann['id'] == 0:
            faults.add(
                where,
                'annotations with the id 0 count as missed, whatever is found',
                f'image_id={ann["image_id"]!r}',
                stops=False)
        if ann.get('iscrowd') not in (0, 1):
            faults.add(
                where, 'annotations must have an iscrowd of 0 or 1 to be '
                'evaluated', f'{ann["id"]} with {ann.get("iscrowd")!r}')
    ids = {str(image['id']) for image in data['images']}
    for image in own['images']:
        if str(image['id']) not in ids:
            faults.add(where, f'it lacks images of {path}, the dataset\'s '
                       'file', repr(image['file_name']))


def _is_left_out(ann: dict, size: Tuple[float, float]) -> bool:
    """As ``CocoDataset.parse_data_info`` does it."""
    (x, y, w, h), (height, width) = ann['bbox'], size
    inside = (min(x + w, width) > max(x, 0) and min(y + h, height) > max(y, 0))
    return not inside or ann['area'] <= 0 or w < 1 or h < 1


def _has_sound_polygons(segmentation: Any) -> bool:
    """Whether what mmdet and pycocotools will draw can be drawn."""
    if not isinstance(segmentation, list):
        return True
    try:
        return all(
            math.isfinite(sum(polygon)) and max(polygon) <= MAX_COORDINATE
            and min(polygon) >= -MAX_COORDINATE for polygon in segmentation
            if isinstance(polygon, list) and _is_drawn(polygon))
    except (TypeError, OverflowError):
        return False


def _is_drawn(polygon: list) -> bool:
    """As ``LoadAnnotations`` does it."""
    return len(polygon) >= 6 and len(polygon) % 2 == 0


def _check_segmentation(segmentation: Any,
                        size: Tuple[float, float]) -> Tuple[str, bool]:
    """What is wrong, or nothing, and whether mmdet stops at it."""
    if not segmentation:
        return 'annotations have no segmentation, and masks are loaded', True
    if isinstance(segmentation, dict):
        counts = segmentation.get('counts')
        if not isinstance(counts, (list, str)) or 'size' not in segmentation:
            return 'masks lack counts or size, and are ignored regions', False
        if tuple(segmentation['size']) != size:
            return 'masks have another size than their image', True
        try:
            is_filled = count_pixels(counts) == math.prod(size)
        except ValueError:
            is_filled = False
        return ('' if is_filled else UNFILLED), True
    if not isinstance(segmentation, list) or not all(
            isinstance(polygon, list) for polygon in segmentation):
        return 'a segmentation must be a list of polygons, each a list', True
    if not any(map(_is_drawn, segmentation)):
        return ('polygons have fewer than three points, or an odd number of '
                'coordinates, and are ignored regions', False)
    return '', False
