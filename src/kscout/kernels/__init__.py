"""Compiled code for inner loops: CUDA kernels by torch's compiler, C by the machine's compiler.

`registry.py` lists the operations with compiled implementations and the conditions of each; plain
torch is always the last. `KSCOUT_KERNELS=off` turns all of them off. This file imports no torch.
"""

import os
import re
from functools import cache
from pathlib import Path

from kscout.errors import ConfigError

SWITCH = "KSCOUT_KERNELS"
"""Environment variable: `on` (the default) or `off`."""


class KernelUnavailableError(Exception):
    """Compiled code is unavailable for the reason in the message; plain torch is used instead."""


@cache
def kernels_are_on() -> bool:
    """Return whether compiled code may run; the environment is read once per process."""
    value = os.environ.get(SWITCH) or "on"
    if value not in ("on", "off"):
        raise ConfigError(f"{SWITCH} is {value!r}; set it to on or off")
    return value == "on"


def read_source(file: str) -> str:
    """Return a source file of this folder with its includes expanded."""
    lines = []
    for line in Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r'#include "(.+)"', line)
        lines.append(read_source(match[1]) if match else line)
    return "\n".join(lines) + "\n"
