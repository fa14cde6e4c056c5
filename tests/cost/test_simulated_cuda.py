"""The simulated CUDA device: its memory, devices, sizes that depend on values, and dtypes."""

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mmseg_ext.cost.simulated_cuda import SimulatedCUDA
from tests.messages import raises_message


@pytest.fixture
def device():
    with SimulatedCUDA() as device:
        yield device


def test_bytes_of_storages(device):
    """Views and operators in place need no memory; freed memory counts only for the peak."""
    x = torch.zeros(10, 100, device="cuda")
    assert (device.current, device.peak) == (4000, 4000)
    x.view(-1)[3:].add_(1)
    assert device.peak == 4000
    device.gradients = 7
    y = x.half()
    assert (device.current, device.peak, device.gradients_at_peak) == (6000, 6000, 7)
    device.gradients = 8
    del y
    z = x.char()
    assert (device.current, device.peak, device.gradients_at_peak) == (5000, 6000, 7)
    torch.zeros(10**6)  # on the CPU
    assert device.current == 5000 and len(z) == 10


def test_tensors_are_on_the_device_until_its_end():
    with SimulatedCUDA() as device:
        x = torch.zeros(2, 3, device=device.device)
        assert x.is_cuda and x.device == torch.device("cuda", 0)
        assert not torch.zeros(2).is_cuda and torch.zeros(2).to("cuda").is_cuda
        assert (x * torch.tensor(2.0)).is_cuda  # a number
        for wrong in (lambda: x + torch.ones(3), lambda: torch.ones(2, 2) @ x):
            with raises_message(RuntimeError, "cpu", "cuda:0", todo=True):
                wrong()
    assert x.is_meta and not x.is_cuda


def test_sizes_that_depend_on_values_are_the_largest(device):
    x = torch.zeros(4, 6, 5, device="cuda")
    assert x.sum().item() == 1 and x.long().max().item() == 1
    mask = x[..., 0] > 0
    assert x[mask].shape == (24, 5) and x[:, mask[0]].shape == (4, 6, 5)
    x[mask] = 1


def test_tensors_of_the_cpu_that_a_gpu_takes(device):
    """Numbers, masks, indices and the source of a copy; the other way round they raise."""
    x, mask = (
        torch.zeros(3, 4, device="cuda", requires_grad=True),
        torch.tensor([True, False, True]),
    )
    y = x[mask][:, torch.tensor([0, 1, 1])]
    assert y.shape == (2, 3) and y.is_cuda
    y.sum().backward()
    assert x.grad.shape == (3, 4)
    z = x.detach()
    z[mask], z[:, torch.tensor([1])] = torch.tensor(2.0), 3.0
    z[0].copy_(torch.ones(4))
    assert torch.where(z > 0, torch.tensor(1.0), z).shape == (3, 4)
    assert z.cpu().tolist() == [[1.0] * 4] * 3 and torch.zeros(4).copy_(z[0]).tolist() == [1.0] * 4
    assert (z > 0).nonzero().shape == (12, 2)
    for wrong in (
        lambda: torch.zeros(3)[z[:, 0] > 0],
        lambda: z.masked_fill(mask[:, None], 0.0),
        lambda: z.index_select(0, torch.tensor([0])),
    ):
        with raises_message(RuntimeError, "cpu", "cuda:0", todo=True):
            wrong()


def test_mixed_precision_has_the_dtypes_of_cuda(device):
    x = torch.zeros(2, 4, device="cuda")
    with device.autocast(torch.bfloat16):
        assert functional.linear(x, x).dtype == (x @ x.T).dtype == torch.bfloat16
        half = functional.linear(x, x)
        assert half.softmax(-1).dtype == functional.layer_norm(half, (2,)).dtype == torch.float32
        assert (half + 1).dtype == torch.bfloat16 and (x + 1).dtype == torch.float32
        assert functional.linear(x.double(), x.double()).dtype == torch.float64
        assert torch.zeros(2, 2).mm(torch.zeros(2, 2)).dtype == torch.float32  # on the CPU
    assert functional.linear(x, x).dtype == half.float().dtype == torch.float32


@pytest.mark.parametrize(("width", "values", "scores"), [(16, 16, 0), (6, 16, 2), (16, 6, 2)])
def test_attention_stores_scores_only_in_the_plain_kernel(device, width, values, scores):
    """The memory-efficient kernel needs rows of 16 bytes."""
    q, v = (torch.zeros(1, 2, 64, n, device="cuda") for n in (width, values))
    mask = torch.zeros(64, 64, device="cuda")
    device.peak = before = device.current
    assert functional.scaled_dot_product_attention(q, q, v).shape == v.shape
    added = device.peak - before
    assert scores * 2 * 64**2 * 4 <= added < (scores + 1) * 2 * 64**2 * 4
    masked = functional.scaled_dot_product_attention(q, q, v, mask, dropout_p=0.5)
    assert masked.shape == v.shape


def test_batch_norm_of_one_value_per_channel(device):
    """With SyncBN one image on each of several GPUs is enough."""
    x = torch.zeros(1, 8, 1, 1, device="cuda", requires_grad=True)
    mean, variance = torch.zeros(2, 8, device="cuda")
    y = functional.batch_norm(x, mean, variance, training=True)
    y.sum().backward()
    assert y.shape == x.grad.shape == x.shape


def test_convolutions_keep_channels_last(device):
    x = torch.zeros(2, 8, 5, 7, device="cuda")
    weight = torch.zeros(4, 8, 3, 3, device="cuda")
    assert functional.conv2d(x, weight).is_contiguous()
    last = functional.conv2d(x.contiguous(memory_format=torch.channels_last), weight)
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_dropout_stores_a_mask_of_bytes(device):
    x = torch.zeros(1000, device="cuda", requires_grad=True)
    y = functional.dropout(x, 0.1)
    assert device.current == 9000 and y.shape == x.shape
    assert functional.dropout(x, 0.1, training=False) is functional.dropout(x, 0.0) is x


def test_backward_computes_checkpointed_blocks_again(device):
    peaks = []
    for run in (lambda f, x: f(x), lambda f, x: checkpoint(f, x, use_reentrant=False)):
        x = torch.zeros(1000, device="cuda", requires_grad=True)
        before = device.peak = device.current
        loss = x
        for _ in range(4):
            loss = run(lambda x: x.exp().sin().exp().sin(), loss)
        peaks.append(device.peak - before)
        loss.sum().backward()
        assert x.grad.is_cuda and x.grad.shape == x.shape
        with pytest.raises(RuntimeError, match="second time"):
            loss.sum().backward()
        del loss, x
    assert peaks[0] >= 2 * peaks[1]
