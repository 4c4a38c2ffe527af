# Copyright (c) mmweightformer contributors. All rights reserved.
"""Faults of data, each made on a small data set that has none."""
import json
import os
from itertools import groupby

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image
from pycocotools import mask as coco_mask
from torch import nn

from mmweightformer.utils import check_data
from mmweightformer.utils.run_length import count_pixels

SIZE = WIDTH, HEIGHT = 32, 24
CLASSES = ('ant', 'bee')
SQUARE = [4, 4, 20, 4, 20, 16, 4, 16]
LOAD = [dict(type='LoadImageFromFile')]
ANNOTATIONS = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
NAN, INF = float('nan'), float('inf')


def picture(value=0):
    ramp = np.arange(WIDTH * HEIGHT * 3) // 9 + 40 * value
    return ramp.astype(np.uint8).reshape(HEIGHT, WIDTH, 3)


@pytest.fixture
def coco(tmp_path):
    """The content of a file, which ``check_coco`` writes and checks."""
    (tmp_path / 'images').mkdir()
    images, annotations = [], []
    for i in range(3):
        name = f'{i}.png'
        Image.fromarray(picture(i)).save(tmp_path / 'images' / name)
        images.append(dict(id=i, file_name=name, width=WIDTH, height=HEIGHT))
        for k in range(2):
            annotations.append(
                dict(
                    id=2 * i + k,
                    image_id=i,
                    category_id=5 + k,
                    bbox=[4, 4, 16, 12],
                    area=192,
                    iscrowd=0,
                    segmentation=[list(SQUARE)]))
    categories = [dict(id=5, name='ant'), dict(id=6, name='bee')]
    return dict(images=images, annotations=annotations, categories=categories)


def coco_dataset(root, **options):
    return dict(
        type='CocoDataset',
        data_root=str(root),
        ann_file='a.json',
        data_prefix=dict(img='images'),
        metainfo=dict(classes=CLASSES),
        filter_cfg=dict(filter_empty_gt=True, min_size=16),
        pipeline=[*LOAD, ANNOTATIONS],
        **options)


def check(scope, dataset, model=None, read_files=False, **others):
    """The faults that stop, and those that do not, as text."""
    cfg = Config(dict(train_dataloader=dict(dataset=dataset), **others))
    stages = [key.split('_')[0] for key in cfg]
    with DefaultScope.overwrite_default_scope(scope):
        faults = check_data(cfg, stages, model, read_files)
    return ['\n'.join(faults.lines(stops)) for stops in (True, False)]


def check_coco(root, content, **options):
    text = content if isinstance(content, str) else json.dumps(content)
    (root / 'a.json').write_text(text)
    return check('mmdet', coco_dataset(root), **options)


def first(coco):
    return coco['annotations'][0]


@pytest.mark.parametrize('read_files', [False, True])
def test_sound_coco(coco, tmp_path, read_files):
    assert check_coco(tmp_path, coco, read_files=read_files) == ['', '']


@pytest.mark.parametrize('content, expected', [
    ('{"images": [', 'it is no JSON'),
    ('', 'it is no JSON'),
    ([], 'no images, annotations, categories'),
    (dict(images=[], annotations=[]), 'no categories'),
])
def test_no_coco_at_all(tmp_path, content, expected):
    (tmp_path / 'images').mkdir()
    stops, _ = check_coco(tmp_path, content)
    assert expected in stops
    assert f'{tmp_path}/a.json  (train_dataloader.dataset.ann_file)' in stops


@pytest.mark.parametrize('key, field', [
    ('images', 'file_name'),
    ('images', 'height'),
    ('annotations', 'id'),
    ('annotations', 'bbox'),
    ('annotations', 'area'),
    ('categories', 'name'),
])
def test_lacking_fields(coco, tmp_path, key, field):
    del coco[key][1][field]
    stops, _ = check_coco(tmp_path, coco)
    assert f'{key}[1] lacks {field}' in stops


