"""UNetEAHead: the base tester, and its sum of logits against the sum written out."""

import pytest
import torch
from mmseg.registry import MODELS
from torch.nn.functional import interpolate

from tests.decode_heads.base import HeadTester
from tests.messages import raises_message
from tests.models import assert_same, randomise

WIDTHS = [4, 6, 8, 9]  # of the maps, the finest first; no side of a map has one of these numbers


class TestUNetEAHead(HeadTester):
    config = dict(
        type="UNetEAHead", in_channels=WIDTHS, channels=7, decoder_channels=(12, 10), memory_size=3
    )
    size = (40, 56)
    zero_gradient = (r"external_attention\.conv1\.bias",)

    def inputs(self, batch: int = 2, extra: tuple[int, int] = (0, 0)) -> list[torch.Tensor]:
        height, width = (side + more for side, more in zip(self.size, extra, strict=True))
        maps = []
        for width_of_map in WIDTHS:
            maps.append(torch.randn(batch, width_of_map, height, width))
            height, width = (height + 1) // 2, (width + 1) // 2  # of an odd side half a pixel more
        return maps

    @pytest.mark.parametrize("align_corners", [False, True])
    def test_the_logits_of_all_levels_add_up(self, align_corners):
        head = randomise(self.build(align_corners=align_corners)).double().eval()
        maps = [x.double() for x in self.inputs(extra=(1, 3))]
        x = head.external_attention(head.conv_in(maps[3]))
        parts = [(x, head.coarse_seg[0])]
        for skip, level, classify in zip(
            (maps[2], maps[1], maps[0]),
            head.levels,
            (head.coarse_seg[1], head.coarse_seg[2], head.conv_seg),
            strict=True,
        ):
            x = level(torch.cat([interpolate(x, skip.shape[2:], mode="nearest"), skip], 1))
            parts.append((x, classify))
        expected = 0
        for x, classify in parts:
            here = classify(x)
            if torch.is_tensor(expected):
                scale = dict(mode="bilinear", align_corners=align_corners)
                here = here + interpolate(expected, here.shape[2:], **scale)
            expected = here
        assert_same(head(maps), expected, rtol=1e-12)

    def test_a_level_of_zeros_leaves_the_coarser_ones(self):
        """So the coarsest classifier alone can find all classes."""
        head = randomise(self.build()).eval()
        maps = self.inputs()
        for classifier in (*head.coarse_seg[1:], head.conv_seg):
            torch.nn.init.zeros_(classifier.weight)
            torch.nn.init.zeros_(classifier.bias)
        logits = head.coarse_seg[0](head.external_attention(head.conv_in(maps[3])))
        for skip in (maps[2], maps[1], maps[0]):
            logits = interpolate(logits, skip.shape[2:], mode="bilinear")
        assert_same(head(maps), logits)

    def test_some_of_the_maps(self):
        """And the default widths, of which coarse levels have the larger ones."""
        chosen = dict(in_channels=[6, 8, 9], in_index=[1, 2, 3], decoder_channels=None)
        head = self.build(**chosen).eval()
        maps = self.inputs()
        assert head(maps).shape == (2, self.num_classes, *maps[1].shape[2:])
        assert head.conv_in.out_channels == 128 and len(head.levels) == 2

    def test_two_maps(self):
        head = self.build(in_channels=[6, 9], in_index=[1, 3], decoder_channels=())
        assert head(self.inputs()).shape == (2, self.num_classes, 20, 28)

    def test_widths_for_another_number_of_maps(self):
        config = {**self.config, "num_classes": 5, "decoder_channels": (8,)}
        where = dict(where="decoder_channels=", todo="each")
        with raises_message(ValueError, "4 maps have 3 levels", **where):
            MODELS.build(config)
        head = MODELS.build({**config, "in_channels": [4] * 7, "decoder_channels": None})
        assert [level[1].conv.out_channels for level in head.levels] == [
            *(128, 128, 128, 64, 48),
            self.config["channels"],
        ]
