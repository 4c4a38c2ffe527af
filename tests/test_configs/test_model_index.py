# Copyright (c) mmweightformer contributors. All rights reserved.
"""model-index.yml, and what it says of the models."""
from pathlib import Path

import pytest
import torch
from helpers import build_on_meta, count_macs
from mmengine.config import Config
from mmengine.fileio import load

METAFILES = {path: load(path) for path in load('model-index.yml')['Import']}
ROWS = [row for file in METAFILES.values() for row in file['Models']]
# By the paper, or by that of the row's own model.
PUBLISHED = {
    'wf_t_in1k': [76.3],
    'wf_s_in1k': [81.3],
    'wf_b_in1k_448': [83.4],
    'deit_t_in1k': [72.2],
    'deit_s_in1k': [79.8],
    'pvt_t_in1k': [75.1],
    'pvt_s_in1k': [79.8],
    'convnext_s_iso_in1k': [79.7],
    'upernet_wf_s_ade20k': [45.6],
    'upernet_deit_s_ade20k': [44.0],
    'cascade_mask_rcnn_wf_t_vitdet_coco': [45.0, 38.3],
    'cascade_mask_rcnn_deit_t_vitdet_coco': [44.4, 38.1],
}
# Millions of parameters and billions of multiply-adds, to the printed digit.
# WeightFormer-B's 17.66 come from another order of products.
# Ours multiply in another order: test_complexity.py compares both.
PUBLISHED_COSTS = dict(
    wf_t_in1k=('7.07', None),
    wf_s_in1k=('27.49', None),
    wf_b_in1k_448=('27.49', None),
    convnext_s_iso_in1k=('22.3', '4.3'),
    pvt_t_in1k=('13.2', '1.9'),
    pvt_s_in1k=('24.5', '3.8'))


def test_names_every_config():
    named = set()
    for row in ROWS:
        assert row['Name'] == Path(row['Config']).stem
        named.add(row['Config'])
    assert len(named) == len(ROWS)
    assert named == {str(path) for path in Path('configs').glob('*.py')}


def test_collections():
    names = [
        collection['Name'] for file in METAFILES.values()
        for collection in file.get('Collections', [])
    ]
    assert len(set(names)) == len(names)
    assert {row['In Collection'] for row in ROWS} == set(names)
    ours = METAFILES['configs/metafiles/image_classification.yml'][
        'Collections'][0]
    assert Path(ours['Code']['URL']).is_file()
    # From the metafile, as the reader of mim has it.
    assert Path('configs/metafiles', ours['README']).resolve() == \
        Path('README.md').resolve()


def test_results_are_labelled_as_published():
    published = {}
    for row in ROWS:
        metrics = [result['Metrics'] for result in row.get('Results', [])]
        for name, value in (pair for item in metrics for pair in item.items()):
            assert name.endswith(' (published)')
            published.setdefault(row['Name'], []).append(value)
    assert published == PUBLISHED


@pytest.mark.parametrize('name', PUBLISHED_COSTS)
def test_published_costs(name):
    metadata = {row['Name']: row['Metadata'] for row in ROWS}[name]
    for value, printed in zip(
        (metadata['Parameters'] / 1e6, metadata['FLOPs'] / 1e9),
            PUBLISHED_COSTS[name]):
        if printed is not None:
            digits = len(printed.partition('.')[2])
            assert f'{value:.{digits}f}' == printed


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row['Name'])
def test_metadata(row):
    cfg, metadata = Config.fromfile(row['Config']), row['Metadata']
    if 'Epochs' in metadata:
        assert cfg.train_cfg.max_epochs == metadata['Epochs']
    else:
        assert cfg.train_cfg.max_iters == metadata['Iterations']
    assert cfg.auto_scale_lr.base_batch_size == metadata['Batch Size']
    model = build_on_meta(cfg)
    parameters = sum(param.numel() for param in model.parameters())
    assert parameters == metadata['Parameters']
    if 'FLOPs' in metadata:
        # They are multiply-adds, as everywhere in OpenMMLab.
        size = cfg.get('size', 512 if cfg.default_scope == 'mmseg' else 224)
        image = torch.rand(1, 3, size, size, device='meta')
        if 'denoiser' in cfg.model:
            image = torch.rand(1, 4, 32, 32, device='meta')
        if cfg.default_scope == 'mmseg':
            macs = count_macs(
                lambda: model.decode_head(model.extract_feat(image)))
        else:
            macs = count_macs(model, image)
        assert macs == metadata['FLOPs']