@pytest.mark.parametrize('key', ['images', 'annotations', 'categories'])
def test_ids_that_are_none(coco, tmp_path, key):
    coco[key][1]['id'] = [1]
    assert "it has not COCO's form: unhashable" in check_coco(tmp_path,
                                                              coco)[0]


def test_no_category_is_a_class(coco, tmp_path):
    for category in coco['categories']:
        category['name'] += ' '
    stops, _ = check_coco(tmp_path, coco)
    assert "('ant ', 'bee ')" in stops and "('ant', 'bee')" in stops
    assert ("Set train_dataloader.dataset.metainfo=dict(classes=('ant ', "
            "'bee '))") in stops
    assert len(stops.splitlines()) == 1


def test_some_categories_are_no_classes(coco, tmp_path):
    coco['categories'][1]['name'] = 'cat'
    stops, others = check_coco(tmp_path, coco)
    assert stops == ''
    assert "3 of 'cat'" in others and "labels of those behind" in others


def test_labels_differ_between_files(coco, tmp_path):
    (tmp_path / 'b.json').write_text(json.dumps(coco))
    coco['categories'].reverse()
    val = dict(dataset=dict(coco_dataset(tmp_path), ann_file='b.json'))
    stops, others = check_coco(tmp_path, coco, val_dataloader=val)
    assert "label 0 is 'ant', and 'bee' in train_dataloader" in stops
    assert "another order than the classes" in others


def test_one_class_as_a_str(coco, tmp_path):
    dataset = dict(coco_dataset(tmp_path), metainfo=dict(classes='ant'))
    (tmp_path / 'a.json').write_text(json.dumps(coco))
    assert "('ant', )" in check('mmdet', dataset)[0]


@pytest.mark.parametrize('key, expected', [
    ('images', [False, 'ids of images occur more than once']),
    ('annotations', [True, 'ids of annotations occur more than once']),
    ('categories', [True, 'ids of categories occur more than once']),
])
def test_duplicate_ids(coco, tmp_path, key, expected):
    coco[key][1]['id'] = coco[key][0]['id']
    stops, text = expected
    assert text in check_coco(tmp_path, coco)[0 if stops else 1]


@pytest.mark.parametrize('key', ['image_id', 'category_id'])
def test_unknown_ids(coco, tmp_path, key):
    first(coco)[key] = 77
    stops, others = check_coco(tmp_path, coco)
    assert stops == '' and f'{key}=77 of 0' in others
    for annotation in coco['annotations']:
        annotation[key] = '77'
    stops, others = check_coco(tmp_path, coco)
    assert 'leaves none of its 3 images, of which 0 have' in stops
    assert f"{key}='77' of 0" in others


def test_no_image_is_large_enough(coco, tmp_path):
    for image in coco['images']:
        image['height'] = 15
    assert 'leaves none of its 3 images, of which 3' in check_coco(
        tmp_path, coco)[0]


def test_missing_and_outside_images(coco, tmp_path):
    os.remove(tmp_path / 'images' / '1.png')
    Image.fromarray(picture()).save(tmp_path / 'c.png')
    coco['images'][0]['file_name'] = '../c.png'
    coco['images'][2]['file_name'] = str(tmp_path / 'images' / '2.png')
    stops, others = check_coco(tmp_path, coco)
    assert stops.endswith(f'names files that are not in {tmp_path}/images: '
                          '1.png')
    assert others.endswith(', which are read: ../c.png')


def check_evaluated(root, content, evaluated=None):
    (root / 'a.json').write_text(json.dumps(content))
    (root / 'b.json').write_text(json.dumps(evaluated or content))
    name = 'a.json' if evaluated is None else 'b.json'
    dataset = dict(coco_dataset(root), test_mode=True)
    return check(
        'mmdet',
        coco_dataset(root),
        val_dataloader=dict(dataset=dataset),
        val_evaluator=dict(type='CocoMetric', ann_file=str(root / name)))


