"""One-line descriptions of values, with the shapes of tensors and arrays."""

from dataclasses import fields
from typing import Any

import numpy as np

from kscout.exports import lazily

with lazily():
    from torch import Tensor


def one_line(value: Any) -> str:  # noqa: ANN401 - any dataclass
    """Return the type and fields of a dataclass in one line; use it as `__repr__`."""
    parts = [
        f"{item.name}={_short(getattr(value, item.name))}"
        for item in fields(value)
        if getattr(value, item.name) is not None
    ]
    return f"{type(value).__name__}({', '.join(parts)})"


def _short(value: Any) -> str:  # noqa: ANN401 - a field of a dataclass
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        place = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{kind}{[*value.shape]}{place}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{[*value.shape]}"
    if isinstance(value, tuple | list) and len(value) > 3:
        return f"{type(value).__name__} of {len(value)}"
    return repr(value)
