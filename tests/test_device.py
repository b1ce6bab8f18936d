"""A user's word for a device stands for one that is there, or is refused with the choices."""

import pytest
import torch

from kscout.device import describe_device, peak_memory, resolve_device
from kscout.errors import ConfigError


@pytest.mark.parametrize("word", ["tpu!", "meta", "cpu:x"])
def test_unknown_devices_are_told(word: str) -> None:
    with pytest.raises(
        ConfigError, match=f"unknown device '{word}'; choose one of: auto, cpu, cuda"
    ):
        resolve_device(word)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_auto_is_the_cpu_where_there_is_no_cuda_device() -> None:
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="no CUDA device; use --device cpu"):
        resolve_device("cuda")


def test_provenance_names_the_device_and_the_processes() -> None:
    assert describe_device(torch.device("cpu"), 2) == "cpu x 2"


def test_peak_memory_never_falls() -> None:
    before = peak_memory(torch.device("cpu"))
    held = torch.ones(2**22)
    assert peak_memory(torch.device("cpu")) >= before > held.numel()
