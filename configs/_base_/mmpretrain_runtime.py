# The runtime of MMPreTrain, with hooks after which nothing is lost by a crash.
_base_ = 'mmpretrain::_base_/default_runtime.py'

default_hooks = dict(
    sampler_seed=dict(type='IterationSeedHook'),
    checkpoint=dict(type='AtomicCheckpointHook'))
