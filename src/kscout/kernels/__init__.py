"""Compiled code for inner loops: CUDA by the compiler inside torch, C by the machine's own.

`registry.py` lists the operations that have compiled implementations and the conditions under which
each serves; plain torch is always the last. `KSCOUT_KERNELS=off` turns all of them off. This file
imports no torch.
"""

import os
import re
from functools import cache
from pathlib import Path

from kscout.errors import ConfigError

SWITCH = "KSCOUT_KERNELS"
"""Environment variable: `on` (also where it is not set) or `off`."""


class KernelUnavailableError(Exception):
    """Compiled code cannot be had here; the message says why, and plain torch takes its place."""


@cache
def kernels_are_on() -> bool:
    """Return whether compiled code may run; the environment is read once per process."""
    value = os.environ.get(SWITCH) or "on"
    if value not in ("on", "off"):
        raise ConfigError(f"{SWITCH} is {value!r}; set it to on or off")
    return value == "on"


def read_source(file: str) -> str:
    """Return a source file of this folder with those that it includes in their places."""
    lines = []
    for line in Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r'#include "(.+)"', line)
        lines.append(read_source(match[1]) if match else line)
    return "\n".join(lines) + "\n"
