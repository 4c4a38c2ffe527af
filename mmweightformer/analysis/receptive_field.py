# Copyright (c) mmweightformer contributors. All rights reserved.
"""The effective receptive field of a backbone: measured and drawn."""
from copy import deepcopy
from pathlib import Path
from textwrap import fill
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import Tensor, nn

from ..models import WeightFormer
from ..models.checks import check_int
from .config_model import build_model
from .images import dataset_images

# What makes a data preprocessor of any package pad.
PADDING = ('pad_size_divisor', 'size', 'size_divisor', 'test_cfg')
# What makes a backbone return feature maps, where it has a choice.
FEATURE_MAPS = dict(out_type='featmap', gap_before_final_norm=False)


class ReceptiveField(NamedTuple):
    """How strongly the centre of a feature map depends on each pixel.

    Distances are Chebyshev distances in pixels, from the patch of stride ×
    stride pixels that belongs to the centre token: 0 within it, and at most
    n × stride within the square of (2n + 1) × (2n + 1) tokens around it.

    Attributes:
        map (Tensor): The mean absolute gradient, :math:`(H, W)` in float64.
        grid (tuple[int]): h and w of the feature map. The centre is at
            ``(h // 2, w // 2)``.
        stride (int): Pixels from one token to the next.
        num_images (int): Number of images that it is the mean over.
    """
    map: Tensor
    grid: Tuple[int, int]
    stride: int
    num_images: int

    def distances(self) -> Tensor:
        """The distance of each pixel, :math:`(H, W)` in int64."""
        rows, columns = (self._distances_along(axis, size)
                         for axis, size in enumerate(self.map.shape))
        return torch.maximum(rows[:, None], columns)

    def _distances_along(self, axis: int, size: int) -> Tensor:
        first = self.grid[axis] // 2 * self.stride
        pixels = torch.arange(size)
        before, behind = first - pixels, pixels - (first + self.stride - 1)
        return torch.maximum(before, behind).clamp_min(0)

    def shares_within(self) -> Tensor:
        """The share of the field within 0, 1, 2, ... pixels of distance."""
        rings = torch.bincount(self.distances().flatten(), self.map.flatten())
        return rings.cumsum(0) / self.map.sum()

    def share_outside(self, distance: int) -> Optional[float]:
        """The share of the field that is farther away than ``distance``.

        Args:
            distance (int): A distance in pixels, n × stride for the tokens
                outside of the square of (2n + 1) × (2n + 1).

        Returns:
            float, optional: The share; None where no pixel is farther away.
        """
        outside = self.distances() > distance
        if not outside.any():
            return None
        return (self.map[outside].sum() / self.map.sum()).item()

    def side(self, share: float) -> int:
        """The side in pixels of the square that holds a share of the field.

        Args:
            share (float): A share in (0, 1).

        Returns:
            int: The side of the smallest square around the centre token, no
            more than that of the image.
        """
        distance = int((self.shares_within() < share).sum())
        return min(self.stride + 2 * distance, max(self.map.shape))


