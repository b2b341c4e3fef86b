"""Devices: their names, which one is the default, and what is said when there is none. What a machine has is injected."""

from __future__ import annotations

import copy
import logging
import pickle
import threading

import pytest

import tilekit._runtime.device as module
from tilekit._driver.cpu.driver import CpuDriver
from tilekit._driver.discovery import Discovery
from tilekit._runtime.device import Device, cuda_unavailable_reason, default_device, devices, set_default_device, use_device
from tilekit._runtime.policy import SingleStream, StreamPoolRoundRobin
from tilekit.errors import DeviceError, DeviceUnavailableError

NONE = Discovery(reason="the NVIDIA driver (libcuda) cannot be loaded; install it for your system")
OLD = Discovery(reason="cuda:0: Tesla V100 is sm_70; tilekit needs sm_80 (Ampere) or newer", unusable={0: "Tesla V100 is sm_70"})


class Gpu(CpuDriver):
    kind, target, compute_capability = "cuda", "sm_90a", (9, 0)

    def __init__(self, ordinal):
        super().__init__(ordinal)
        self.name = "NVIDIA H200"


@pytest.fixture
def machine(monkeypatch):
    """Makes this a machine with the given GPUs and environment."""
    monkeypatch.delenv("TILEKIT_DEVICE", raising=False)
    monkeypatch.delenv("TILEKIT_CPU_DEVICES", raising=False)

    def make(found=NONE, **environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        looks = []
        monkeypatch.setattr(module, "_registry", module._Registry(lambda: looks.append(1) or found))
        return looks

    token = module._default.set(None)
    yield make
    module._default.reset(token)


def two_gpus():
    return Discovery(drivers=[Gpu(1), Gpu(2)], unusable={0: "Tesla V100 is sm_70; tilekit needs sm_80 (Ampere) or newer"})


def test_there_is_one_object_for_each_device(machine):
    machine(two_gpus(), TILEKIT_CPU_DEVICES="3")
    assert Device("cpu") is Device("cpu:0") is Device(Device("CPU"))
    assert Device("cpu:2") is not Device("cpu:1")
    assert Device(1) is Device("cuda:1") is Device("cuda")
    assert [device.label for device in devices()] == ["cuda:1", "cuda:2", "cpu:0", "cpu:1", "cpu:2"]
    device = Device("cuda:2")
    assert repr(device) == 'Device("cuda:2")'
    assert pickle.loads(pickle.dumps(device)) is device
    assert copy.deepcopy(device) is device
    assert {device: 1}[Device(2)] == 1
    assert (device.kind, device.ordinal, device.name, device.target, device.compute_capability) == (
        "cuda",
        2,
        "NVIDIA H200",
        "sm_90a",
        (9, 0),
    )


@pytest.mark.parametrize("spec", ["gpu", "cuda:", "cuda:-1", "cpu:x", "", "cuda:1:2"])
def test_names_of_nothing(spec):
    with pytest.raises(ValueError, match=f'{spec!r} names no device: expected "cuda", "cuda:1", "cpu" or "cpu:2"'):
        Device(spec)


@pytest.mark.parametrize("spec", [1.0, True, b"cpu", object()])
def test_what_is_no_name(spec):
    with pytest.raises(TypeError, match="a device is named by"):
        Device(spec)


def test_devices_that_are_not_there(machine):
    machine(two_gpus())
    with pytest.raises(DeviceUnavailableError, match="cuda:0 cannot be used: Tesla V100 is sm_70; tilekit needs sm_80"):
        Device(0)
    with pytest.raises(DeviceUnavailableError, match="there is no cuda:3: there are cuda:1, cuda:2"):
        Device(3)
    with pytest.raises(DeviceUnavailableError, match=r"no cpu:4: there is cpu:0\. TILEKIT_CPU_DEVICES=5 makes that many"):
        Device("cpu:4")
    machine(NONE)
    with pytest.raises(DeviceUnavailableError, match=r'no GPU can be used: .*libcuda.*The CPU device is Device\("cpu"\)'):
        Device("cuda")


def test_the_default_is_the_first_usable_gpu(machine):
    machine(two_gpus())
    assert default_device() is Device("cuda:1")
    assert Device() is default_device()


def test_without_a_gpu_it_is_the_cpu_which_is_said_once(machine, caplog):
    looks = machine(NONE)
    with caplog.at_level(logging.INFO, "tilekit"):
        assert default_device() is default_device() is Device("cpu")
    assert [record.getMessage() for record in caplog.records] == [f"tilekit runs on the CPU device: {NONE.reason}"]
    assert looks == [1]
    assert cuda_unavailable_reason() == NONE.reason


def test_an_old_gpu_is_named(machine, caplog):
    machine(OLD)
    with caplog.at_level(logging.INFO, "tilekit"):
        assert default_device().kind == "cpu"
    assert "Tesla V100 is sm_70; tilekit needs sm_80" in caplog.text
    with pytest.raises(DeviceUnavailableError, match="cuda:0 cannot be used: Tesla V100 is sm_70"):
        Device(0)


@pytest.mark.parametrize(("asked", "label"), [("cpu", "cpu:0"), ("CPU:1", "cpu:1"), ("cuda", "cuda:1"), ("cuda:2", "cuda:2")])
def test_the_environment_chooses(machine, asked, label, caplog):
    machine(two_gpus(), TILEKIT_DEVICE=asked, TILEKIT_CPU_DEVICES="2")
    with caplog.at_level(logging.INFO, "tilekit"):
        assert default_device().label == label
    assert caplog.records == []


def test_asking_for_the_cpu_looks_for_no_gpu(machine):
    looks = machine(two_gpus(), TILEKIT_DEVICE="cpu")
    default_device()
    assert looks == []


def test_the_environment_asks_for_a_gpu_that_is_not_there(machine):
    machine(NONE, TILEKIT_DEVICE="cuda")
    with pytest.raises(DeviceUnavailableError, match="TILEKIT_DEVICE=cuda: no GPU can be used: the NVIDIA driver .* install it"):
        default_device()
    machine(OLD, TILEKIT_DEVICE="cuda")
    with pytest.raises(DeviceUnavailableError, match="TILEKIT_DEVICE=cuda: no GPU can be used: cuda:0: Tesla V100 is sm_70"):
        default_device()
    machine(NONE, TILEKIT_DEVICE="tpu")
    with pytest.raises(ValueError, match="TILEKIT_DEVICE: 'tpu' names no device"):
        default_device()


def test_the_default_can_be_chosen_for_a_while(machine):
    machine(two_gpus())
    with use_device("cpu") as chosen:
        assert default_device() is chosen is Device("cpu")
        with use_device(2):
            assert default_device() is Device(2)
        assert default_device() is chosen
        seen = []
        thread = threading.Thread(target=lambda: seen.append(default_device()))  # a context of its own
        thread.start()
        thread.join()
        assert seen == [Device(1)]
    assert default_device() is Device(1)
    set_default_device("cpu")
    assert default_device() is Device("cpu")
    set_default_device(None)
    assert default_device() is Device(1)


def test_the_policy_is_a_pool_of_four_unless_set():
    device = Device.of_driver(CpuDriver())
    assert isinstance(device.policy, StreamPoolRoundRobin)
    assert device.policy is device.policy
    assert len({device.policy.next_stream() for _ in range(8)}) == 4
    device.policy = single = SingleStream(device)
    assert device.policy is single
    with pytest.raises(TypeError, match="no scheduling policy"):
        device.policy = 4


def test_synchronize_waits_for_every_stream(device):
    with device.stream() as one, device.stream() as two:
        serials = [one.mark(), two.mark()]
        device.synchronize()
        assert (one.completed >= serials[0], two.completed >= serials[1]) == (True, True)


def test_synchronize_raises_what_any_stream_failed_with():
    device = Device.of_driver(CpuDriver())
    streams = [device.stream() for _ in range(3)]
    device.driver.submit(streams[1].handle, lambda: 1 // 0)
    with pytest.raises(DeviceError, match="ZeroDivisionError"):
        device.synchronize()
    device.synchronize()


def test_memory_info(device):
    free, total = device.memory_info()
    assert 0 < free <= total
