"""On what it computes: the GPU that the supervisor pinned, or nothing."""

import pytest

from forebay.engine import device
from forebay.engine.failure import Failure

PINNED = "GPU-22b2c6ac-2d49-4863-197c-9c469071178a"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(device.torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("named", [PINNED, "0", "0,1"])
def test_a_pinned_gpu_that_torch_does_not_see_is_a_crash_and_never_the_cpu(named, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    with pytest.raises(Failure, match=f"CUDA_VISIBLE_DEVICES is {named}, and torch .* sees no GPU") as refusal:
        device.default_device(0)
    assert (refusal.value.kind, refusal.value.retry) == ("crash", "restart")
    assert device.seen_devices() == [{"uuid": None, "name": f"{named} (not seen)", "bytes": None, "seen": False}]


@pytest.mark.parametrize("named", [None, "", "-1", "NoDevFiles"])
def test_where_nobody_named_a_gpu_it_is_the_cpu(named, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert device.default_device(0) == "cpu"
    assert device.seen_devices()[0]["bytes"] > 0


@pytest.mark.parametrize(("named", "lacks"), [("0,1,2", True), ("0,1", False), ("0,1,-1,2", False), (None, False)])
def test_a_model_over_several_gpus_wants_each_that_is_named(named, lacks, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(device.torch.cuda, "device_count", lambda: 2)
    if not lacks:
        return device.need_every_gpu()
    with pytest.raises(Failure, match=f"CUDA_VISIBLE_DEVICES is {named}, and torch .* sees 2 of these 3 GPUs") as refusal:
        device.need_every_gpu()
    assert (refusal.value.kind, refusal.value.retry) == ("crash", "restart")
