"""One tester that every backbone passes: subclass it and name the model (see test_*.py beside)."""

import pytest
import torch
from mmseg.registry import MODELS

from tests.models import (
    assert_autocast_close,
    assert_every_parameter_gets_gradient,
    assert_exports_and_compiles,
    assert_round_trips,
    assert_same,
    randomise,
    tensors,
    weighted_sum,
)


class BackboneTester:
    """Subclasses set `config` (a small build of the model, with its `type`) and what it must give.

    `channels` and `strides` describe the feature maps; `size` is an input size (H, W) that is a
    multiple of every stride. `zero_gradient` holds patterns of parameters whose gradient is zero
    by theory. `autocast_tolerance` bounds the relative RMS error under bfloat16.
    """

    config: dict
    channels: tuple[int, ...]
    strides: tuple[int, ...]
    size: tuple[int, int] = (64, 96)
    zero_gradient: tuple[str, ...] = ()
    autocast_tolerance: float = 0.08

    def build(self, **changes):
        return MODELS.build({**self.config, **changes})

    def images(self, batch: int = 2, extra: tuple[int, int] = (0, 0)) -> torch.Tensor:
        height, width = self.size
        return torch.randn(batch, 3, height + extra[0], width + extra[1])

    def test_shapes(self):
        outputs = self.build().eval()(self.images())
        assert isinstance(outputs, tuple)
        height, width = self.size
        assert [tuple(t.shape) for t in outputs] == [
            (2, c, height // s, width // s)
            for c, s in zip(self.channels, self.strides, strict=True)
        ]

    def test_out_indices(self):
        model = self.build().eval()
        count = len(self.channels)
        single = self.build(out_indices=(count - 1,)).eval()
        single.load_state_dict(model.state_dict(), strict=False)
        x = self.images(1)
        with torch.no_grad():
            outputs = single(x)
            assert len(outputs) == 1
            assert_same(outputs[0], model(x)[-1])

    def test_every_parameter_gets_gradient(self):
        model = randomise(self.build()).train()
        weighted_sum(model(self.images())).backward()
        assert_every_parameter_gets_gradient(model, self.zero_gradient)

    def test_odd_size_and_batch_of_one(self):
        model = self.build().eval()
        with torch.no_grad():
            outputs = model(self.images(1, extra=(3, 7)))
        assert all(torch.isfinite(t).all() for t in outputs)

    def test_train_and_eval_switch(self):
        model = self.build()
        assert model.eval() is model and not model.training
        assert model.train() is model and model.training

    def test_eval_is_deterministic(self):
        model = self.build().eval()
        x = self.images(1)
        with torch.no_grad():
            assert_same(model(x), model(x), rtol=0)

    def test_frozen_stages(self):
        model = self.build(frozen_stages=1)
        model.train()
        frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
        trained = [n for n, p in model.named_parameters() if p.requires_grad]
        assert frozen and trained
        before = {k: v.clone() for k, v in model.state_dict().items()}
        weighted_sum(model(self.images())).backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= 1e-3 * p.grad
        stages = {n.rsplit(".", 1)[0] for n in frozen}
        for key, value in model.state_dict().items():
            if key in frozen or key.rsplit(".", 1)[0] in stages:
                assert torch.equal(value, before[key]), f"{key} moved though its stage is frozen"

    def test_checkpointing_changes_nothing(self):
        plain = randomise(self.build()).train()
        saving = self.build(with_cp=True).train()
        saving.load_state_dict(plain.state_dict())
        x = self.images()
        results = []
        for model in (plain, saving):
            torch.manual_seed(3)
            output = model(x)
            weighted_sum(output).backward()
            results.append((tensors(output), [p.grad for p in model.parameters()]))
        assert_same(results[1][0], results[0][0])
        for (name, ours), theirs in zip(saving.named_buffers(), plain.buffers(), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6), f"{name} moved otherwise"
        largest = max(g.abs().max() for g in results[0][1])
        for ours, theirs in zip(results[1][1], results[0][1], strict=True):
            assert (ours - theirs).abs().max() <= 1e-5 * largest

    def test_round_trips(self):
        model = randomise(self.build())
        x = self.images(1)
        assert_round_trips(model, lambda m: m(x))

    def test_autocast(self):
        x = self.images(1)
        assert_autocast_close(self.build(), lambda m: m(x), self.autocast_tolerance)

    def test_export_and_compile(self):
        assert_exports_and_compiles(randomise(self.build()), (self.images(1),))

    def test_classifier(self):
        model = self.build(num_classes=5).eval()
        with torch.no_grad():
            assert model(self.images()).shape == (2, 5)

    @pytest.mark.parametrize("indices", [(99,), (-9,)])
    def test_bad_out_indices(self, indices):
        with pytest.raises(ValueError, match=r"out_indices"):
            self.build(out_indices=indices)
