# DiT generates the digits; all but the denoiser is as WeightFormerDiT has it.
_base_ = 'dit_wf_digits.py'

model = dict(
    denoiser=dict(
        type='DiT',
        arch=dict(
            _delete_=True, embed_dims=64, depth=4, patch_size=2,
            num_heads=2)))
