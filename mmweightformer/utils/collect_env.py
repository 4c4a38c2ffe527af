# Copyright (c) mmweightformer contributors. All rights reserved.
import subprocess
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from mmengine.utils.dl_utils import collect_env as collect_base_env

from ..version import __version__

# The names under which each package is distributed.
DISTRIBUTIONS = {
    'MMEngine': ('onedl-mmengine', 'mmengine', 'mmengine-lite'),
    'MMCV': ('onedl-mmcv', 'mmcv', 'mmcv-lite'),
    'MMDetection': ('onedl-mmdetection', 'mmdet'),
    'MMSegmentation': ('onedl-mmsegmentation', 'mmsegmentation'),
    'MMPreTrain': ('onedl-mmpretrain', 'mmpretrain'),
}


def collect_env():
    """Collect the versions of everything that the package runs on.

    The OpenMMLab packages are looked up, not imported, so that the report
    still comes when one of them is broken.

    Returns:
        dict: The report, one entry a line.
    """
    env = collect_base_env()
    for name, distributions in DISTRIBUTIONS.items():
        env[name] = _version(distributions)
    env['MMCV compiled ops'] = _has_compiled_ops()
    env['MMWeightFormer'] = '+'.join(filter(None, (__version__, _git_hash())))
    return env


def _version(distributions):
    found = []
    for distribution in distributions:
        try:
            found.append(f'{version(distribution)} ({distribution})')
        except PackageNotFoundError:
            pass
    # Two of them share their files: a broken install worth seeing.
    return ' and '.join(found) or 'not installed'


def _has_compiled_ops():
    spec = find_spec('mmcv')
    folders = spec.submodule_search_locations or () if spec else ()
    return any((Path(folder) / f'_ext{suffix}').exists() for folder in folders
               for suffix in EXTENSION_SUFFIXES)


def _git_hash():
    """The commit of the checkout that the package lies in, if it does.

    mmengine's ``get_git_hash`` would name that of the working directory.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / '.git').exists():
        return ''
    try:
        return subprocess.check_output(
            ['git', '-C', root, 'rev-parse', '--short=7', 'HEAD'],
            stderr=subprocess.DEVNULL,
            text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return ''
