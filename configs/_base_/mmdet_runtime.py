# The runtime of MMDetection, with hooks by which a crash loses nothing.
_base_ = 'mmdet::_base_/default_runtime.py'

default_hooks = dict(
    sampler_seed=dict(type='IterationSeedHook'),
    checkpoint=dict(type='AtomicCheckpointHook'))
