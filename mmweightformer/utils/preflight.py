# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from mmengine.config import Config
from mmengine.fileio import exists, join_path


def find_missing_files(cfg: Config, stages: Sequence[str]) -> List[str]:
    """Look for the files that a config names, before work depends on them.

    Looked for are the annotation files and image folders of the datasets, the
    annotation files of the evaluators, the checkpoints of ``init_cfg`` and
    ``load_from``.

    Args:
        cfg (Config): Config of a runner.
        stages (Sequence[str]): The stages whose data are needed, of 'train',
            'val' and 'test'.

    Returns:
        list[str]: Each missing path as it was looked for, and the field of
        the config that names it.
    """
    missing: Dict[str, str] = {}
    for stage in stages:
        for key in f'{stage}_dataloader', f'{stage}_evaluator':
            for field, node in _walk(cfg.get(key), key):
                for name, path in _data_paths(node):
                    if not exists(path, node.get('backend_args')):
                        missing.setdefault(path, f'{field}.{name}')
    checkpoints = {
        f'{field}.checkpoint': node.get('checkpoint')
        for field, node in _walk(cfg.get('model'), 'model')
        if node.get('type') == 'Pretrained'
    }
    checkpoints['load_from'] = cfg.get('load_from')
    for field, path in checkpoints.items():
        # Those with a scheme come from elsewhere.
        if path and '://' not in path and not exists(path):
            missing.setdefault(path, field)
    return [f'{path}  ({field})' for path, field in missing.items()]


def _walk(node: Any, field: str) -> Iterator[Tuple[str, dict]]:
    """All dicts within ``node``, each with its field's dotted name."""
    if isinstance(node, dict):
        yield field, node
        for key, value in node.items():
            yield from _walk(value, f'{field}.{key}')
    elif isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            yield from _walk(value, f'{field}[{i}]')


def _data_paths(node: dict) -> Iterator[Tuple[str, str]]:
    """The field and path of each file and folder of data that it names."""
    root = node.get('data_root') or ''
    prefixes = node.get('data_prefix') or {}
    if isinstance(prefixes, str):
        prefixes = dict(img=prefixes)
    paths = {f'data_prefix.{key}': path for key, path in prefixes.items()}
    paths['ann_file'] = node.get('ann_file')
    paths = {name: path for name, path in paths.items() if path}
    if not paths and root:
        yield 'data_root', root
    for name, path in paths.items():
        yield name, join_path(root, path) if root else path
