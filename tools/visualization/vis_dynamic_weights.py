# Copyright (c) mmweightformer contributors. All rights reserved.
"""Draw the weights that a trained backbone predicts for images."""
import argparse
import json
import os.path as osp
import sys
from collections import Counter
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import MMLogger
from mmengine.utils import track_iter_progress
from torch import Tensor, nn

from mmweightformer.analysis.config_model import build_model, load_backbone
# yapf: disable
from mmweightformer.analysis.dynamic_weights import (CONV, LINEAR,
                                                     ClassContrast,
                                                     LayerWeights,
                                                     class_contrasts,
                                                     dynamic_weights,
                                                     varied_channels)
# yapf: enable
from mmweightformer.analysis.dynamic_weights_report import (block_name,
                                                            draw_contrasts,
                                                            draw_kernels,
                                                            draw_ratios,
                                                            draw_similarities)
from mmweightformer.analysis.images import (TestImages, dataset_images,
                                            file_images, preprocess)
from mmweightformer.models.predicted_weights import predicted_layers

sys.path.insert(0, osp.join(osp.dirname(__file__), '..'))
import common  # noqa: E402

# So many images stand below each other.
SHOWN_IMAGES = 5
JSON = 'dynamic_weights.json'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Run a config's backbone on images and look at what it "
        'adds to its weights for each: depthwise kernels, norms beside those '
        'of the weights that are learned, and how similar what is added is '
        'between images; with labels also, whether images of one class get '
        'closer weights. Writes figures and a JSON file with the numbers.',
        epilog='Similarity is the cosine of what is added for two images, '
        'both as it is and after each is scaled to norm 1 and the mean over '
        'the images taken off. Whether classes matter is tested by '
        'permutations of the labels.')
    common.add_config_arguments(parser)
    parser.add_argument(
        'checkpoint',
        nargs='?',
        help='of this config, or of its backbone alone. Without one, the '
        'weights are those that training from scratch starts from, with seed '
        '0')
    parser.add_argument(
        '--out-dir',
        type=Path,
        default=Path('work_dirs/dynamic_weights'),
        help='folder of the results. Defaults to %(default)s')
    parser.add_argument(
        '--num-images',
        type=int,
        default=50,
        help="images of the config's test dataset, spread evenly. Defaults "
        'to %(default)s')
    parser.add_argument(
        '--num-classes',
        type=int,
        default=10,
        help='classes that they are drawn from, where they have labels. '
        'Defaults to %(default)s')
    parser.add_argument(
        '--img',
        nargs='+',
        metavar='FILE',
        help='image files, in place of those of the test dataset; they have '
        'no labels')
    parser.add_argument(
        '--num-channels',
        type=int,
        default=16,
        help='channels of each block whose kernels are drawn: those that '
        'differ most between images. Defaults to %(default)s')
    parser.add_argument(
        '--format',
        choices=['png', 'pdf', 'svg'],
        default='png',
        help='format of the figures. Defaults to %(default)s')
    args = parser.parse_args()
    for name in 'num_images', 'num_classes', 'num_channels':
        if getattr(args, name) < 1:
            parser.error(f'--{name.replace("_", "-")} must be positive, got '
                         f'{getattr(args, name)}')
    for path in args.img or ():
        if not osp.isfile(path):
            parser.error(f'--img {path}: there is no such file')
    return args


def build(args: argparse.Namespace, cfg: Config) -> nn.Module:
    """The model, with the weights of the checkpoint in its backbone."""
    try:
        model = build_model(cfg)
        predicted_layers(model.backbone)
    except Exception as error:
        # What a model raises is up to its code.
        sys.exit(f'{args.config}: {type(error).__name__}: {error}')
    if args.checkpoint is not None:
        common.check_checkpoint(args.checkpoint)
        try:
            load_backbone(model.backbone, args.checkpoint)
        except ValueError as error:
            sys.exit(str(error))
    return model.to(get_device())


def find_images(args: argparse.Namespace, cfg: Config) -> TestImages:
    try:
        if args.img:
            return file_images(cfg, args.img)
        return dataset_images(cfg, args.num_images, args.num_classes)
    except Exception as error:
        # What a dataset raises is up to its code.
        sys.exit(f'{args.config}: no images: {type(error).__name__}: {error}\n'
                 'Other places of data are named by --cfg-options, as '
                 'test_dataloader.dataset.data_root=FOLDER; --img takes '
                 'files.')


