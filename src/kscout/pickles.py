"""Checkpoints of other programs, read without running code from them.

Pickles of the paper's reference and of fastMRI are read by torch's restricted unpickler; the few
plain types that they contain besides tensors are replaced by substitutes.
"""

import argparse
import pickle
import re
import struct
import zipfile
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, final

import torch
from torch import Tensor

from kscout.errors import WeightsError
from kscout.files import check_unpacked
from kscout.json_types import JsonObject


@final
class _PlainDtype:
    """Substitute for `numpy.dtype` in pickles, with type code and byte order."""

    def __init__(self, code: str, *_: object) -> None:
        self.code = code
        self.byte_order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.byte_order = str(state[1]).replace("|", "=")


def _plain_scalar(dtype: _PlainDtype, content: bytes) -> float | int | bool:
    """Substitute for NumPy's scalar constructor, which would accept any object."""
    codes = {"f4": "f", "f8": "d", "i4": "i", "i8": "q", "u4": "I", "u8": "Q", "b1": "?"}
    if dtype.code not in codes:
        raise pickle.UnpicklingError(f"a NumPy scalar of type {dtype.code!r}")
    return struct.unpack(dtype.byte_order + codes[dtype.code], content)[0]


@final
class _Inert:
    """Substitute for a class of Lightning that is named in a checkpoint."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


_STAND_INS: list[Any] = [
    argparse.Namespace,
    (_PlainDtype, "numpy.dtype"),
    *((_plain_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    # Pure paths, because a PosixPath cannot be constructed on Windows, nor a WindowsPath elsewhere.
    *((PurePosixPath, f"pathlib.{local}PosixPath") for local in ("", "_local.")),
    *((PureWindowsPath, f"pathlib.{local}WindowsPath") for local in ("", "_local.")),
]


def read_pickle(path: Path) -> JsonObject:
    """Read a torch pickle with tensors and plain values, without running code from it.

    The prefix `module.` of data-parallel training is removed from parameter names, at the top
    level and in the dicts `model` and `state_dict`.
    """
    if not path.is_file():
        raise WeightsError(f"{path} is not a file; give the path of a checkpoint")
    try:
        with torch.serialization.safe_globals([*_STAND_INS, *_lightning_names(path)]):
            content = load_tensors(path)
    except Exception as error:  # a damaged pickle may raise any exception
        raise _unreadable(path, error) from error
    if not isinstance(content, dict):
        raise WeightsError(
            f"{path} contains a {type(content).__name__}, not a dict of parameters; "
            "save the module's state_dict() instead"
        )
    for key in ("model", "state_dict"):
        if isinstance(content.get(key), dict):
            content[key] = without_prefix(content[key], "module.")
    return without_prefix(content, "module.")


def load_tensors(path: Path) -> Any:  # noqa: ANN401 - any content
    """Load a torch pickle to the CPU without running code; any fault is an exception.

    Archives that unpack to far more than their size, and tensors with fewer stored values than
    elements, would take memory without bound.
    """
    # Opened here, because torch depends on the name of files that it opens.
    with path.open("rb") as file:
        if zipfile.is_zipfile(file):
            check_unpacked(file)
        file.seek(0)
        content = torch.load(file, map_location="cpu", weights_only=True)
    left, seen = [content], set()
    while left:
        value = left.pop()
        if isinstance(value, Tensor):
            n_bytes = value.numel() * value.element_size()
            if n_bytes > value.untyped_storage().nbytes():
                raise ValueError(f"a tensor of shape {list(value.shape)} without its values")
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            left += value.values() if isinstance(value, dict) else value
    return content


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Return the parameters in a torch pickle: its `model`, its `state_dict`, or all of it."""
    content = read_pickle(path)
    state = next((content[key] for key in ("model", "state_dict") if key in content), content)
    return {
        name: value
        for name, value in (state.items() if isinstance(state, dict) else ())
        if isinstance(name, str) and isinstance(value, Tensor)
    }


def without_prefix(state: JsonObject, prefix: str) -> JsonObject:
    """Remove a prefix from all names, if all have it."""
    if not state or not all(isinstance(name, str) and name.startswith(prefix) for name in state):
        return dict(state)
    return {name.removeprefix(prefix): value for name, value in state.items()}


def _lightning_names(path: Path) -> list[Any]:
    # Older checkpoints of Lightning use its classes as keys, which are not needed.
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # not a zip archive; loading will report a fault, if any
        return []
    ours = [name for name in names if name.split(".")[0] in ("pytorch_lightning", "lightning")]
    return [(_Inert, name) for name in ours]


def _unreadable(path: Path, error: Exception) -> WeightsError:
    # Torch adds advice to disable its safety checks to the unpickler's message.
    inner = error.__context__ if isinstance(error, pickle.UnpicklingError) else None
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(inner or error)
    match = re.search(r"GLOBAL ([\w.]+)", text)
    if match is not None:
        return WeightsError(
            f"{path} would run {match.group(1)}, and kscout never runs code from a checkpoint; "
            "save only its state_dict(), with tensors and plain values, and load that"
        )
    if ".safetensors" in path.suffixes[-2:]:
        return WeightsError(f"{path} is truncated or damaged; copy it again, or train again")
    reason = text.splitlines()[0][:200] if text else type(error).__name__
    return WeightsError(
        f"{path} is not a readable torch checkpoint ({reason}); copy or save it again"
    )
