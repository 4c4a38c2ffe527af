# The runtime of MMPreTrain, with hooks by which a crash loses nothing
# and a loss that is not finite ends the training.
_base_ = 'mmpretrain::_base_/default_runtime.py'

default_hooks = dict(
    sampler_seed=dict(type='IterationSeedHook'),
    checkpoint=dict(type='AtomicCheckpointHook'),
    non_finite=dict(type='NonFiniteHook'))