class Weights(NamedTuple):
    layers: List[LayerWeights]
    pictures: List[Tensor]  # (3, H, W) from 0 to 1, of some images
    shown: List[int]  # which images these are
    names: List[str]  # of all images


def run(args: argparse.Namespace, model: nn.Module,
        images: TestImages) -> Weights:
    number = len(images.samples)
    count = min(number, SHOWN_IMAGES)
    shown = [i * number // count for i in range(count)]
    pictures, names = [], []

    def load():
        for i in track_iter_progress(range(number)):
            try:
                sample = images.samples[i]
                image = preprocess(model, sample)
            except Exception as error:
                # What a pipeline raises is up to its code.
                name = args.img[i] if args.img else f'image {i}'
                sys.exit(f'\n{name} cannot be loaded: '
                         f'{type(error).__name__}: {error}')
            names.append(
                str(getattr(sample.get('data_samples'), 'img_path', '')))
            if i in shown:
                picture = image[0].cpu()
                picture = picture - picture.min()
                pictures.append(picture / picture.max().clamp_min(1e-6))
            yield image

    try:
        layers = dynamic_weights(model.backbone, load())
    except ValueError as error:
        sys.exit(f'\n{args.checkpoint or args.config}: {error}')
    print()
    return Weights(layers, pictures, shown, names)


def draw_convolutions(args: argparse.Namespace, weights: Weights,
                      title: str) -> None:
    """The kernels of one image, and those of several."""
    layers = [layer for layer in weights.layers if layer.kind == CONV]
    if not layers:
        return
    blocks = [block_name(layer.name) for layer in layers]
    chosen = [varied_channels(layer, args.num_channels) for layer in layers]
    own = [layer.weight[c] for layer, c in zip(layers, chosen)]
    added = [[layer.kernels[i, c] for layer, c in zip(layers, chosen)]
             for i in weights.shown]
    rows = [('$w_0$', own), (r'$\Delta w$', added[0]),
            (r'$w_0 + \Delta w$', [a + b for a, b in zip(own, added[0])])]
    number = f'{len(chosen[0])} channels a block'
    draw_kernels(rows, blocks,
                 f'{title}\nDepthwise kernels for one image, {number}',
                 figure(args, 'kernels'))
    if len(weights.shown) > 1:
        draw_kernels(
            list(zip(weights.pictures, added)), blocks, f'{title}\n'
            r'Predicted part $\Delta w$ of the depthwise kernels '
            f'by image, {number}', figure(args, 'kernels_by_image'))


class Similarity(NamedTuple):
    """Of one layer or the mean over several, between N images."""
    name: str
    kind: str
    matrices: Dict[str, Tensor]  # (N, N), raw and centred
    contrasts: Dict[str, ClassContrast]  # without classes empty

    def means(self) -> Dict[str, float]:
        """Of two images."""
        return {
            form: off_diagonal(matrix).mean().item()
            for form, matrix in self.matrices.items()
        }


def off_diagonal(matrix: Tensor) -> Tensor:
    return matrix[~torch.eye(len(matrix), dtype=torch.bool)]


def compare_images(layers: Sequence[LayerWeights],
                   labels: Optional[List[int]]) -> List[Similarity]:
    """That of each layer, and the means over the layers of a kind and all."""
    groups = [(layer.name, layer.kind, [layer]) for layer in layers]
    for kind in LINEAR, CONV:
        own = [layer for layer in layers if layer.kind == kind]
        if own:
            groups.append((f'mean of {kind}', kind, own))
    groups.append(('mean of all', 'all', list(layers)))
    matrices = [{
        form:
        torch.stack([layer.similarity(form == 'centred')
                     for layer in group]).mean(0)
        for form in ('raw', 'centred')
    } for _, _, group in groups]
    contrasts: List[Dict[str, ClassContrast]] = [{} for _ in groups]
    if labels is not None:
        for form in 'raw', 'centred':
            for own, contrast in zip(
                    contrasts,
                    class_contrasts([m[form] for m in matrices], labels)):
                own[form] = contrast
    return [
        Similarity(name, kind, matrix, contrast)
        for (name, kind,
             _), matrix, contrast in zip(groups, matrices, contrasts)
    ]


def usable_labels(images: TestImages) -> Optional[List[int]]:
    """Labels that allow a comparison within and between classes."""
    if images.labels is None:
        return None
    if 1 < len(set(images.labels)) < len(images.labels):
        return images.labels
    print('Classes are not compared: that takes two or more, and two images '
          'of one')
    return None


def report(args: argparse.Namespace, weights: Weights,
           images: TestImages) -> None:
    """Write figures and numbers, and print the latter."""
    layers, similarities = weights.layers, []
    source = args.checkpoint or 'random weights'
    title = f'{Path(args.config).stem}, {Path(source).name}'
    results = dict(
        config=args.config,
        checkpoint=args.checkpoint,
        images=[
            dict(path=name, label=label) for name, label in zip(
                weights.names, images.labels or [None] * len(weights.names))
        ],
        classes=images.class_names,
        ratios={
            layer.name:
            dict(
                kind=layer.kind,
                mean=layer.ratios.mean().item(),
                std=layer.ratios.std(correction=0).item(),
                images=layer.ratios.tolist())
            for layer in layers
        })
    draw_convolutions(args, weights, title)
    draw_ratios(layers, title, figure(args, 'ratios'))
    if len(weights.names) > 1:
        similarities = compare_images(layers, usable_labels(images))
        draw_similarity(args, similarities, images, title)
    results['similarity'] = {
        similarity.name:
        dict(
            kind=similarity.kind,
            mean=similarity.means(),
            classes={
                form: contrast._asdict()
                for form, contrast in similarity.contrasts.items()
            },
            matrix={
                form: [[round(value, 6) for value in row]
                       for row in matrix.tolist()]
                for form, matrix in similarity.matrices.items()
            })
        for similarity in similarities
    }
    (args.out_dir / JSON).write_text(json.dumps(results))
    print(f'\n{as_markdown(layers, similarities)}\n\nWritten to '
          f'{args.out_dir}: {JSON} and figures')


def draw_similarity(args: argparse.Namespace,
                    similarities: Sequence[Similarity], images: TestImages,
                    title: str) -> None:
    overall = similarities[-1]
    counts = Counter(images.labels or ())
    draw_similarities(
        {
            r'$\Delta W$ as it is': overall.matrices['raw'],
            r'$\Delta W$ without the mean over images':
            overall.matrices['centred']
        }, f'{title}\nSimilarity of predicted weights, mean over layers',
        figure(args, 'similarity'), [(images.class_names[label], number)
                                     for label, number in counts.items()])
    if overall.contrasts:
        single = [s for s in similarities if not s.name.startswith('mean of')]
        draw_contrasts(
            [(s.name, s.kind)
             for s in single], [s.contrasts['centred'] for s in single],
            f'{title}\nSimilarity within and between classes, without the '
            'mean over images', figure(args, 'classes'))


def as_markdown(layers: Sequence[LayerWeights],
                similarities: Sequence[Similarity]) -> str:
    """A row for each layer, and for the means over layers."""
    table = [['layer', 'norm over that of W0', 'similarity, raw', 'centred'],
             ['---'] + ['---:'] * 3]
    with_classes = bool(similarities and similarities[-1].contrasts)
    if with_classes:
        table[0] += ['within classes', 'between', 'p']
        table[1] += ['---:'] * 3
    ratios = {layer.name: layer.ratios for layer in layers}
    for s in similarities or layers:
        ratio = ratios.get(s.name)
        row = [s.name]
        row += [''] if ratio is None else [
            f'{ratio.mean():.3g} ± {ratio.std(correction=0):.1g}'
        ]
        row += [f'{mean:.3f}'
                for mean in s.means().values()] if similarities else ['', '']
        if with_classes:
            contrast = s.contrasts['centred']
            row += [f'{value:.3f}' for value in contrast[:2]]
            row += [f'{contrast.p_value:.2g}']
        table.append(row)
    text = '\n'.join('| ' + ' | '.join(row) + ' |' for row in table)
    if with_classes:
        text += ('\n\nClasses: of the similarity without the mean over '
                 'images. p: by permutations of the labels.')
    return text


def figure(args: argparse.Namespace, name: str) -> Path:
    return args.out_dir / f'{name}.{args.format}'


def main() -> None:
    args = parse_args()
    # Building a model logs each of its parameters.
    MMLogger.get_instance('vis_dynamic_weights', log_level='WARNING')
    with common.plain_errors():
        cfg = common.load_config(args)
        args.out_dir.mkdir(parents=True, exist_ok=True)
        model = build(args, cfg)
        images = find_images(args, cfg)
        print(f'Predicting the weights for {len(images.samples)} images')
        weights = run(args, model, images)
        report(args, weights, images)


if __name__ == '__main__':
    main()
