# Copyright (c) mmweightformer contributors. All rights reserved.
"""Test a model of any task."""
import argparse
import os
import os.path as osp
from copy import deepcopy

from bad_data import stop_at_bad_data
from common import (add_runner_arguments, build_runner, load_config,
                    plain_errors, require_fields)
from mmengine.config import Config, ConfigDict
from mmengine.dist import is_main_process

PICKLES = ('.pkl', '.pickle')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Test (and evaluate) a model')
    parser.add_argument('config', help='test config file path')
    parser.add_argument('checkpoint', help='checkpoint file')
    add_runner_arguments(parser)
    parser.add_argument(
        '--out',
        help='dump the predictions for offline evaluation: a .pkl file, or '
        'for segmentation also a folder of label maps')
    parser.add_argument(
        '--show', action='store_true', help='show the predictions')
    parser.add_argument('--show-dir', help='the folder of painted predictions')
    parser.add_argument(
        '--wait-time',
        type=float,
        default=2,
        help='the interval of --show in seconds')
    parser.add_argument(
        '--tta',
        action='store_true',
        help="test time augmentation by the config's tta_model and "
        'tta_pipeline, or by flips where it has none')
    return parser.parse_args()


def set_visualization(cfg: Config, args: argparse.Namespace) -> None:
    hook = (cfg.get('default_hooks') or {}).get('visualization')
    if hook is None:
        raise SystemExit('--show and --show-dir need a visualization hook in '
                         "the config's default_hooks")
    hook.update(show=args.show, wait_time=args.wait_time)
    # The three packages name the same things differently.
    if hook.type.endswith('DetVisualizationHook'):
        hook.update(draw=True, test_out_dir=args.show_dir)
    elif hook.type.endswith('SegVisualizationHook'):
        hook.draw = True
        if args.show_dir:
            cfg.visualizer.save_dir = args.show_dir
    else:
        hook.update(enable=True, out_dir=args.show_dir)


def evaluators_of(cfg: Config) -> list:
    evaluators = cfg.test_evaluator
    return evaluators if isinstance(evaluators, list) else [evaluators]


TTA_MODELS = dict(
    mmdet=dict(
        type='DetTTAModel',
        tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5),
                     max_per_img=100)),
    mmseg=dict(type='SegTTAModel'),
    mmpretrain=dict(type='AverageClsScoreTTA'))


def set_tta(cfg: Config) -> None:
    scope = cfg.get('default_scope')
    metrics = [e.get('metric') for e in evaluators_of(cfg)]
    if scope == 'mmdet' and 'segm' in str(metrics):
        raise SystemExit('--tta: mmdet merges boxes only, no masks, so it '
                         'cannot test instance segmentation')
    if 'tta_model' not in cfg:
        if scope not in TTA_MODELS:
            raise SystemExit("--tta needs the config's tta_model in scope "
                             f'{scope}; there is a default in '
                             f'{list(TTA_MODELS)}')
        cfg.tta_model = TTA_MODELS[scope]
    dataset = cfg.test_dataloader.dataset
    while 'dataset' in dataset:
        dataset = dataset.dataset
    if 'pipeline' not in dataset:
        raise SystemExit('--tta needs one test dataset with a pipeline, got '
                         f'{dataset.type}')
    if 'tta_pipeline' not in cfg:
        *pipeline, pack = deepcopy(dataset.pipeline)
        # Without its choice of keys, packing keeps those of the flip.
        pack.pop('meta_keys', None)
        # The unflipped image first: its ground truth is the one evaluated.
        flips = [dict(type='RandomFlip', prob=prob) for prob in (0., 1.)]
        cfg.tta_pipeline = pipeline + [
            dict(type='TestTimeAug', transforms=[flips, [pack]])
        ]
    dataset.pipeline = cfg.tta_pipeline
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)


def set_out(cfg: Config, out: str) -> None:
    scope, evaluators = cfg.get('default_scope'), evaluators_of(cfg)
    if osp.isdir(out) and out.endswith(PICKLES):
        raise SystemExit(f'--out must name a file, got the folder {out}')
    os.makedirs(osp.dirname(out) or '.', exist_ok=True)
    if out.endswith(PICKLES):
        # mmdet's own dump encodes the masks.
        dump = 'DumpDetResults' if scope == 'mmdet' else 'DumpResults'
        evaluators = evaluators + [dict(type=dump, out_file_path=out)]
    elif scope == 'mmseg':
        evaluators[0].update(output_dir=out, keep_results=True)
    else:
        raise SystemExit(f'--out must end with one of {PICKLES}, got {out}')
    cfg.test_evaluator = evaluators


def main() -> None:
    args = parse_args()
    with plain_errors():
        cfg = load_config(args)
        require_fields(cfg, args.config, 'model', 'test_dataloader',
                       'test_cfg', 'test_evaluator')
        cfg.load_from = args.checkpoint
        if args.show or args.show_dir:
            set_visualization(cfg, args)
        if args.tta:
            set_tta(cfg)
        if args.out:
            set_out(cfg, args.out)
        runner = build_runner(cfg, ['test'])
        stop_at_bad_data(runner, ['test'])
        metrics = runner.test()
    if is_main_process():
        print('\n' + '\n'.join(
            f'{name:<24}' +
            (f'{value:.4g}' if isinstance(value, (int, float)) else f'{value}')
            for name, value in metrics.items()))


if __name__ == '__main__':
    main()
