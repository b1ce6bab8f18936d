"""The device that work runs on: found from a user's word, described, and its memory measured."""

import os
import resource
import sys
from pathlib import Path

import torch

from kscout.errors import ConfigError

KINDS = ("cpu", "cuda")
"""Kinds of devices that everything here runs on."""


def resolve_device(device: str) -> torch.device:
    """Return the device that a user's word stands for.

    Args:
        device: `cpu`, `cuda`, `cuda:1`, or `auto` for CUDA where there is one.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise _unknown(device) from error
    if found.type not in KINDS:
        raise _unknown(device)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch finds no CUDA device; use --device cpu, or install torch for CUDA")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"there is no {device}; this machine has {torch.cuda.device_count()} CUDA devices, "
            "counted from 0"
        )
    return found


def _unknown(device: str) -> ConfigError:
    return ConfigError(f"unknown device {device!r}; choose one of: auto, cpu, cuda")


def describe_device(device: torch.device, n_processes: int = 1) -> str:
    """Return a device in words, for provenance."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)} x {n_processes}"
    return f"{device.type} x {n_processes}"


def free_memory(device: torch.device) -> int:
    """Return the bytes that may still be taken: of the device, or of this machine or container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    amounts = [pages, _first_number("/proc/meminfo", "MemAvailable:") * 1024]
    amounts.append(_first_number("/sys/fs/cgroup/memory.max"))
    return min(amount for amount in amounts if amount > 0)


def check_memory(n_bytes: int, device: torch.device | str, what: str, change: str) -> None:
    """Refuse work that cannot fit into memory, before any of it is done.

    Args:
        n_bytes: that it needs at the least.
        device: where.
        what: needs so much, in words.
        change: what a user may do.
    """
    free = free_memory(torch.device(device))
    if n_bytes > free:
        raise ConfigError(
            f"{what} needs {n_bytes / 2**30:,.1f} GiB of memory or more, and {free / 2**30:,.1f} "
            f"GiB are free; {change}"
        )


def at_most_a_quarter(n_bytes: int, device: torch.device) -> int:
    """Return a limit of memory, on CUDA at most a quarter of what the device has."""
    if device.type != "cuda":
        return n_bytes
    return min(n_bytes, torch.cuda.get_device_properties(device).total_memory // 4)


def _first_number(file: str, after: str = "") -> int:
    """Return the number that follows a word in a file of the system; 0 where there is none."""
    try:
        words = Path(file).read_text(encoding="ascii").split()
    except OSError:
        return 0
    place = words.index(after) + 1 if after in words else 0
    return int(words[place]) if words[place].isdigit() else 0


def peak_memory(device: torch.device) -> int:
    """Return the most bytes held so far: of the device, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        in_bytes = sys.platform == "darwin"
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if in_bytes else 1024)
    # Linux counts a parent's size into `ru_maxrss` of a child, but not into this.
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