@pytest.mark.parametrize('iscrowd', [None, 'yes', 2, []])
def test_crowds_that_cannot_be_evaluated(coco, tmp_path, iscrowd):
    first(coco)['iscrowd'] = iscrowd
    stops, _ = check_evaluated(tmp_path, coco)
    assert f'be evaluated: 0 with {iscrowd!r}' in stops
    assert 'a.json  (val_evaluator.ann_file)' in stops
    del first(coco)['iscrowd']
    assert 'be evaluated: 0 with None' in check_evaluated(tmp_path, coco)[0]


def test_ids_that_cannot_be_evaluated(coco, tmp_path):
    for i, ann in enumerate(coco['annotations']):
        ann['id'] = i + 1
    assert check_evaluated(tmp_path, coco) == ['', '']
    first(coco)['id'] = 0
    stops, others = check_evaluated(tmp_path, coco)
    assert stops == '' and 'the id 0 count as missed' in others
    first(coco)['id'] = 'x0'
    assert "must be integers to be evaluated: 'x0'" in check_evaluated(
        tmp_path, coco)[0]


def test_images_that_cannot_be_evaluated(coco, tmp_path):
    other = dict(coco, images=coco['images'][1:])
    assert "'0.png'" in check_evaluated(tmp_path, coco, other)[0]
    assert check_evaluated(tmp_path, other, coco)[0] == ''


@pytest.mark.parametrize('key, value', [('width', 10**400), ('height', NAN)])
def test_size_that_is_no_number(coco, tmp_path, key, value):
    coco['images'][0][key] = value
    assert f'a valid {key}' in check_coco(tmp_path, coco)[0]


def test_nested_too_deep(tmp_path):
    (tmp_path / 'images').mkdir()
    assert 'it is no JSON' in check_coco(tmp_path, '[' * 200000)[0]


@pytest.mark.parametrize(
    'box', [[10**400, 1, 9, 9], [1, 2, 3], [NAN, 1, 9, 9], [1, 1, INF, 9],
            [None, 1, 9, 9], ['1', '1', '9', '9'], 9])
def test_box_of_no_numbers(coco, tmp_path, box):
    first(coco)['bbox'] = box
    assert 'a bbox must be' in check_coco(tmp_path, coco)[0]


@pytest.mark.parametrize(
    'box', [[1, 1, 0, 9], [9, 9, -5, -5], [90, 4, 9, 9], [1, 1, .5, 9]])
def test_box_that_mmdet_leaves_out(coco, tmp_path, box):
    first(coco)['bbox'] = box
    stops, others = check_coco(tmp_path, coco)
    assert stops == '' and f'0 with {box}' in others
    assert len(load('mmdet', coco_dataset(tmp_path))['gt_bboxes']) == 1


@pytest.mark.parametrize('segmentation, expected', [
    (None, 'no segmentation'),
    ([], 'no segmentation'),
    (SQUARE, 'a list of polygons'),
    ([[NAN, *SQUARE[1:]]], 'coordinates of a polygon'),
    ([[1e12, *SQUARE[1:]]], 'coordinates of a polygon'),
    ([['4', *SQUARE[1:]]], 'coordinates of a polygon'),
    ([[10**400, *SQUARE[1:]]], 'coordinates of a polygon'),
    (dict(size=[24, 24], counts=[576]), 'another size than their image'),
    *((dict(size=[24, 32], counts=counts), 'that add up to its pixels')
      for counts in ([], [767], [3, 766], [9, -3, 762], [700.5, 67.5], ['768'],
                     [NAN, 768], [INF], '', '0', '3', 'Pg', 'Z', 'é', '\x00',
                     '🐝', 'o' * 99 + '0')),
])
def test_segmentation_that_stops(coco, tmp_path, segmentation, expected):
    first(coco)['segmentation'] = segmentation
    for read_files in False, True:  # which is not to draw it
        stops, _ = check_coco(tmp_path, coco, read_files=read_files)
        assert expected in stops and len(stops.splitlines()) == 1


@pytest.mark.parametrize('polygon', [[4, 4, 20, 20], [4] * 7])
def test_degenerate_polygons_are_ignored_regions(coco, tmp_path, polygon):
    first(coco)['segmentation'] = [polygon]
    stops, others = check_coco(tmp_path, coco)
    assert stops == '' and 'ignored regions: 0' in others
    flags = load('mmdet', coco_dataset(tmp_path))['gt_ignore_flags']
    assert flags.tolist() == [True, False]