def receptive_field(backbone: nn.Module,
                    images: Iterable[Tensor]) -> ReceptiveField:
    r"""Measure the effective receptive field of a backbone.

    With :math:`f_c(x)` the channels of the centre token in the last of the
    backbone's feature maps, the field at a pixel is

    .. math::
        E_x \sum_{i=1}^{3} \left| \frac{\partial}{\partial x_i}
        \sum_c \mathrm{ReLU}(f_c(x)) \right|,

    the mean over images, and the sum over the image's channels at the pixel.
    A plain sum over :math:`f_c` would tell nothing of a backbone that ends
    with a LayerNorm: at its initial weights that sum is constant.

    Args:
        backbone (nn.Module): A backbone that returns feature maps
            :math:`(B, C, h, w)`, one or several. It is set to inference mode.
        images (Iterable[Tensor]): Batches :math:`(B, 3, H, W)` of images as
            the backbone gets them, all of one size, on its device.

    Returns:
        ReceptiveField: The field.

    Raises:
        ValueError: If there are no images, they differ in size, their size
            is not a multiple of the stride, the last output is not a feature
            map, or the gradient is zero or not finite.
    """
    backbone.eval()
    total, count, grid = 0, 0, None
    for image in images:
        image = image.detach().requires_grad_()
        if count and image.shape[2:] != total.shape:
            raise ValueError('images must be of one size, got '
                             f'{tuple(total.shape)} and '
                             f'{tuple(image.shape[2:])}')
        with torch.enable_grad():
            features = _last_feature_map(backbone(image))
            grid = tuple(features.shape[2:])
            centre = features[:, :, grid[0] // 2, grid[1] // 2]
            gradient, = torch.autograd.grad(F.relu(centre).sum(), image)
        total = total + gradient.cpu().double().abs().sum((0, 1))
        count += len(image)
    if not count:
        raise ValueError('images must be at least one, got none')
    if not 0 < total.sum() < float('inf'):
        raise ValueError('the gradient of the centre is '
                         f'{"zero" if total.sum() == 0 else "not finite"}')
    stride = _stride(backbone, tuple(total.shape), grid)
    return ReceptiveField(total / count, grid, stride, count)


def _last_feature_map(out) -> Tensor:
    last = out[-1] if isinstance(out, (tuple, list)) and out else out
    if not isinstance(last, Tensor) or last.ndim != 4:
        got = tuple(last.shape) if isinstance(last, Tensor) else type(last)
        raise ValueError('the last output of the backbone must be a feature '
                         f'map (B, C, h, w), got {got}')
    return last


def _stride(backbone: nn.Module, shape: Tuple[int, int],
            grid: Tuple[int, int]) -> int:
    stride = shape[0] // grid[0]
    # An image that is padded to whole patches may have a grid that fits too.
    projection = getattr(
        getattr(backbone, 'patch_embed', None), 'projection', None)
    steps = getattr(projection, 'stride', (1, 1))
    if shape != (stride * grid[0], stride * grid[1]) or any(
            size % step for size, step in zip(shape, steps)):
        raise ValueError(
            'the size of the images must be a multiple of the stride, got '
            f'{shape[0]}×{shape[1]} for a feature map of {grid[0]}×{grid[1]}')
    return stride


def local_reach(backbone: nn.Module) -> Optional[int]:
    """How far the depthwise convolutions reach together.

    L of them of size K×K reach L(K // 2) tokens to each side. Beyond this
    local cone, only predicted weights can make a token depend on another.

    Args:
        backbone (nn.Module): A backbone.

    Returns:
        int, optional: The distance in pixels, for the last output of a
        WeightFormer; None for another backbone.
    """
    if not isinstance(backbone, WeightFormer):
        return None
    tokens = sum(
        max(layer.dwconv.weight.shape[2:]) // 2
        for layer in backbone.layers[:backbone.out_indices[-1] + 1])
    return tokens * backbone.patch_size


def build_for_field(cfg: Config, seed: int = 0) -> nn.Module:
    """Build a config's model for :func:`receptive_field`.

    As :func:`build_model`, but the backbone returns feature maps, also where
    a classifier would get another output, and the data preprocessor does not
    pad.

    Args:
        cfg (Config): A config of mmpretrain, mmdet or mmseg.
        seed (int): Seed of the weights. Defaults to 0.

    Returns:
        nn.Module: The model, in inference mode.

    Raises:
        ValueError: If the config has no ``model.backbone``.
        Exception: Whatever the model raises when it is built.
    """
    cfg = deepcopy(cfg)
    for owner in cfg, cfg.get('model') or {}:
        for key in PADDING:
            (owner.get('data_preprocessor') or {}).pop(key, None)
    model = build_model(cfg, seed)
    for name, value in FEATURE_MAPS.items():
        if hasattr(model.backbone, name):
            setattr(model.backbone, name, value)
    return model


def load_images(cfg: Config, number: int, size: int) -> List[Tensor]:
    """Load test images of a config, see :func:`dataset_images`.

    They go through the config's test pipeline. Then the shorter side is
    resized to ``size``, bilinearly, and the middle is cut out.

    Args:
        cfg (Config): A config with a ``test_dataloader``.
        number (int): Number of images; all, if there are no more.
        size (int): Height and width in pixels.

    Returns:
        list[Tensor]: Images :math:`(3, size, size)` from 0 to 255, for a
        data preprocessor.

    Raises:
        TypeError: If ``number`` or ``size`` is not an int.
        ValueError: If one is not positive, or the config has no
            ``test_dataloader`` or no images in it.
        FileNotFoundError: If the data are missing.
        Exception: Whatever the dataset raises.
    """
    check_int('size', size, 1)
    samples = dataset_images(cfg, number, num_classes=number).samples
    return [_middle(sample['inputs'], size) for sample in samples]


def _middle(image: Tensor, size: int) -> Tensor:
    height, width = (
        round(side * size / min(image.shape[1:])) for side in image.shape[1:])
    resized = F.interpolate(
        image[None].float(), (height, width), mode='bilinear', antialias=True)
    top, left = (height - size) // 2, (width - size) // 2
    return resized[0, :, top:top + size, left:left + size]


def normalize(model: nn.Module, image: Tensor) -> Tensor:
    """What the backbone of a model gets of an image.

    Args:
        model (nn.Module): A model of :func:`build_for_field`.
        image (Tensor): An image :math:`(3, H, W)` from 0 to 255.

    Returns:
        Tensor: :math:`(1, 3, H, W)`, on the model's device.
    """
    data = model.data_preprocessor(dict(inputs=[image], data_samples=None))
    return torch.stack(list(data['inputs'])).float()


class Panel(NamedTuple):
    """A receptive field in a figure.

    Attributes:
        label (str): The model, a column of the figure.
        weights (str): 'random' or 'trained', a row of the figure.
        field (ReceptiveField): The field.
        reach (int, optional): The distance in pixels that the local cone
            reaches, see :func:`local_reach`.
    """
    label: str
    weights: str
    field: ReceptiveField
    reach: Optional[int] = None

    def summary(self) -> Dict[str, object]:
        """The figures of the field, for JSON.

        Shares are of the sum over all pixels. ``share_outside_cone`` is None
        where there is no cone, or it covers the image.
        """
        field, stride, reach = self.field, self.field.stride, self.reach
        shares = field.shares_within()
        cone = None
        if reach is not None:
            cone = dict(
                side_tokens=2 * reach / stride + 1,
                side_pixels=2 * reach + stride)
        return dict(
            label=self.label,
            weights=self.weights,
            num_images=field.num_images,
            size=list(field.map.shape),
            grid=list(field.grid),
            stride=stride,
            centre_token=[side // 2 for side in field.grid],
            cone=cone,
            share_outside_cone=reach
            if reach is None else field.share_outside(reach),
            share_outside_3x3_tokens=field.share_outside(stride),
            side_of_50_percent_pixels=field.side(0.5),
            side_of_90_percent_pixels=field.side(0.9),
            share_within_tokens=shares[::stride].tolist())


def draw_receptive_fields(panels: Sequence[Panel], title: str,
                          path: Path) -> None:
    """Draw fields side by side, and below how they grow with the distance.

    Each map is divided by its own maximum. The local cone, where it lies
    within the image, is outlined.

    Args:
        panels (Sequence[Panel]): One or more, of images of one size.
        title (str): Title of the figure.
        path (Path): The file to write; its suffix is the format.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    labels = list(dict.fromkeys(panel.label for panel in panels))
    rows = list(dict.fromkeys(panel.weights for panel in panels))
    figure = Figure((2.2 * len(labels) + 3.5, 2.9 * len(rows) + 2.8),
                    layout='constrained')
    figure.suptitle(title)
    grid = figure.add_gridspec(len(rows) + 1, len(labels))
    maps = [figure.add_subplot(grid[i, j]) for i in range(len(rows))
            for j in range(len(labels))]  # yapf: disable
    for axes in maps:
        axes.set_axis_off()
    norm, named = LogNorm(_floor(panels), 1), set()
    for panel in panels:
        row, column = rows.index(panel.weights), labels.index(panel.label)
        axes = maps[row * len(labels) + column]
        image = _draw_map(axes, panel, norm)
        if row == 0:
            axes.set_title(fill(panel.label, 20), fontsize=10)
        if row not in named:
            axes.set_ylabel(f'{panel.weights} weights')
        named.add(row)
    figure.colorbar(
        image, ax=maps, extend='min', label='gradient / its maximum')
    axes = figure.add_subplot(grid[-1, :])
    _draw_curves(axes, panels, labels, rows)
    figure.savefig(path, dpi=90)


def _floor(panels: Sequence[Panel]) -> float:
    """A power of ten that few of the values lie below, but for zeros."""
    lows = []
    for panel in panels:
        ordered = (panel.field.map / panel.field.map.max()).flatten().sort()[0]
        ordered = ordered[ordered > 0]
        lows.append(ordered[len(ordered) // 100].log10().floor().item())
    return 10**min(max(min(lows), -6), -1)


def _draw_map(axes, panel: Panel, norm):
    from matplotlib.patches import Rectangle
    field = panel.field
    image = axes.imshow(
        (field.map / field.map.max()).clamp_min(norm.vmin).numpy(),
        cmap='magma',
        norm=norm,
        interpolation='nearest')
    axes.set_axis_on()
    axes.set(xticks=[], yticks=[])
    text = f'50 % in {field.side(0.5)}² px\n90 % in {field.side(0.9)}² px'
    outside = None
    if panel.reach is not None:
        outside = field.share_outside(panel.reach)
    if outside is not None:
        text += f'\n{100 * outside:.1f} % outside the cone'
        top, left = (
            side // 2 * field.stride - panel.reach for side in field.grid)
        side = 2 * panel.reach + field.stride
        axes.add_patch(
            Rectangle((left - 0.5, top - 0.5),
                      side,
                      side,
                      fill=False,
                      color='white',
                      linestyle='--'))
    axes.set_xlabel(text, fontsize=9)
    return image


def _draw_curves(axes, panels: Sequence[Panel], labels: Sequence[str],
                 rows: Sequence[str]) -> None:
    styles = dict(zip(reversed(rows), ['-', '--']))
    for panel in panels:
        axes.plot(
            100 * panel.field.shares_within().numpy(),
            color=f'C{labels.index(panel.label)}',
            linestyle=styles[panel.weights])
    for i, label in enumerate(labels):
        axes.plot([], color=f'C{i}', label=label)
    for weights, style in styles.items():
        axes.plot([], color='k', linestyle=style, label=f'{weights} weights')
    even = panels[0].field
    even = even._replace(map=torch.ones_like(even.map))
    axes.plot(
        100 * even.shares_within().numpy(),
        color='grey',
        linestyle=':',
        label='all pixels alike')
    axes.set(
        xlabel='Chebyshev distance from the centre patch (pixels)',
        ylabel='share of the field within (%)',
        ylim=(0, 102))
    axes.set_xlim(left=0)
    strides = {panel.field.stride for panel in panels}
    if len(strides) == 1:
        stride = strides.pop()
        axes.secondary_xaxis(
            'top', functions=(lambda d: d / stride,
                              lambda n: n * stride)).set_xlabel('in tokens')
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc='center left', bbox_to_anchor=(1, 0.5))
