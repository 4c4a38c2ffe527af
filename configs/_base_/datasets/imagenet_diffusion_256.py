# ImageNet at 256×256 to train a diffusion model: the middle of each image, or
# its mirror image. Of the validation images, the test takes the labels.
dataset_type = 'ImageNet'
data_root = 'data/imagenet'

# To [-1, 1].
data_preprocessor = dict(
    type='ClsDataPreprocessor', mean=[127.5] * 3, std=[127.5] * 3, to_rgb=True)

crop = [
    dict(
        type='ResizeEdge',
        scale=256,
        edge='short',
        backend='pillow',
        interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=256),
]
train_pipeline = [
    dict(type='LoadImageFromFile'),
    *crop,
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    *crop,
    dict(type='PackInputs'),
]

train_dataloader = dict(
    batch_size=32,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        split='train',
        pipeline=train_pipeline))
test_dataloader = dict(
    batch_size=32,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        split='val',
        pipeline=test_pipeline))

# Training is faster from latents that tools/dataset_converters/
# imagenet_latents.py has cached. A config that takes them says
#     _base_ = 'dit_wf_s_2_in1k_256.py'
#     data_preprocessor = _base_.latents_preprocessor
#     train_dataloader = dict(dataset=_base_.cached_latents)
latents_preprocessor = dict(
    type='ClsDataPreprocessor', mean=None, std=None, to_rgb=False)
cached_latents = dict(
    data_root='data/imagenet_latents',
    extensions=['.npy'],
    pipeline=[
        dict(type='LoadLatents', flip_prob=0.5),
        dict(type='PackInputs'),
    ])