def test_mask_without_a_pixel(coco, tmp_path):
    first(coco)['segmentation'] = [[4, 4] * 3]
    assert check_coco(tmp_path, coco) == ['', '']
    stops, others = check_coco(tmp_path, coco, read_files=True)
    assert stops == '' and 'masks have no pixel' in others
    assert '0.png in box [4, 4, 20, 16]' in others.replace('.0', '')


def test_crowds_are_ignored_regions(coco, tmp_path):
    counts = [0, 6 * HEIGHT, (WIDTH - 6) * HEIGHT]
    first(coco).update(
        iscrowd=1, segmentation=dict(size=[HEIGHT, WIDTH], counts=counts))
    assert check_coco(tmp_path, coco, read_files=True) == ['', '']
    item = load('mmdet', coco_dataset(tmp_path))
    assert item['gt_ignore_flags'].tolist() == [True, False]
    assert item['gt_masks'].masks[0].sum() == 6 * HEIGHT


@given(arrays(np.uint8, SIZE[::-1], elements=st.integers(0, 1)))
def test_run_lengths_that_fill_a_mask(mask):
    """Those that pycocotools makes, of all numbers of characters."""
    compressed = coco_mask.encode(np.asfortranarray(mask))['counts'].decode()
    counts = [len(list(run)) for _, run in groupby(mask.ravel('F'))]
    counts = [0] * int(mask[0, 0]) + counts
    for form in counts, compressed:
        assert count_pixels(form) == mask.size
    assert count_pixels(counts[:-1]) == mask.size - counts[-1]


@pytest.mark.parametrize('counts', ['ｘ', 'é', '\udcff'])
def test_counts_that_are_not_ascii(counts):
    with pytest.raises(ValueError, match='no compressed ones'):
        count_pixels(counts)


def test_compressed_mask_is_read(coco, tmp_path):
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[4:16, 4:20] = 1
    segmentation = coco_mask.encode(np.asfortranarray(mask))
    segmentation['counts'] = segmentation['counts'].decode()
    first(coco)['segmentation'] = segmentation
    assert check_coco(tmp_path, coco, read_files=True) == ['', '']
    masks = load('mmdet', coco_dataset(tmp_path))['gt_masks'].masks
    assert (masks[0] == mask).all()


@pytest.mark.parametrize('filter_empty', [True, False])
def test_images_without_annotations(coco, tmp_path, filter_empty):
    coco['annotations'] = coco['annotations'][:2]
    assert check_coco(tmp_path, coco) == ['', '']
    dataset = coco_dataset(tmp_path)
    dataset['filter_cfg']['filter_empty_gt'] = filter_empty
    assert check('mmdet', dataset, read_files=True) == ['', '']
    with DefaultScope.overwrite_default_scope('mmdet'):
        built = DATASETS.build(dict(dataset, pipeline=[]))
    assert len(built) == (1 if filter_empty else 3)


def load(scope, dataset, index=0):
    """What the pipeline makes of an item."""
    dataset = Config(dataset)
    with DefaultScope.overwrite_default_scope(scope):
        built = DATASETS.build(dict(dataset, pipeline=[]))
        return Compose(dataset.pipeline)(built.get_data_info(index))


GREY = cv2.cvtColor(picture(), cv2.COLOR_RGB2GRAY)
BGR = picture()[..., ::-1]


@pytest.mark.parametrize('write, expected', [
    (lambda path: cv2.imwrite(path, GREY), np.stack([GREY] * 3, -1)),
    (lambda path: cv2.imwrite(path, GREY.astype(np.uint16) * 257),
     np.stack([GREY] * 3, -1)),
    (lambda path: cv2.imwrite(path, BGR.astype(np.uint16) * 257), BGR),
    (lambda path: Image.fromarray(picture()).convert('RGBA').save(path), BGR),
    (lambda path: Image.fromarray(GREY).convert('LA').save(path),
     np.stack([GREY] * 3, -1)),
    (lambda path: Image.fromarray(GREY).convert('P').save(path),
     np.stack([GREY] * 3, -1)),
    (lambda path: Image.fromarray(BGR).save(path, 'WEBP', lossless=True),
     BGR[..., ::-1]),
],
                         ids=[
                             'grey', 'grey16', 'rgb16', 'rgba',
                             'grey-alpha', 'palette', 'webp'
                         ])  # yapf: disable
