# The runtime of MMPreTrain, with hooks by which a crash loses nothing.
_base_ = 'mmpretrain::_base_/default_runtime.py'

default_hooks = dict(
    sampler_seed=dict(type='IterationSeedHook'),
    checkpoint=dict(type='AtomicCheckpointHook'))
