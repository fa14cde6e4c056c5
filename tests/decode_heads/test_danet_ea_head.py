"""DANetEAHead with and without channel attention, against mmseg's DAHead where they coincide."""

import torch
from mmseg.registry import MODELS
from torch import nn

from tests.decode_heads.base import HeadTester
from tests.messages import warns_message
from tests.models import assert_same, randomise

DAHEAD = dict(type="DAHead", in_channels=32, channels=16, pam_channels=4, num_classes=5)
DAHEAD |= dict(norm_cfg=dict(type="BN"), dropout_ratio=0.1, align_corners=False)


class TestDANetEAHead(HeadTester):
    config = dict(type="DANetEAHead", channels=16, memory_size=8)
    num_outputs = 3
    zero_gradient = (r"ea\.conv1\.bias",)

    def test_each_branch_has_the_loss_of_its_name(self):
        """`ea_cam` is the sum's, which is predicted; each is the cross-entropy of its own map."""
        head, features, samples = self.build().train(), self.inputs(), self.samples(stride=1)
        torch.manual_seed(4)
        losses = head.loss(features, samples, train_cfg=None)
        labels = torch.stack([s.gt_sem_seg.data[0] for s in samples])
        torch.manual_seed(4)
        for name, logits in zip(("ea_cam", "ea", "cam"), head(features), strict=True):
            total = nn.functional.cross_entropy(logits, labels, ignore_index=255, reduction="sum")
            torch.testing.assert_close(losses[f"{name}.loss_ce"], total / labels.numel())
        assert len([k for k in losses if "loss" in k]) == 3

    def test_takes_the_config_of_dahead(self):
        with warns_message(UserWarning, "pam_channels=4") as warned:
            MODELS.build(DAHEAD | {"type": "DANetEAHead"})
        assert sum("pam_channels" in str(w.message) for w in warned) == 1

    def test_channel_branch_equals_dahead(self):
        """With its attention branch silenced, the head is DAHead's channel branch."""
        head, reference = randomise(self.build()).eval(), MODELS.build(DAHEAD).eval()
        shared = {k: v for k, v in head.state_dict().items() if k.startswith("cam")}
        missing, unexpected = reference.load_state_dict(shared, strict=False)
        assert not unexpected and all(k.startswith(("pam", "conv_seg")) for k in missing)
        features = self.inputs()
        assert_same(head(features)[2], reference(features)[2], rtol=0)

    def test_logits_are_those_of_its_parts(self):
        head = randomise(self.build()).eval()
        features = self.inputs()
        ea = head.ea_out_conv(head.ea(head.ea_in_conv(features[-1])))
        cam = head.cam_out_conv(head.cam(head.cam_in_conv(features[-1])))
        parts = (head.conv_seg(ea + cam), head.ea_conv_seg(ea), head.cam_conv_seg(cam))
        assert_same(head(features), parts)
        alone = randomise(self.build(channel_attention=False)).eval()
        ea = alone.ea_out_conv(alone.ea(alone.ea_in_conv(features[-1])))
        assert_same(alone(features), alone.conv_seg(ea))


class TestDANetEAHeadWithoutChannelAttention(HeadTester):
    config = dict(type="DANetEAHead", channels=16, memory_size=8, channel_attention=False)
    zero_gradient = (r"ea\.conv1\.bias",)
    test_export = test_compiles_once_for_all_sizes = None  # a part of the head above

    def test_one_loss(self):
        losses = self.build().loss(self.inputs(), self.samples(), train_cfg=None)
        assert {k for k in losses if "loss" in k} == {"loss_ce"}
