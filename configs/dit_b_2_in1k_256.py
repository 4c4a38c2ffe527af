# DiT-B/2, which has attention, on ImageNet-1K at 256×256.
# This file needs data, an autoencoder and a network of features: README.md.
_base_ = './_base_/diffusion.py'

model = dict(denoiser=dict(type='DiT', arch='b/2'))
