# WeightFormer-B on ImageNet-1K: WeightFormer-S, trained and tested at 448.
_base_ = 'wf_s_in1k.py'

model = dict(backbone=dict(arch='b'))

# The test crop keeps 224 of 256, the share of the smaller models.
size = 448
train_pipeline = _base_.train_pipeline
train_pipeline[1].update(scale=size)  # RandomResizedCrop
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(scale=size * 256 // 224)  # ResizeEdge
test_pipeline[2].update(crop_size=size)  # CenterCrop

# The same total batch, on 32 GPUs: a quarter of the images, each four times
# as large. On fewer, train with --auto-scale-lr.
train_dataloader = dict(batch_size=64, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
