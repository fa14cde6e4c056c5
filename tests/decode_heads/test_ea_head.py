"""EAHead and JSegEAHead: the base tester, published initialization, published equations."""

import pytest
import torch
from torch.nn.functional import interpolate

from tests.decode_heads.base import HeadTester
from tests.models import assert_same, randomise


class TestEAHead(HeadTester):
    config = dict(type="EAHead", channels=16, ea_channels=24, memory_size=8)
    zero_gradient = (r"external_attention\.conv1\.bias",)

    def test_initialisation_is_the_published_one(self):
        """PyTorch's default: uniform in [-b, b], b = 1 / sqrt(fan in), with std b / sqrt(3)."""
        head = self.build(in_channels=256, channels=128, ea_channels=128)
        for p in head.parameters():
            p.data.fill_(7)
        head.init_weights()
        for conv in (head.conv_in.conv, head.conv_out.conv, head.conv_seg):
            bound = (conv.weight[0].numel()) ** -0.5
            assert conv.weight.abs().max() <= bound
            assert abs(conv.weight.std().item() / (bound / 3**0.5) - 1) < 0.05
        assert head.conv_seg.bias.abs().max() <= 128**-0.5
        assert abs(head.external_attention.conv1.weight.std() / (2 / 128) ** 0.5 - 1) < 0.05

    def test_init_cfg_of_the_user_is_followed(self):
        head = self.build(init_cfg=dict(type="Constant", val=0.25, layer="Conv2d"))
        head.init_weights()
        assert (head.conv_seg.weight == 0.25).all()

    @pytest.mark.parametrize("align_corners", [False, True])
    def test_a_finer_map_before_the_last_convolution(self, align_corners):
        settings = dict(in_index=[1, 2], input_transform="resize_concat")
        head = self.build(
            in_channels=[4, 6], c1_in_channels=3, align_corners=align_corners, **settings
        )
        head = randomise(head).eval()
        fine, middle, coarse = (
            torch.randn(2, c, *size) for c, size in ((3, (17, 22)), (4, (9, 11)), (6, (5, 6)))
        )
        scale = dict(mode="bilinear", align_corners=align_corners)
        x = torch.cat([middle, interpolate(coarse, (9, 11), **scale)], 1)
        x = interpolate(head.external_attention(head.conv_in(x)), (17, 22), **scale)
        expected = head.conv_seg(head.conv_out(torch.cat([x, fine], 1)))
        assert_same(head([fine, middle, coarse]), expected)


class TestJSegEAHead(HeadTester):
    config = dict(type="JSegEAHead", channels=24, memory_size=8, norm_cfg=None)

    def test_equations(self):
        head = randomise(self.build()).double().eval()
        features = self.inputs()[0].double()

        def layer(module, x):
            weight, bias = module.conv.weight.flatten(1), module.conv.bias
            return torch.relu(weight @ x + bias[:, None])

        x = layer(head.conv1, features.flatten(2))
        logits = layer(head.linear_0, x)
        share = torch.exp(logits) / torch.exp(logits).sum(2, keepdim=True)
        attention = share / (1e-9 + share.sum(1, keepdim=True))
        x = layer(head.conv2, layer(head.linear_1, attention) + x)
        expected = head.conv_seg.weight.flatten(1) @ x + head.conv_seg.bias[:, None]
        assert_same(head([features]).flatten(2), expected, rtol=1e-12)
        assert_same(head.attention_map([features]).flatten(2), attention, rtol=1e-12)