def test_images_that_are_handled(coco, tmp_path, write, expected):
    """Of whatever kind, they are three channels of 8 bits to the pipeline."""
    write(str(tmp_path / 'images' / '0.png'))
    assert check_coco(tmp_path, coco, read_files=True) == ['', '']
    image = load('mmdet', coco_dataset(tmp_path))['img']
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, expected)


def test_cmyk(coco, tmp_path):
    cmyk = Image.new('RGB', SIZE, (200, 100, 50)).convert('CMYK')
    cmyk.save(tmp_path / 'images' / '0.png', 'JPEG', quality=100)
    assert check_coco(tmp_path, coco, read_files=True) == ['', '']
    image = load('mmdet', coco_dataset(tmp_path))['img']
    np.testing.assert_allclose(image[..., ::-1].mean((0, 1)), (200, 100, 50),
                               atol=4)  # yapf: disable


@pytest.mark.parametrize('content', [b'', b'<html>404</html>'])
def test_images_that_are_none(coco, tmp_path, content):
    (tmp_path / 'images' / '0.png').write_bytes(content)
    assert check_coco(tmp_path, coco) == ['', '']  # it reads no image
    stops, _ = check_coco(tmp_path, coco, read_files=True)
    assert f'files cannot be read: {tmp_path}/images/0.png' in stops


def test_truncated_image(tmp_path, coco):
    """As OpenCV decides, training stops or sees grey for the rest."""
    path = tmp_path / 'images' / '0.png'
    Image.fromarray(picture()).save(path, 'JPEG')
    path.write_bytes(path.read_bytes()[:-30])
    assert str(path) in ''.join(check_coco(tmp_path, coco, read_files=True))


