# Copyright (c) mmweightformer contributors. All rights reserved.
import os.path as osp
from itertools import zip_longest
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from mmengine.config import Config
from mmengine.model import is_model_wrapper
from mmengine.registry import DATASETS
from torch import nn

from .check_coco import check_coco, check_evaluated
from .check_files import Reader, check_files
from .check_lists import check_classification, check_segmentation
from .faults import Faults
from .preflight import walk_config

# The classes whose files are known, and the methods by which they read them.
READERS = {
    'mmdet.datasets.coco.CocoDataset':
    ('load_data_list', 'parse_data_info', 'filter_data'),
    'mmseg.datasets.basesegdataset.BaseSegDataset': ('load_data_list', ),
    'mmpretrain.datasets.custom.CustomDataset':
    ('load_data_list', '_find_samples', 'is_valid_file'),
}


class _Known(NamedTuple):
    """A dataset of the config whose files are known."""
    stage: str
    field: str
    kind: str  # the class's name in READERS
    cfg: dict


def check_data(cfg: Config,
               stages: Sequence[str],
               model: Optional[nn.Module] = None,
               read_files: bool = False) -> Faults:
    """Look for faults of the data at which training or testing would stop.

    Looked at are, in seconds, COCO's annotation files, the folders and lists
    of mmseg's and mmpretrain's datasets, their classes, and the
    ``num_classes`` of the model: not what is in images and masks. Datasets of
    other kinds, remote ones and those behind a file backend are left to their
    readers, and so are files that :func:`find_missing_files` names.

    Args:
        cfg (Config): Config of a runner, whose scope is the default one.
        stages (Sequence[str]): The stages whose data are checked, of 'train',
            'val' and 'test'.
        model (nn.Module, optional): The model. Default: None.
        read_files (bool): Whether to read each image and mask as well, which
            takes as long as an epoch's loading. Default: False.

    Returns:
        Faults: What is wrong.
    """
    faults, labels = Faults(), {}
    for known in _known_datasets(cfg, stages):
        lazy = _build(known, faults, lazy_init=True)
        if lazy is None:
            continue
        own = Faults()
        classes = _check_lists(known, lazy, own)
        faults.update(own)
        if known.kind.startswith('mmdet') and classes:
            labels[known.field] = classes
        names = lazy.metainfo.get('classes') or classes
        if names and not isinstance(names, str):
            _check_num_classes(known, len(names), model, faults)
        _check_evaluators(known, lazy, cfg, faults)
        if read_files:
            _check_files(known, names and len(names), own, faults)
    _check_same_labels(labels, faults)
    return faults


def _known_datasets(cfg: Config, stages: Sequence[str]) -> Iterator[_Known]:
    for stage in stages:
        field = f'{stage}_dataloader'
        loader = cfg.get(field)
        if not isinstance(loader, dict):
            continue
        for field, node in _leaves(loader.get('dataset'), f'{field}.dataset'):
            if _is_remote(node):
                continue
            kind = _kind(node['type'])
            if kind is not None:
                yield _Known(stage, field, kind, node)


def _is_remote(dataset: dict) -> bool:
    paths = [
        dataset.get(key) for key in ('data_root', 'ann_file', 'data_prefix')
    ]
    return '://' in str(paths) or any(
        node.get('backend_args') for _, node in walk_config(dataset, ''))


def _leaves(node: Any, field: str) -> Iterator:
    """The datasets within wrappers, each with its field."""
    if isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            yield from _leaves(value, f'{field}[{i}]')
    elif isinstance(node, dict):
        inner = [key for key in ('dataset', 'datasets') if key in node]
        for key in inner:
            yield from _leaves(node[key], f'{field}.{key}')
        if not inner and 'type' in node:
            yield field, node


def _kind(cls: Any) -> Optional[str]:
    if isinstance(cls, str):
        with DATASETS.switch_scope_and_registry(None) as registry:
            cls = registry.get(cls)
    for base in getattr(cls, '__mro__', ()):
        name = f'{base.__module__}.{base.__qualname__}'
        if name in READERS and all(
                getattr(cls, method) is getattr(base, method)
                for method in READERS[name]):
            return name
    return None


def _build(known: _Known, faults: Faults, **kwargs) -> Any:
    try:
        return DATASETS.build(dict(known.cfg, pipeline=[], **kwargs))
    except Exception as error:
        # What a dataset raises is up to its code.
        faults.add(known.field, f'{type(error).__name__}: {error}'[:300])
        return None


