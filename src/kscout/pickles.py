"""Other people's checkpoints, read without running them.

Pickles of the paper's reference and of fastMRI go through torch's restricted unpickler; the few
plain types that they hold besides tensors are replaced by stand-ins.
"""

import argparse
import pickle
import re
import struct
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, final

import torch
from torch import Tensor

from kscout.errors import WeightsError


@final
class _PlainDtype:
    """Stands in for `numpy.dtype` in pickles: keeps type code and byte order."""

    def __init__(self, code: str, *_: object) -> None:
        self.code = code
        self.byte_order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.byte_order = str(state[1]).replace("|", "=")


def _plain_scalar(dtype: _PlainDtype, content: bytes) -> float | int | bool:
    """Stands in for NumPy's scalar constructor, which would accept any object."""
    codes = {"f4": "f", "f8": "d", "i4": "i", "i8": "q", "u4": "I", "u8": "Q", "b1": "?"}
    if dtype.code not in codes:
        raise pickle.UnpicklingError(f"a NumPy scalar of type {dtype.code!r}")
    return struct.unpack(dtype.byte_order + codes[dtype.code], content)[0]


@final
class _Inert:
    """Stands in for a class of Lightning's that a checkpoint only mentions."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


_STAND_INS: list[Any] = [
    argparse.Namespace,
    (_PlainDtype, "numpy.dtype"),
    *((_plain_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    # Pure paths, because a PosixPath cannot be made on Windows, nor a WindowsPath elsewhere.
    *((PurePosixPath, f"pathlib.{local}PosixPath") for local in ("", "_local.")),
    *((PureWindowsPath, f"pathlib.{local}WindowsPath") for local in ("", "_local.")),
]


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a torch pickle that holds tensors and plain values, never running code from it.

    The prefix `module.` of data-parallel training is removed from parameter names, at the top
    level and in the dicts `model` and `state_dict`.
    """
    if not path.is_file():
        raise WeightsError(f"{path} is not a file; give the path of a checkpoint")
    try:
        # Opened here, because torch goes by the name of a file that it opens itself.
        with (
            torch.serialization.safe_globals([*_STAND_INS, *_lightning_names(path)]),
            path.open("rb") as file,
        ):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle may raise anything
        raise _unreadable(path, error) from error
    if not isinstance(content, dict):
        raise WeightsError(
            f"{path} holds a {type(content).__name__}, not a dict of parameters; "
            "save the module's state_dict() instead"
        )
    for key in ("model", "state_dict"):
        if isinstance(content.get(key), dict):
            content[key] = without_prefix(content[key], "module.")
    return without_prefix(content, "module.")


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Return the parameters in a torch pickle: its `model`, its `state_dict`, or all of it."""
    content = read_pickle(path)
    found = next((content[key] for key in ("model", "state_dict") if key in content), content)
    return {
        name: value
        for name, value in (found.items() if isinstance(found, dict) else ())
        if isinstance(name, str) and isinstance(value, Tensor)
    }


def without_prefix(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Remove a prefix that all names have; names are left alone where one lacks it."""
    if not state or not all(isinstance(name, str) and name.startswith(prefix) for name in state):
        return dict(state)
    return {name.removeprefix(prefix): value for name, value in state.items()}


def _lightning_names(path: Path) -> list[Any]:
    # Lightning's older checkpoints use its classes as keys. Nothing of them is needed.
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # not a zip archive; loading will say what is wrong, if anything is
        return []
    ours = [name for name in names if name.split(".")[0] in ("pytorch_lightning", "lightning")]
    return [(_Inert, name) for name in ours]


def _unreadable(path: Path, error: Exception) -> WeightsError:
    # Torch wraps the unpickler's own words in the advice to switch its safety off.
    inner = error.__context__ if isinstance(error, pickle.UnpicklingError) else None
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(inner or error)
    found = re.search(r"GLOBAL ([\w.]+)", text)
    if found is not None:
        return WeightsError(
            f"{path} asks to run {found.group(1)}, and kscout never runs code from a checkpoint; "
            "save its state_dict() alone, with tensors and plain values, and load that"
        )
    if ".safetensors" in path.suffixes[-2:]:
        return WeightsError(f"{path} is truncated or damaged; copy it again, or train anew")
    reason = text.splitlines()[0][:200] if text else type(error).__name__
    return WeightsError(
        f"{path} is not a readable torch checkpoint ({reason}); copy or save it again"
    )
