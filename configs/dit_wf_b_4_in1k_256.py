# DiT-B/4 with WeightFormer's blocks, on ImageNet-1K at 256×256.
# This file needs data, an autoencoder and a network of features: README.md.
_base_ = './_base_/diffusion.py'

model = dict(denoiser=dict(type='WeightFormerDiT', arch='b/4'))
