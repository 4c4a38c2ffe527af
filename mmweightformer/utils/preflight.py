# Copyright (c) mmweightformer contributors. All rights reserved.
import os.path as osp
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from mmengine.config import Config


def find_missing_files(cfg: Config, stages: Sequence[str]) -> List[str]:
    """Look for the files that a config names, before work depends on them.

    Looked for are the annotation files and image folders of the datasets, the
    annotation files of the evaluators, their ``checkpoint`` and ``reference``,
    ``load_from``, the model's ``autoencoder`` and, for training, the
    checkpoints of ``init_cfg``. Only what can be judged is: local paths.
    Remote ones, and data behind a file backend, are left to their readers.

    Args:
        cfg (Config): Config of a runner.
        stages (Sequence[str]): The stages whose data are needed, of 'train',
            'val' and 'test'.

    Returns:
        list[str]: Each missing path as it was looked for, and the field of
        the config that names it.
    """
    named: Dict[str, Any] = {
        'load_from': cfg.get('load_from'),
        'model.autoencoder': (cfg.get('model') or {}).get('autoencoder'),
    }
    for stage in stages:
        key = f'{stage}_evaluator'
        for field, node in walk_config(cfg.get(key), key):
            for name in 'checkpoint', 'reference':
                named[f'{field}.{name}'] = node.get(name)
        for key in f'{stage}_dataloader', f'{stage}_evaluator':
            nodes = dict(walk_config(cfg.get(key), key))
            if any(node.get('backend_args') for node in nodes.values()):
                continue
            for field, node in nodes.items():
                for name, path in _data_paths(node):
                    named[f'{field}.{name}'] = path
    if 'train' in stages:
        for field, node in walk_config(cfg.get('model'), 'model'):
            if node.get('type') == 'Pretrained':
                named[f'{field}.checkpoint'] = node.get('checkpoint')
    missing: Dict[str, str] = {}
    for field, path in named.items():
        if _is_local(path) and not osp.exists(path):
            missing.setdefault(path, field)
    return [f'{path}  ({field})' for path, field in missing.items()]


def _is_local(path: Any) -> bool:
    return isinstance(path, str) and path != '' and '://' not in path


def walk_config(node: Any, field: str) -> Iterator[Tuple[str, dict]]:
    """All dicts within ``node``, each with its field's dotted name."""
    if isinstance(node, dict):
        yield field, node
        for key, value in node.items():
            yield from walk_config(value, f'{field}.{key}')
    elif isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            yield from walk_config(value, f'{field}[{i}]')


def _data_paths(node: dict) -> Iterator[Tuple[str, str]]:
    """The field and local path of each file and folder of data it names."""
    root, prefixes = node.get('data_root'), node.get('data_prefix')
    if root and not _is_local(root):
        return
    # mmpretrain's ImageNet takes one of these for its folder.
    if not prefixes and node.get('split') in ('train', 'val', 'test') and str(
            node.get('type')).split('.')[-1] == 'ImageNet':
        prefixes = node['split']
    if not isinstance(prefixes, dict):
        prefixes = dict(img=prefixes)
    paths = {f'data_prefix.{key}': path for key, path in prefixes.items()}
    paths['ann_file'] = node.get('ann_file')
    for name, path in paths.items():
        if _is_local(path):
            yield name, osp.join(root, path) if _is_local(root) else path