def _loading(known: _Known) -> List[dict]:
    """The transforms of the pipeline that load."""
    return [
        transform for transform in known.cfg.get('pipeline') or []
        if str(transform['type']).split('.')[-1].startswith('Load')
    ]


def _is_there(path: Optional[str]) -> bool:
    return not path or osp.exists(path)


def _check_lists(known: _Known, dataset: Any,
                 faults: Faults) -> Optional[Sequence[str]]:
    paths = [dataset.ann_file, *dataset.data_prefix.values()]
    classes = dataset.metainfo.get('classes')
    if isinstance(classes, str):
        faults.add(
            f'{known.field}.metainfo', 'classes must be names, as in '
            f'({classes!r}, ), got the one str {classes!r}')
        return None
    if not all(map(_is_there, paths)):
        return None
    if known.cfg.get('indices') is not None:
        _check_indices(known, faults)
    loads = {str(t['type']).split('.')[-1]: t for t in _loading(known)}
    annotations = loads.get('LoadAnnotations', {})
    if known.kind.startswith('mmdet'):
        return check_coco(dataset, known.field,
                          annotations.get('with_mask', False), faults)
    if known.kind.startswith('mmseg'):
        return check_segmentation(dataset, known.field, 'LoadAnnotations'
                                  in loads, faults)
    return check_classification(dataset, known.field, faults)


def _check_indices(known: _Known, faults: Faults) -> None:
    field = f'{known.field}.indices'
    dataset = _build(known._replace(field=field), faults, serialize_data=False)
    if dataset is not None and not len(dataset):
        faults.add(
            field, f'{known.cfg["indices"]!r} leaves no item of the data; '
            'None leaves all')


def _check_evaluators(known: _Known, dataset: Any, cfg: Config,
                      faults: Faults) -> None:
    if not known.kind.startswith('mmdet') or known.stage == 'train' \
            or 'indices' in known.cfg or not osp.exists(dataset.ann_file):
        return
    field = f'{known.stage}_evaluator'
    for name, node in walk_config(cfg.get(field), field):
        path = node.get('ann_file')
        # With format_only, a test set's file has no annotations.
        if (str(node.get('type')).endswith('CocoMetric') and path
                and not node.get('format_only') and osp.exists(path)):
            check_evaluated(dataset.ann_file, path, f'{name}.ann_file', faults)


def _check_num_classes(known: _Known, number: int, model: Optional[nn.Module],
                       faults: Faults) -> None:
    if model is None:
        return
    if is_model_wrapper(model):
        model = model.module
    for name, module in model.named_modules():
        own = getattr(module, 'num_classes', None)
        # An RPN knows one class, a loss or backbone perhaps another number,
        # and one channel may tell two classes apart.
        if (not name or not isinstance(own, int) or own == number
                or 'rpn_head' in name
                or {'backbone', 'data_preprocessor'} & set(name.split('.'))
                or type(module).__name__.endswith('Loss')
                or getattr(module, 'out_channels', None) == 1):
            continue
        # A label that the data have not is one that mmdet cannot evaluate.
        stops = own < number or known.kind.startswith('mmdet')
        faults.add(f'model.{name}.num_classes',
                   f'it is {own}, and there are {number} classes in the data',
                   known.field, stops)


def _check_files(known: _Known, num_classes: Optional[int], listed: Faults,
                 faults: Faults) -> None:
    dataset = _build(known, Faults(), serialize_data=False)
    if dataset is None:
        return  # why, the check of the lists has said
    pipeline = _loading(known)
    if known.kind.startswith('mmdet') and listed.lines(stops=True):
        # Masks that cannot be drawn can take all memory.
        pipeline = [t for t in pipeline if 'Annotations' not in str(t['type'])]
    print(f'Reading {len(dataset)} items of {known.field}', flush=True)
    reader = Reader(dataset, pipeline, num_classes, known.stage == 'train')
    check_files(reader, known.field, faults)
    print()


def _check_same_labels(labels: Dict[str, Sequence[str]],
                       faults: Faults) -> None:
    """A label is the place in a file's list, so that files must agree."""
    first, *others = labels or ['']
    for field in others:
        for label, pair in enumerate(
                zip_longest(labels[first], labels[field])):
            if pair[0] != pair[1]:
                faults.add(
                    f'{field}.ann_file', f'label {label} is {pair[1]!r}, and '
                    f'{pair[0]!r} in {first}.ann_file: both need the same '
                    'categories in the same order')
                break
