"""`direct_lambdas` in the frequency domain, for large windows on large maps on a CPU.

The backward pass of a convolution with one input channel is slow. Time of the direct form divided
by the time of this form, one thread: training with 23 x 23 taps on 32 x 32 to 192 x 192 positions
2.5 to 5.1, inference with global context from 32 x 32 positions 8 and more. In inference with
23 x 23 taps it is 0.6 to 1.6, so the direct form is used, as on other devices.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from mmseg_ext.layers.precision import full_precision
from mmseg_ext.layers.programs import is_fixed

# Bytes of one chunk of spectra. A chunk that fits into the cache of a core measured fastest.
_CHUNK_BYTES = 1_500_000


def should_use(values: Tensor, weight: Tensor) -> bool:
    """Check if the frequency domain is possible and faster, as measured on CPUs."""
    height, width = values.shape[3:]
    if values.device.type != "cpu" or torch.onnx.is_in_onnx_export():
        return False  # ONNX does not have complex products
    if not is_fixed(height, width):
        return False  # a program for any size contains one form for all sizes
    taps, positions = weight.shape[2] * weight.shape[3], height * width
    training = torch.is_grad_enabled() and (values.requires_grad or weight.requires_grad)
    fewest_taps = 100 if training else 3_500
    large = taps >= fewest_taps and taps * positions >= 50_000
    return large and len(values) > 0  # MKL has no transform of an empty batch


def fourier_lambdas(values: Tensor, weight: Tensor, dilation: int = 1) -> Iterator[Tensor]:
    """Yield position lambdas in chunks (B, k', v, H, W) of key channels, as `direct_lambdas`.

    They are in float32 at least, since half precision has no transforms of these lengths.
    """
    # A circular correlation of length H + reach is sufficient: the values that wrap around are
    # outside of the map.
    values = values.to(full_precision(values.dtype))
    weight = weight.to(full_precision(weight.dtype))
    batch, _, depth, height, width = values.shape
    rows, columns = weight.shape[2:]
    reach = (dilation * (rows // 2), dilation * (columns // 2))
    size = (_fast_length(height + reach[0]), _fast_length(width + reach[1]))

    kernel = weight.new_zeros((*weight.shape[:2], *size))
    kernel[:, :, : 2 * reach[0] + 1 : dilation, : 2 * reach[1] + 1 : dilation] = weight
    kernel = kernel.roll((-reach[0], -reach[1]), (2, 3))  # offset (0, 0) comes first
    kernel = torch.fft.rfft2(kernel).conj()  # (k, u, S0, S1 // 2 + 1)
    spectrum = torch.fft.rfft2(values, s=size)  # (B, u, v, S0, S1 // 2 + 1)

    channel_bytes = batch * depth * size[0] * (size[1] // 2 + 1) * spectrum.element_size()
    chunk = max(1, _CHUNK_BYTES // channel_bytes)
    spectra = spectrum.unsqueeze(2).unbind(1)  # u of (B, 1, v, S0, S1 // 2 + 1)
    for part in kernel.unsqueeze(2).split(chunk):
        parts = part.unbind(1)  # u of (k', 1, S0, S1 // 2 + 1)
        product = parts[0] * spectra[0]  # (B, k', v, S0, S1 // 2 + 1)
        for part_i, spectrum_i in zip(parts[1:], spectra[1:], strict=True):
            product = product + part_i * spectrum_i
        # The first transform is cut to the rows of the map, so the second has fewer rows.
        product = torch.fft.ifft(product, dim=3)[:, :, :, :height]
        yield torch.fft.irfft(product, n=size[1], dim=4)[..., :width]  # (B, k', v, H, W)


def _fast_length(least: int) -> int:
    """Return the smallest length >= `least` without a prime factor above 5."""
    length = least
    while 30**12 % length:  # below 8192 these lengths are the divisors of 30^12
        length += 1
    return length
