# WeightFormer-T goes on to classify the digits at the size of the scenes.
# Predicted weights do not carry over to a larger grid by themselves.
_base_ = 'wf_t_digits.py'

# From scratch, unless --cfg-options pretrained=FILE.
pretrained = None
model = dict(backbone=dict(init_cfg=None))

size = 128
train_pipeline = _base_.train_pipeline
train_pipeline[1].update(scale=size)  # RandomResizedCrop
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(scale=(size, size))  # Resize
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

train_cfg = dict(max_epochs=2)
