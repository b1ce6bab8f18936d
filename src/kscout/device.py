"""The device of computations: selected by name, described, and its memory measured."""

import os
import resource
import sys
from pathlib import Path

import torch

from kscout.errors import ConfigError

KINDS = ("cpu", "cuda")
"""Supported kinds of devices."""


def resolve_device(device: str) -> torch.device:
    """Return the device for a user's name.

    Args:
        device: `cpu`, `cuda`, `cuda:1`, or `auto` for CUDA if available.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise _unknown(device) from error
    if resolved.type not in KINDS:
        raise _unknown(device)
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch finds no CUDA device; use --device cpu, or install torch for CUDA")
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"there is no {device}; this machine has {torch.cuda.device_count()} CUDA devices, "
            "counted from 0"
        )
    return resolved


def _unknown(device: str) -> ConfigError:
    return ConfigError(f"unknown device {device!r}; choose one of: auto, cpu, cuda")


def describe_device(device: torch.device, n_processes: int = 1) -> str:
    """Return the description of a device for provenance."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)} x {n_processes}"
    return f"{device.type} x {n_processes}"


def free_memory(device: torch.device) -> int:
    """Return the free memory in bytes: of the device, or of this machine or container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    amounts = [pages, _first_number("/proc/meminfo", "MemAvailable:") * 1024]
    amounts.append(_first_number("/sys/fs/cgroup/memory.max"))
    return min(amount for amount in amounts if amount > 0)


def check_memory(n_bytes: int, device: torch.device | str, what: str, change: str) -> None:
    """Raise an error for work that cannot fit into memory, before it starts."""
    free = free_memory(torch.device(device))
    if n_bytes > free:
        raise ConfigError(
            f"{what} needs {n_bytes / 2**30:,.1f} GiB of memory or more, and {free / 2**30:,.1f} "
            f"GiB are free; {change}"
        )


def at_most_a_quarter(n_bytes: int, device: torch.device) -> int:
    """Return a memory limit, on CUDA at most a quarter of the device's memory."""
    if device.type != "cuda":
        return n_bytes
    return min(n_bytes, torch.cuda.get_device_properties(device).total_memory // 4)


def _first_number(file: str, after: str = "") -> int:
    """Return the number after a word in a file of the system; 0 if there is none."""
    try:
        words = Path(file).read_text(encoding="ascii").split()
    except OSError:
        return 0
    place = words.index(after) + 1 if after in words else 0
    return int(words[place]) if words[place].isdigit() else 0


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of the device, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        in_bytes = sys.platform == "darwin"
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if in_bytes else 1024)
    # Linux adds a parent's size to `ru_maxrss` of a child, but not to this value.
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
