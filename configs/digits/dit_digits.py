# DiT generates the digits; all but the denoiser is as WeightFormerDiT has it.
# Its depth is to the other's as the published 12 to 15.
_base_ = 'dit_wf_digits.py'

model = dict(
    denoiser=dict(
        type='DiT',
        arch=dict(
            _delete_=True, embed_dims=64, depth=4, patch_size=2, num_heads=2)))
