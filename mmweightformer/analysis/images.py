# Copyright (c) mmweightformer contributors. All rights reserved.
"""Images of a config as its model's backbone gets them."""
from copy import deepcopy
from typing import Dict, List, NamedTuple, Optional, Sequence

from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DATASETS, DefaultScope
from torch import Tensor, nn

from ..models.checks import check_int
from ..utils import find_missing_files


def preprocess(model: nn.Module, sample: dict) -> Tensor:
    """What the backbone of a model gets of one sample.

    Args:
        model (nn.Module): The model, with its data preprocessor.
        sample (dict): What a test pipeline returns.

    Returns:
        Tensor: (1, 3, H, W), on the model's device.
    """
    batch = {key: [value] for key, value in sample.items()}
    return model.data_preprocessor(batch, False)['inputs']


class TestImages(NamedTuple):
    """Images behind a test pipeline.

    Attributes:
        samples (Sequence[dict]): What the pipeline returns of each image,
            loaded when it is asked for.
        labels (list[int], optional): The class of each image.
        class_names (dict[int, str]): Names of the classes in ``labels``.
    """
    samples: Sequence[dict]
    labels: Optional[List[int]] = None
    class_names: Dict[int, str] = {}


class _Some(Sequence):
    """Some items of a sequence."""

    def __init__(self, items: Sequence, indices: Sequence[int]) -> None:
        self.items, self.indices = items, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> dict:
        return self.items[self.indices[i]]


class _Files(Sequence):
    """Files through a pipeline."""

    def __init__(self, paths: Sequence[str], pipeline: Compose) -> None:
        self.paths, self.pipeline = paths, pipeline

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> dict:
        # What the loading of the three packages expects.
        return self.pipeline(
            dict(img_path=self.paths[i], img_id=i, seg_fields=[]))


def dataset_images(cfg: Config, number: int, num_classes: int) -> TestImages:
    """Choose images of a config's test dataset.

    Where they have one label each, they are drawn from classes that are
    spread evenly over all, about as many from each; with two images a class
    or more, so there may be fewer classes. Else they are spread evenly over
    the dataset.

    Args:
        cfg (Config): A config with a ``test_dataloader``.
        number (int): Number of images; there are fewer, if the dataset has no
            more.
        num_classes (int): Number of classes; all, if there are no more.

    Returns:
        TestImages: The images, sorted by class.

    Raises:
        TypeError: If a number is not an int.
        ValueError: If one is not positive, or the config has no
            ``test_dataloader`` or no images in it.
        FileNotFoundError: If the data are missing.
        Exception: Whatever the dataset raises.
    """
    check_int('number', number, 1)
    check_int('num_classes', num_classes, 1)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        dataset = DATASETS.build(deepcopy(_test_loader(cfg)['dataset']))
    if not len(dataset):
        raise ValueError('the test data hold no images')
    labels = _labels(dataset)
    if labels is None:
        return TestImages(_Some(dataset, _spread(range(len(dataset)), number)))
    by_class: Dict[int, List[int]] = {}
    for index, label in enumerate(labels):
        by_class.setdefault(label, []).append(index)
    classes = _spread(sorted(by_class), min(num_classes, max(1, number // 2)))
    chosen = []
    for i, label in enumerate(classes):
        share = (number - len(chosen)) // (len(classes) - i)
        chosen += _spread(by_class[label], share)
    names = (getattr(dataset, 'metainfo', None) or {}).get('classes') or ()
    return TestImages(
        _Some(dataset, chosen), [labels[index] for index in chosen], {
            label: str(names[label]) if label < len(names) else str(label)
            for label in classes
        })


def file_images(cfg: Config, paths: Sequence[str]) -> TestImages:
    """Load image files through a config's test pipeline.

    Args:
        cfg (Config): A config with a ``test_dataloader``.
        paths (Sequence[str]): The files.

    Returns:
        TestImages: The images, without labels.

    Raises:
        ValueError: If the config has no ``test_dataloader``, or that no
            pipeline.
        Exception: Whatever the pipeline raises when it is built.
    """
    dataset = _test_loader(cfg, data=False)['dataset']
    while 'dataset' in dataset:  # wrapped
        dataset = dataset['dataset']
    if not dataset.get('pipeline'):
        raise ValueError('the test dataset of the config has no pipeline')
    # A file has no annotations.
    pipeline = [
        transform for transform in dataset['pipeline']
        if 'LoadImage' in str(transform['type'])
        or 'Load' not in str(transform['type'])
    ]
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        return TestImages(_Files(paths, Compose(deepcopy(pipeline))))


def _test_loader(cfg: Config, data: bool = True) -> dict:
    loader = cfg.get('test_dataloader')
    if not loader:
        raise ValueError('the config has no test_dataloader')
    missing = data and find_missing_files(
        Config(dict(test_dataloader=loader)), ['test'])
    if missing:
        raise FileNotFoundError('the test data are missing: ' +
                                ', '.join(missing))
    return loader


def _labels(dataset: Sequence) -> Optional[List[int]]:
    """One label of each image, without loading it; None if there is none."""
    if not hasattr(dataset, 'get_data_info'):
        return None
    labels = []
    for i in range(len(dataset)):
        label = dataset.get_data_info(i).get('gt_label')
        try:
            labels.append(int(label))
        except (TypeError, ValueError):  # none, or several
            return None
    return labels


def _spread(items: Sequence, number: int) -> list:
    """So many of the items, evenly spread; all, if there are no more."""
    number = min(number, len(items))
    return [items[i * len(items) // number] for i in range(number)]
