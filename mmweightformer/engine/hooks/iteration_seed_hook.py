# Copyright (c) mmweightformer contributors. All rights reserved.
import inspect
from functools import partial
from typing import Any, Iterator, List, Optional

from mmengine.dataset import InfiniteSampler
from mmengine.dist import broadcast_object_list, get_rank
from mmengine.hooks import DistSamplerSeedHook
from mmengine.registry import HOOKS
from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ...utils.random_state import kept_random_state, set_random_state

# What is drawn in an iteration, besides its number.
DATA, MODEL = 0, 1


def _load_batch(dataset: Dataset, key: List[int], batch: List[int]) -> list:
    """What the loader calls for a batch that leads with its iteration."""
    iteration, *indices = batch
    # Without workers, this is the process of the model.
    with kept_random_state():
        set_random_state(*key, iteration, DATA)
        return [dataset[index] for index in indices]


class _NumberedBatches:
    """A batch sampler whose batches lead with the number of the iteration."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler
        self.iteration = 0  # of the next batch
        self.skip = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__['batch_sampler'], name)

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[List[int]]:
        first, skip = self.iteration, self.skip
        for i, batch in enumerate(self.batch_sampler):
            if i >= skip:
                yield [first + i - skip, *batch]


class _Batches:
    """The endless iterator of an iteration-based loop, from any iteration."""

    def __init__(self, dataloader: DataLoader, start: int,
                 to_discard: int) -> None:
        self._dataloader = dataloader
        self._batches = dataloader.batch_sampler
        self._batches.iteration = self._batches.skip = start
        # How many the loop will ask for only to be where we are already.
        self._to_discard = to_discard
        self._iterator: Optional[Iterator] = None

    def skip_iter(self, num_iters: int) -> None:
        self._to_discard -= num_iters

    def __next__(self) -> Any:
        if self._to_discard > 0:
            self._to_discard -= 1
            return None
        if self._iterator is None:
            self._iterator = self._endless()
        return next(self._iterator)

    def close(self) -> None:
        """End the workers now: they outlast a collection of garbage."""
        if self._iterator is not None:
            self._iterator.close()

    def _endless(self) -> Iterator:
        batches, epoch = self._batches, 0
        sampler = batches.sampler
        if not isinstance(sampler, InfiniteSampler):
            if len(batches) == 0:
                raise ValueError(
                    'train_dataloader has no batch to train on: '
                    f'{len(self._dataloader.dataset)} samples, a batch_size '
                    f'of {batches.batch_size}, drop_last='
                    f'{batches.drop_last}')
            epoch, batches.skip = divmod(batches.skip, len(batches))
        while True:
            if hasattr(sampler, 'set_epoch'):
                sampler.set_epoch(epoch)
            for batch in self._dataloader:
                batches.iteration += 1
                yield batch
            epoch, batches.skip = epoch + 1, 0


@HOOKS.register_module()
class IterationSeedHook(DistSamplerSeedHook):
    """Make all that is random in an iteration a function of its number.

    MMEngine seeds a run once. What is drawn later then depends on all that
    was drawn before, in each worker of the data loader, so that a resumed
    training is another one. With this hook, the random state of Python, NumPy
    and PyTorch is set anew for each batch of data and for each iteration,
    from the seed, the rank and the iteration. A resumed training repeats the
    uninterrupted one, whatever the number of workers, whether or not a
    validation was cut off, and without a random state in its checkpoint.

    Data that were trained on are skipped without being loaded. In an
    epoch-based training that is resumed from the middle of an epoch, the rest
    of the epoch follows, where MMEngine begins it again.

    It takes the place of :class:`mmengine.hooks.DistSamplerSeedHook`. An
    iterable dataset is left to its own random state.

    Raises:
        ValueError: When training begins, if the loader's ``batch_sampler`` is
            None, so that it has no batches to number.

    Examples:
        >>> default_hooks = dict(sampler_seed=dict(type='IterationSeedHook'))
    """

    # Ahead of all hooks that might draw.
    priority = 'VERY_HIGH'

    def before_train(self, runner: Runner) -> None:
        # One for all ranks, which a run that resumes has from its checkpoint.
        seed = [runner.seed]
        broadcast_object_list(seed)
        self._key = [seed[0], get_rank()]
        loop = runner.train_loop
        if isinstance(loop.dataloader.dataset, IterableDataset):
            return
        loop.dataloader = self._numbered(loop.dataloader)
        if isinstance(loop, IterBasedTrainLoop):
            asks = not getattr(loop, 'fast_forward_on_resume', False)
            loop.dataloader_iterator = _Batches(loop.dataloader, runner.iter,
                                                runner.iter if asks else 0)

    def _numbered(self, dataloader: DataLoader) -> DataLoader:
        """The loader with numbered batches, which its dataset understands."""
        batch_sampler = dataloader.batch_sampler
        if isinstance(batch_sampler, _NumberedBatches):
            return dataloader
        if batch_sampler is None:
            raise ValueError('IterationSeedHook needs a train_dataloader with '
                             'a batch_size or a batch_sampler, got neither')
        dataset, sampler = dataloader.dataset, batch_sampler.sampler
        if type(sampler) is InfiniteSampler:
            # The loop's first iterator may have drawn from it.
            batch_sampler.sampler = InfiniteSampler(sampler.dataset,
                                                    sampler.shuffle,
                                                    self._key[0])
        elif hasattr(sampler, 'seed'):
            sampler.seed = self._key[0]
        # The method of PyTorch's loaders for all of a batch.
        dataset.__getitems__ = partial(_load_batch, dataset, self._key)
        names = inspect.signature(DataLoader.__init__).parameters.keys() - {
            'self', 'dataset', 'batch_size', 'shuffle', 'sampler',
            'batch_sampler', 'drop_last'
        }
        return DataLoader(
            dataset,
            batch_sampler=_NumberedBatches(batch_sampler),
            **{name: getattr(dataloader, name)
               for name in names})

    def before_train_epoch(self, runner: Runner) -> None:
        batches = getattr(runner.train_loop.dataloader, 'batch_sampler', None)
        if isinstance(runner.train_loop, IterBasedTrainLoop) or \
                not isinstance(batches, _NumberedBatches):
            return
        super().before_train_epoch(runner)
        batches.iteration = runner.iter
        done = runner.iter - runner.epoch * len(batches)
        batches.skip = done if 0 < done < len(batches) else 0

    def after_train(self, runner: Runner) -> None:
        batches = getattr(runner.train_loop, 'dataloader_iterator', None)
        if isinstance(batches, _Batches):
            batches.close()

    def before_train_iter(self,
                          runner: Runner,
                          batch_idx: int,
                          data_batch: Any = None) -> None:
        set_random_state(*self._key, runner.iter, MODEL)
