"""The tests of every backbone: subclass `BackboneTester` and name the model (see test_*.py)."""

import copy
from inspect import signature

import pytest
import torch
from mmcv.cnn.bricks import DropPath
from mmengine.runner.checkpoint import load_state_dict
from mmseg.registry import MODELS
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode

from tests.messages import raises_message
from tests.models import ModelTester, OnGPU, assert_same, randomise, weighted_sum
from tests.parity import assert_same_function


class BackboneTester(ModelTester):
    """Subclasses set `config` (a small build of the model, with its `type`) and what it must give.

    `channels` and `strides` describe the feature maps, the maps of all stages that the variant has;
    `size` is an input size (H, W) that is a multiple of every stride. `deeper` are the arguments
    that add a block. See also `ModelTester`.
    """

    channels: tuple[int, ...]
    strides: tuple[int, ...]
    deeper: dict
    size = (64, 96)

    def build(self, **changes):
        return MODELS.build({**self.config, **changes})

    def inputs(self, batch: int = 2, extra: tuple[int, int] = (0, 0)) -> torch.Tensor:
        height, width = self.size
        return torch.randn(batch, 3, height + extra[0], width + extra[1])

    def build_dropping(self, **changes):
        """Build the model with stochastic depth, if it has any."""
        if "drop_path_rate" in signature(type(self.build())).parameters:
            changes["drop_path_rate"] = 0.5
        return self.build(**changes)

    def test_shapes(self):
        model = self.build().eval()
        outputs = model(self.inputs())
        assert isinstance(outputs, tuple)
        height, width = self.size
        assert [tuple(t.shape) for t in outputs] == [
            (2, c, height // s, width // s)
            for c, s in zip(self.channels, self.strides, strict=True)
        ]
        assert model.feature_info.channels() == list(self.channels)
        assert model.feature_info.reduction() == list(self.strides)
        modules = [entry["module"] for entry in model.feature_info]
        assert all(model.get_submodule(module) for module in modules)
        assert sorted(modules) == modules  # in the order of the maps
        odd_size = self.inputs(1, extra=(3, 7))
        assert all(torch.isfinite(t).all() for t in model(odd_size))
        assert self.build(num_classes=5, out_indices=(0,)).eval()(odd_size).shape == (1, 5)
        with FakeTensorMode():  # without memory, for the memory of a training step
            outputs = self.build(**self.traced)(self.inputs())
        assert all(isinstance(t, FakeTensor) for t in outputs)

    def test_images_of_other_channels(self):
        model = self.build(in_channels=5).eval()
        shapes = [maps.shape for maps in model(torch.randn(1, 5, *self.size))]
        assert shapes == [maps.shape for maps in self.build().eval()(self.inputs(1))]
        with raises_message(ValueError, "(B, 5, H, W)", where="images: "):
            model(self.inputs(1))

    def test_out_indices(self):
        """In increasing order, counted from the end where negative; later stages are not built."""
        model = randomise(self.build()).eval()
        count = len(self.channels)
        x = self.inputs(1)
        with torch.no_grad():
            expected = model(x)
            for indices in ((count - 1,), (1, 0), -2):
                part = self.build(out_indices=indices).eval()
                load_state_dict(part, copy.deepcopy(model.state_dict()))  # with the stages left out
                wanted = sorted(i % count for i in ((indices,) if indices == -2 else indices))
                assert_same(part(x), [expected[i] for i in wanted])
                assert part.feature_info == [model.feature_info[i] for i in wanted]
        part = self.build(out_indices=(0,)).train()
        assert len(part.state_dict()) < len(model.state_dict())
        weighted_sum(part(self.inputs())).backward()
        assert all(p.grad is not None for p in part.parameters())

    def test_every_parameter_gets_gradient(self):
        model = randomise(self.build()).train()
        weighted_sum(model(self.inputs())).backward()
        self.check_gradients(model)

    @pytest.mark.parametrize("frozen", [0, 2])
    def test_frozen_stages(self, frozen):
        """The stem and the first stages: no gradient, eval mode, no step of their statistics."""
        model = self.build(frozen_stages=frozen).train()
        outputs = model(self.inputs())
        trained = {n for n, p in model.named_parameters() if p.requires_grad}
        for i, stage in enumerate(entry["module"] for entry in model.feature_info):
            states = {p.requires_grad for p in model.get_submodule(stage).parameters()}
            assert states == {i >= frozen}, stage
        weighted_sum(outputs).backward()
        for name, module in model.named_modules():
            own = [f"{name}.{n}" if name else n for n, _ in module.named_parameters(recurse=False)]
            if own and name:
                assert module.training == (own[0] in trained), name
                if hasattr(module, "num_batches_tracked") and not module.training:
                    assert module.num_batches_tracked == 0

    @pytest.mark.parametrize("frozen", [2, -1])
    def test_frozen_stages_compute_as_in_evaluation(self, frozen):
        """They drop no branches, on a CPU and in the forms for a GPU; -1 are all stages."""
        frozen = frozen % (len(self.channels) + 1)
        model = randomise(self.build_dropping(frozen_stages=frozen))
        x = self.inputs()
        for images in (x, x.as_subclass(OnGPU)):
            with torch.no_grad():
                trained, expected = model.train()(images), model.eval()(images)
            assert_same(trained[:frozen], expected[:frozen], rtol=0)

    @pytest.mark.parametrize("kind", [torch.Tensor, OnGPU])
    def test_checkpointing_changes_nothing(self, kind):
        """The backward pass drops the branches that the forward pass drops."""

        def with_one_dropout(model):
            def forward(x):
                torch.manual_seed(3)
                return [y.as_subclass(torch.Tensor) for y in model(x.as_subclass(kind))]

            return forward

        def storing_activations(twin):
            twin.with_cp = False
            return with_one_dropout(twin)

        model = randomise(self.build_dropping(with_cp=True)).train()
        form = with_one_dropout(model)
        assert_same_function(model, storing_activations, self.inputs(4), 1e-5, form)

    def test_stochastic_depth(self):
        """Its rate rises linearly from 0 in the first block to the full rate in the last."""
        if "drop_path_rate" not in signature(type(self.build())).parameters:
            return
        model = self.build(drop_path_rate=0.3)
        rates = [m.drop_prob for m in model.modules() if isinstance(m, DropPath)]
        assert rates == pytest.approx([0.3 * i / (len(rates) - 1) for i in range(len(rates))])

    def test_initialization_of_linear_layers(self):
        linear = [m for m in self.build(num_classes=300).modules() if isinstance(m, nn.Linear)]
        assert all(m.bias is None or not m.bias.any() for m in linear[:-1])
        stds = [m.weight.std().item() for m in linear[:-1] if m.weight.numel() > 500]
        assert stds == pytest.approx([0.02] * len(stds), rel=0.2)

    def test_weights_of_another_depth_or_shape(self):
        """mmengine alone would load the blocks that both have, and log the others."""
        deeper, model = self.build(**self.deeper), self.build()
        name = r"(blocks|stages\.\d|layer\d): (\d) .*, (\d) "
        for theirs, ours in ((deeper, model), (model, deeper)):
            with pytest.raises(ValueError, match=name):
                load_state_dict(ours, theirs.state_dict())
        state = copy.deepcopy(model.state_dict())
        key = next(k for k in reversed(state) if state[k].ndim == 2 or state[k].ndim == 4)
        state[key] = torch.cat((state[key], state[key]))
        message = rf"backbone\.{key}: \({len(state[key])}, .* \({len(state[key]) // 2}, "
        segmentor = nn.ModuleDict({"backbone": model})
        with pytest.raises(ValueError, match=message):
            load_state_dict(segmentor, {f"backbone.{k}": value for k, value in state.items()})

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"out_indices": (99,)}, r"out_indices=\(99,\)"),
            ({"frozen_stages": 99}, "frozen_stages=99"),
            ({"arch": "huge"}, "arch='huge'"),
            ({}, r"images: .*\(1, 4, 32"),
            ({"arch": {"sizes": 3}}, "arch: .*sizes"),
        ],
        ids=str,
    )
    def test_bad_arguments(self, changes, message):
        with pytest.raises(ValueError, match=message):
            self.build(**changes)(torch.zeros(1, 4, 32, 32))
