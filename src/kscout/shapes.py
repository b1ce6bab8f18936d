"""One-line descriptions of values, with the shapes of tensors and arrays."""

from dataclasses import fields
from typing import Any


def one_line(value: Any) -> str:  # noqa: ANN401 - any dataclass
    """Return the type and fields of a dataclass in one line; use it as `__repr__`."""
    values = {item.name: getattr(value, item.name) for item in fields(value)}
    parts = [f"{name}={_short(one)}" for name, one in values.items() if one is not None]
    return f"{type(value).__name__}({', '.join(parts)})"


def _short(value: Any) -> str:  # noqa: ANN401 - a field of a dataclass
    # Tensors and arrays; a description needs neither torch nor NumPy.
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        device = str(getattr(value, "device", "cpu"))
        place = "" if device == "cpu" else f" on {device}"
        return f"{str(value.dtype).removeprefix('torch.')}{[*value.shape]}{place}"
    if isinstance(value, tuple | list) and len(value) > 3:
        return f"{type(value).__name__} of {len(value)}"
    return repr(value)
