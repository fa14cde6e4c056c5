"""A feature pyramid next to a fine map, for `EAHead(c1_in_channels=...)`."""

from collections.abc import Sequence

from mmseg.models.necks import FPN
from mmseg.registry import MODELS
from torch import Tensor


@MODELS.register_module()
class StemFPN(FPN):
    """mmsegmentation's `FPN` for all maps but the first, which it returns unchanged.

    Maps are (B, C_i, H_i, W_i), the finest first, for example from a backbone with
    `stem_map=True`. `in_channels` are the C_i without the first; the other arguments are `FPN`'s.
    """

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the first map, and the maps (B, out_channels, H_i, W_i) of the pyramid."""
        stem, *others = inputs
        return (stem, *super().forward(others))
