# Copyright (c) mmweightformer contributors. All rights reserved.
"""Checks of datasets that are lists or folders of files."""
import os
import os.path as osp
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set

from .faults import Faults


def find_absent(folder: str, names: Iterable[str]) -> Iterator[str]:
    """The names that no file below ``folder`` has.

    Each folder is listed once, which is far quicker than to ask for each
    file.
    """
    listed: Dict[str, Set[str]] = {}
    for name in names:
        parent, base = osp.split(osp.join(folder, name))
        if parent not in listed:
            listed[parent] = set(
                os.listdir(parent)) if osp.isdir(parent) else set()
        if base not in listed[parent]:
            yield name


def check_names(folder: str, names: Sequence[str], where: str,
                faults: Faults) -> None:
    """Check that named files are there, and are below their folder."""
    for name in find_absent(folder, names):
        faults.add(where, f'it names files that are not in {folder}', name)
    root = osp.abspath(folder)
    for name in names:
        if not osp.abspath(osp.join(root, name)).startswith(root + os.sep):
            faults.add(
                where,
                f'it names files outside of {folder}, which are read',
                name,
                stops=False)


def _suffixes(folder: str) -> List[str]:
    return sorted({osp.splitext(name)[1]
                   for name in os.listdir(folder)}) or ['no files']


def check_segmentation(dataset: Any, field: str, with_labels: bool,
                       faults: Faults) -> Optional[Sequence[str]]:
    """Check that an mmseg dataset has images, and masks for all of them.

    Args:
        dataset (BaseSegDataset): The dataset, which has read no file.
        field (str): The dataset's place in the config.
        with_labels (bool): Whether its pipeline loads masks.
        faults (Faults): What is wrong is added to it.

    Returns:
        tuple[str], optional: The classes; None if there are none.
    """
    classes = dataset.metainfo.get('classes')
    if classes is None and dataset.test_mode:
        faults.add(field, 'evaluation needs metainfo=dict(classes=(...))')
    images = dataset.data_prefix['img_path']
    masks = dataset.data_prefix.get('seg_map_path')
    if dataset.ann_file and not osp.isdir(dataset.ann_file):
        with open(dataset.ann_file, errors='replace') as file:
            stems = [line.strip() for line in file]
        where = f'{dataset.ann_file}  ({field}.ann_file)'
        check_names(images, [stem + dataset.img_suffix for stem in stems],
                    where, faults)
        lacking = 'it is empty'
    else:
        end = len(dataset.img_suffix)
        stems = [
            osp.relpath(osp.join(root, name), images)[:-end]
            for root, _, names in os.walk(images) for name in sorted(names)
            if name.endswith(dataset.img_suffix)
        ]
        where = f'{images}  ({field}.data_prefix.img_path)'
        lacking = (f'no image ends with img_suffix={dataset.img_suffix!r}: '
                   f'there are {", ".join(_suffixes(images)[:8])}')
    if not stems:
        faults.add(where, lacking)
    if masks is not None and with_labels:
        names = [stem + dataset.seg_map_suffix for stem in stems]
        for name in find_absent(masks, names):
            faults.add(
                f'{masks}  ({field}.data_prefix.seg_map_path)',
                'masks are missing, of seg_map_suffix='
                f'{dataset.seg_map_suffix!r}', name)
    return classes


def check_classification(dataset: Any, field: str,
                         faults: Faults) -> Optional[Sequence[str]]:
    """Check the folders or the list of mmpretrain's ``CustomDataset``.

    Args:
        dataset (CustomDataset): The dataset, which has read no file.
        field (str): The dataset's place in the config.
        faults (Faults): What is wrong is added to it.

    Returns:
        tuple[str], optional: The classes; None if there are none.
    """
    classes, folder = dataset.CLASSES, dataset.img_prefix
    if not dataset.with_label:
        return None
    if dataset.ann_file:
        _check_labelled_list(dataset, field, faults)
        return classes
    where = f'{folder}  ({field})'
    folders = sorted(
        entry.name for entry in os.scandir(folder)
        if entry.is_dir() and not entry.name.startswith('.'))
    if classes is not None and len(folders) != len(classes):
        faults.add(
            where, f'it has {len(folders)} folders ({name_few(folders)}) for '
            f'{len(classes)} classes ({name_few(classes)}): each needs one. '
            f'Other classes: {field}.metainfo=dict(classes=(...))')
    if not any(
            dataset.is_valid_file(name) for sub in folders
            for _, _, names in os.walk(osp.join(folder, sub))
            for name in names):
        faults.add(
            where, 'no file in its folders ends with one of '
            f'{", ".join(sorted(dataset.extensions))}')
    return folders if classes is None else classes


def _check_labelled_list(dataset: Any, field: str, faults: Faults) -> None:
    where = f'{dataset.ann_file}  ({field}.ann_file)'
    with open(dataset.ann_file, errors='replace') as file:
        lines = file.read().splitlines()
    if not lines:
        faults.add(where, 'it is empty')
    names = []
    high = None if dataset.CLASSES is None else len(dataset.CLASSES)
    for number, line in enumerate(lines, 1):
        name, _, label = line.strip().rpartition(' ')
        try:
            value = int(label)
        except ValueError:
            name = ''
        if not name:
            faults.add(where, 'a line must be a name, a space and a label',
                       f'line {number}')
            continue
        names.append(name)
        if value < 0 or high is not None and value >= high:
            allowed = 'at least 0' if high is None else f'0 to {high - 1}'
            faults.add(where, f'a label must be {allowed}',
                       f'{value} in line {number}')
    check_names(dataset.img_prefix, names, where, faults)


def name_few(names: Sequence[str], number: int = 5) -> str:
    """The first of the names, and an ellipsis if there are more."""
    more = ', …' if len(names) > number else ''
    return ', '.join(map(repr, names[:number])) + more