def test_size_by_exif(coco, tmp_path):
    """The image is turned, but neither the boxes nor the masks."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture()).save(
        tmp_path / 'images' / '0.png', 'JPEG', exif=exif)
    stops, others = check_coco(tmp_path, coco, read_files=True)
    assert stops == '' and (f'0.png is {HEIGHT}×{WIDTH}, after it is turned '
                            'by its EXIF orientation, not '
                            f'{WIDTH}×{HEIGHT}') in others


@pytest.mark.parametrize('wrap', [
    lambda d: dict(type='RepeatDataset', times=2, dataset=d),
    lambda d: dict(type='ClassBalancedDataset', oversample_thr=.1, dataset=d),
    lambda d: dict(type='ConcatDataset', datasets=[d]),
])
def test_within_wrappers(coco, tmp_path, wrap):
    (tmp_path / 'a.json').write_text('')
    stops, _ = check('mmdet', wrap(coco_dataset(tmp_path)))
    assert stops.count('it is no JSON') == 1


@pytest.mark.parametrize('indices, expected', [
    (0, '0 leaves no item'),
    ([], '[] leaves no item'),
    (range(0), 'range(0, 0) leaves no item'),
    ([9], 'IndexError'),
    (1.5, 'TypeError: indices should be a int or sequence of int'),
    (np.array([0, 1]), 'TypeError: indices should be a int'),
])
def test_indices(coco, tmp_path, indices, expected):
    (tmp_path / 'a.json').write_text(json.dumps(coco))
    stops, _ = check('mmdet', coco_dataset(tmp_path, indices=indices))
    assert stops.startswith('train_dataloader.dataset.indices: ' + expected)


@pytest.mark.parametrize('indices', [None, 1, -1, [0], range(1)])
def test_sound_indices(coco, tmp_path, indices):
    (tmp_path / 'a.json').write_text(json.dumps(coco))
    assert check('mmdet', coco_dataset(tmp_path, indices=indices)) == ['', '']


@pytest.mark.parametrize('options', [
    dict(backend_args=dict(backend='petrel')),
    dict(type='LVISV1Dataset'),
    dict(data_root='s3://bucket'),
    dict(ann_file='missing.json'),
])
def test_leaves_alone_what_it_cannot_judge(coco, tmp_path, options):
    (tmp_path / 'a.json').write_text('')
    assert check('mmdet', dict(coco_dataset(tmp_path), **options)) == ['', '']


class Model(nn.Module):

    def __init__(self, **num_classes):
        super().__init__()
        for name, number in num_classes.items():
            self.add_module(name, nn.Identity())
            getattr(self, name).num_classes = number


@pytest.mark.parametrize('number', [1, 80])
def test_num_classes_of_detectors(coco, tmp_path, number):
    model = Model(bbox_head=number, mask_head=2, rpn_head=1, backbone=-1)
    stops, others = check_coco(tmp_path, coco, model=model)
    assert stops == (f'model.bbox_head.num_classes: it is {number}, and there '
                     'are 2 classes in the data: train_dataloader.dataset')
    assert others == ''


@pytest.fixture
def maps(tmp_path):
    """A folder of one image and its label map, and the dataset's config."""
    Image.fromarray(picture()).save(tmp_path / '0.jpg')
    write_map(tmp_path, np.tile([0, 1, 2, 255], (HEIGHT, WIDTH // 4)))
    return dict(
        type='BaseSegDataset',
        data_root=str(tmp_path),
        data_prefix=dict(img_path='', seg_map_path=''),
        reduce_zero_label=True,
        metainfo=dict(classes=CLASSES),
        pipeline=[*LOAD, dict(type='LoadAnnotations')])


def write_map(root, labels, dtype=np.uint8):
    Image.fromarray(labels.astype(dtype)).save(root / '0.png')


def test_sound_maps(maps):
    assert check('mmseg', maps, read_files=True) == ['', '']
    labels = load('mmseg', maps)['gt_seg_map']
    assert labels[0, :4].tolist() == [255, 0, 1, 255]


def test_maps_of_a_palette_or_16_bits(maps, tmp_path):
    labels = np.tile([0, 1, 2, 2], (HEIGHT, WIDTH // 4)).astype(np.uint8)
    image = Image.fromarray(labels)
    image.putpalette([value % 256 for value in range(50, 818)])
    image.save(tmp_path / '0.png')
    assert image.mode == 'P'
    assert check('mmseg', maps, read_files=True) == ['', '']
    assert load('mmseg', maps)['gt_seg_map'][0, :3].tolist() == [255, 0, 1]
    write_map(tmp_path, labels, np.uint16)
    assert check('mmseg', maps, read_files=True) == ['', '']
    assert load('mmseg', maps)['gt_seg_map'][0, :3].tolist() == [255, 0, 1]
    write_map(tmp_path, labels.astype(int) + 256, np.uint16)
    assert check(
        'mmseg', maps,
        read_files=True)[1].endswith('modulo 256: ' +
                                     f'{tmp_path}/0.png has 258')


@pytest.mark.parametrize('reduce, label, expected', [
    (True, 3, 'must be 1 to 2'),
    (True, 254, 'must be 1 to 2'),
    (False, 2, 'must be 0 to 1'),
])
def test_labels_out_of_range(maps, tmp_path, reduce, label, expected):
    write_map(tmp_path, np.full((HEIGHT, WIDTH), label))
    dataset = dict(maps, reduce_zero_label=reduce)
    assert check('mmseg', dataset) == ['', '']
    stops, _ = check('mmseg', dataset, read_files=True)
    assert expected in stops and f'0.png has {label}' in stops
    # Evaluation passes over them.
    cfg = dict(train_dataloader=dict(dataset=dict(type='CIFAR10')))
    val = dict(dataset=dict(dataset, test_mode=True))
    stops, others = check(
        'mmseg',
        cfg['train_dataloader']['dataset'],
        read_files=True,
        val_dataloader=val)
    assert stops == '' and f'0.png has {label}' in others


def test_maps_of_another_form(maps, tmp_path):
    write_map(tmp_path, np.zeros((WIDTH, HEIGHT)))
    assert (f'0.png is {HEIGHT}×{WIDTH}, not {WIDTH}×{HEIGHT}'
            in check('mmseg', maps, read_files=True)[0])
    write_map(tmp_path, np.zeros((HEIGHT, WIDTH, 3)))
    assert '0.png has 3' in check('mmseg', maps, read_files=True)[0]
    (tmp_path / '0.png').write_bytes(b'')
    assert '0.png (it is empty)' in check('mmseg', maps, read_files=True)[0]
    os.remove(tmp_path / '0.png')
    assert check('mmseg', maps)[0].endswith("'.png': 0.png")


def test_no_images_of_the_suffix(maps):
    stops, _ = check('mmseg', dict(maps, img_suffix='.jpeg'))
    assert "img_suffix='.jpeg': there are .jpg, .png" in stops


def test_list_of_images(maps, tmp_path):
    (tmp_path / 'list.txt').write_text('0\n0.jpg\n')
    stops, _ = check('mmseg', dict(maps, ann_file='list.txt'))
    assert f'not in {tmp_path}/: 0.jpg.jpg' in stops.replace(
        f'{tmp_path}:', f'{tmp_path}/:')


@pytest.mark.parametrize('number, stops', [(1, True), (150, False)])
def test_num_classes_of_segmentation(maps, number, stops):
    model = Model(decode_head=number, auxiliary_head=2)
    lines = check('mmseg', maps, model)
    assert f'model.decode_head.num_classes: it is {number}' in lines[not stops]
    assert lines[stops] == ''


@pytest.fixture
def folders(tmp_path):
    for name in CLASSES:
        (tmp_path / 'train' / name).mkdir(parents=True)
        Image.fromarray(picture()).save(tmp_path / 'train' / name / '0.png')
    return dict(
        type='CustomDataset',
        data_root=str(tmp_path),
        data_prefix='train',
        metainfo=dict(classes=CLASSES),
        pipeline=LOAD)


def test_sound_folders(folders):
    model = Model(head=2)
    assert check('mmpretrain', folders, model, True) == ['', '']


def test_folders_are_not_the_classes(folders, tmp_path):
    (tmp_path / 'train' / 'cat').mkdir()
    stops, _ = check('mmpretrain', folders)
    assert "it has 3 folders ('ant', 'bee', 'cat') for 2 classes" in stops
    dataset = {k: v for k, v in folders.items() if k != 'metainfo'}
    assert check('mmpretrain', dataset, Model(head=3)) == ['', '']
    assert 'it is 2, and there are 3' in check('mmpretrain', dataset,
                                               Model(head=2))[0]


def test_folders_without_images(folders):
    stops, _ = check('mmpretrain', dict(folders, extensions=('.bmp', )))
    assert 'no file in its folders ends with one of .bmp' in stops


@pytest.mark.parametrize('line, expected', [
    ('ant/0.png 2', 'a label must be 0 to 1: 2 in line 2'),
    ('ant/0.png -1', 'a label must be 0 to 1: -1 in line 2'),
    ('ant/0.png', 'a line must be a name, a space and a label: line 2'),
    ('', 'a line must be a name, a space and a label: line 2'),
    ('ant/1.png 0', 'train: ant/1.png'),
])
def test_labelled_list(folders, tmp_path, line, expected):
    (tmp_path / 'list.txt').write_text(f'bee/0.png 1\n{line}\n')
    dataset = dict(folders, ann_file='list.txt')
    assert check('mmpretrain', dataset)[0].endswith(expected)


def test_many_files_are_read_at_once(folders, tmp_path):
    for i in range(210):
        os.link(tmp_path / 'train' / 'ant' / '0.png',
                tmp_path / 'train' / 'ant' / f'{i + 1}.png')
    (tmp_path / 'train' / 'bee' / '7.png').write_bytes(b'')
    stops, _ = check('mmpretrain', folders, read_files=True)
    assert stops.endswith('bee/7.png (it is empty)')
