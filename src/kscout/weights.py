"""Weights on disk: safetensors files of our own, plain or compressed.

A file names the component and the arguments that rebuild it, so that loading needs nothing but the
file. Other people's checkpoints are read by `kscout.pickles`.
"""

import hashlib
import inspect
import itertools
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.modules.module import register_module_buffer_registration_hook as register_buffer_hook
from torch.nn.modules.module import (
    register_module_parameter_registration_hook as register_parameter_hook,
)

from kscout.compressed import MOST_BYTES, SUFFIX, compressed, is_compressed, unpacked
from kscout.config import check_bounded, read, supported
from kscout.config.retired import defaults_of
from kscout.errors import ConfigError, WeightsError
from kscout.files import parse_json, read_text, written_whole
from kscout.names import POLICIES, RECONSTRUCTORS, Table
from kscout.names.renamed import CLASSES, current, current_keys, keys_in_0_2

_LONGEST_HEADER = 10**8
"""Bytes, as the format allows."""
_MOST_TENSORS = 5_000
"""Far above the networks of kscout, which have at most a few hundred; each takes some time."""
SCHEMA_VERSION = 1
_ORDER = ".json"
"""Suffix of fitted orders, which have no weights: their file is the header of a weights file."""
WEIGHTS_NAME = "weights.safetensors"
"""What the weights in a run folder are called."""


def policy_beside(path: Path) -> Path:
    """Return where a policy lies that learned together with the reconstruction of a file."""
    return path.with_stem(f"{path.stem}-policy")


def policy_file(path: Path) -> Path:
    """Return the file of a policy's weights, of a run folder or of a file of a joint training."""
    alone = path / WEIGHTS_NAME if path.is_dir() else path
    return policy_beside(alone) if policy_beside(alone).is_file() else alone


def network_file(path: Path) -> Path:
    """Return the file of a reconstruction's weights: of a run folder that in it, else itself."""
    return path / WEIGHTS_NAME if path.is_dir() else path


def check_one_run(path: Path) -> None:
    """Refuse a folder of several runs, such as the seeds of one command."""
    runs = sorted(file.parent for file in path.glob(f"*/{WEIGHTS_NAME}"))
    # One that has begun keeps weights, too, of its best epoch.
    if runs and not any(path.glob("*.safetensors")):
        names = ", ".join(map(str, runs))
        raise WeightsError(f"{path} holds several runs; give one of {names}")


Kind = Literal["reconstructor", "policy"]

_TABLES: dict[str, Table[Any]] = {"reconstructor": RECONSTRUCTORS, "policy": POLICIES}
_LOADERS = {"reconstructor": "kscout.reconstruction.load", "policy": "kscout.policies.load"}


@final
@dataclass(frozen=True)
class Weights:
    """The parameters of one component, and what is needed to build it anew."""

    kind: Kind
    component: str
    """Its name in the table of its kind, or `module:Class`."""
    arguments: dict[str, Any]
    """Keyword arguments of its constructor."""
    state: dict[str, Tensor]
    extra: dict[str, Any] = field(default_factory=dict)
    """Where the weights come from; not needed to load them."""


def constructor_arguments(component: nn.Module) -> dict[str, Any]:
    """Return the arguments that rebuild a component, which keeps each under the same name."""
    kind = type(component)
    # A class without a constructor has that of nn.Module, which takes nothing but says otherwise.
    has_own = kind.__init__ is not nn.Module.__init__
    parameters = list(inspect.signature(kind).parameters.values()) if has_own else []
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise WeightsError(
                f"{kind.__name__} cannot be saved: its constructor takes '{parameter}', which no "
                "keyword fills; name each argument, and keep it under that name"
            )
    names = [parameter.name for parameter in parameters]
    try:
        return {name: getattr(component, name) for name in names}
    except AttributeError as error:
        raise WeightsError(
            f"{kind.__name__} cannot be saved: its constructor takes {error.name!r} "
            f"but the object does not keep it; set self.{error.name} in __init__"
        ) from error


def fingerprint(component: nn.Module) -> str:
    """Return a hash of a component's class, plain settings and weights.

    It is that of version 0.2, whose names of classes and retired settings it counts. Lists are not
    counted: a component that differs from others by a sequence alone stores it as a tuple.
    """
    kind = type(component)
    retired = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in retired_arguments(component).items()
    }
    plain = {
        name: value
        for name, value in sorted({**retired, **keys_in_0_2(_name(kind), vars(component))}.items())
        if isinstance(value, bool | int | float | str | tuple | None)
        and name != "training"
        and not name.startswith("_")
    }
    class_name = CLASSES.get(kind.__qualname__, kind.__qualname__)
    digest = hashlib.sha256(f"{class_name} {plain!r}".encode())
    for name, value in sorted(component.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def save_component(
    path: Path, component: nn.Module, *, kind: Kind, extra: dict[str, Any] | None = None
) -> None:
    """Write a component so that `build_component` rebuilds it."""
    name, arguments = _TABLES[kind].name_of(type(component)), constructor_arguments(component)
    check_bounded(arguments, f"{name}: arguments")
    save_weights(path, Weights(kind, name, arguments, component.state_dict(), extra or {}))


def build_component(path: Path, weights: Weights, kind: Kind) -> Any:  # noqa: ANN401 - of that kind
    """Build what a file describes, with its weights.

    A class from outside kscout is built only where a user named its module before.
    """
    if weights.kind != kind:
        beside = policy_beside(path)
        is_pair = kind == "policy" and beside.is_file()
        raise WeightsError(
            f"{path} holds a {weights.kind} ({weights.component}), not a {kind}; "
            + (f"give {beside}" if is_pair else f"load it with {_LOADERS[weights.kind]}")
        )
    if any(bool(tensor.isnan().any()) for tensor in weights.state.values()):
        raise WeightsError(f"{path} has weights that are NaN; copy it again, or train again")
    constructor = _TABLES[kind].recall(weights.component, path)
    try:
        arguments = supported_arguments(constructor, weights.component, weights.arguments)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    try:
        with few_tensors():
            _check_shapes(constructor, arguments, weights.state)
            component = constructor(**arguments)
        remember_retired(component, weights.arguments)
        component.load_state_dict(weights.state)
        component.recorded = weights.extra
    except Exception as error:  # what a file says may make a constructor raise anything
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise WeightsError(
            f"{path} does not fit {weights.component} of this kscout ({reason}); "
            "use the version that wrote it, or train again"
        ) from error
    return component


@contextmanager
def few_tensors() -> Iterator[None]:
    """Raise an error inside the block for a component of very many tensors, while it is built."""
    count = itertools.count()

    def check(*_: object) -> None:
        if next(count) > _MOST_TENSORS:
            raise ValueError(f"it would have more than {_MOST_TENSORS} tensors")

    hooks = [hook(check) for hook in (register_parameter_hook, register_buffer_hook)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def supported_arguments(
    constructor: Callable[..., nn.Module], name: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments in a file without those that were removed after version 0.2."""
    return supported(arguments, inspect.signature(constructor).parameters, name)


def remember_retired(component: nn.Module, arguments: Mapping[str, Any]) -> None:
    """Note the arguments in a file that `supported_arguments` left out: fingerprints count them."""
    own = inspect.signature(type(component)).parameters
    component.retired_arguments = {x: y for x, y in arguments.items() if x not in own}  # type: ignore[assignment]


def retired_arguments(component: nn.Module) -> dict[str, Any]:
    """Return retired arguments of a component: those in its file, else the defaults of 0.2."""
    known = defaults_of(_name(type(component)))
    return {**known, **getattr(component, "retired_arguments", {})}


def _name(kind: type) -> str:
    """Return the name of a component of kscout, nothing for any other."""
    target = f"{kind.__module__}:{kind.__qualname__}"
    tables = [table.entries.items() for table in _TABLES.values()]
    return next((name for one in tables for name, entry in one if entry.target == target), "")


def _check_shapes(
    constructor: Callable[..., nn.Module], arguments: Mapping[str, Any], state: Mapping[str, Tensor]
) -> None:
    """Refuse arguments that ask for other tensors than a file holds, before any is allocated."""
    try:
        with torch.device("meta"):
            wanted = constructor(**arguments).state_dict()
    except NotImplementedError:
        # A class that computes with tensors when it is built; those of kscout are small.
        return
    for name, tensor in wanted.items():
        found = state.get(name)
        if found is not None and found.shape != tensor.shape:
            raise WeightsError(
                f"size mismatch of {name}: {list(found.shape)} in the file, {list(tensor.shape)} "
                "by its arguments"
            )
        if found is None and tensor.numel():
            raise WeightsError(f"the file has no {name}")


def save_weights(path: Path, weights: Weights) -> None:
    """Write weights whole, or not at all, compressed where the name ends so (`.xz`).

    Equal inputs give equal bytes.
    """
    told = {name: value for name, value in vars(weights).items() if name != "state"}
    header = {"schema_version": SCHEMA_VERSION, **told}
    # Cloned, because safetensors refuses tensors that share memory. All metadata goes under one
    # key, because it writes several in an arbitrary order.
    state = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.state.items()
    }
    # Not by its `save_file`, which lets nobody but the owner read the file, whatever the umask.
    content = save(state, metadata={"kscout": json.dumps(header)})
    with written_whole(path) as aside:
        aside.write_bytes(compressed(content) if path.suffix == SUFFIX else content)


def read_weights(path: Path, *, only_described: bool = False) -> Weights:
    """Read a file written by `save_weights`, or a fitted order; half precision becomes single.

    Args:
        path: the file, compressed or not.
        only_described: leave the tensors in the file.
    """
    if not path.is_file():
        raise WeightsError(f"{path} is not a file; give the path of a .safetensors file")
    try:
        if path.suffix == _ORDER:
            header: str | None = read_text(path)
            state: dict[str, Tensor] = {}
        else:
            read_file = _read_compressed if is_compressed(path) else _read_plain
            header, state = read_file(path, only_described)
    except SafetensorError as error:
        raise WeightsError(
            f"{path} is not a whole safetensors file ({error}); copy or train it again"
        ) from error
    if header is None:
        raise WeightsError(
            f"{path} does not say which component it belongs to (no kscout metadata); "
            "only files written by kscout can be loaded"
        )
    described = _described(path, header)
    component = current(_TABLES[described.kind].kind, described.component)
    arguments = current_keys(component, described.arguments)
    return Weights(described.kind, component, arguments, state, described.extra)


def _read_plain(path: Path, only_described: bool) -> tuple[str | None, dict[str, Tensor]]:
    length = path.stat().st_size

    def first(n_bytes: int) -> bytes:
        with path.open("rb") as file:
            return file.read(n_bytes)

    # All of it would be mapped into memory.
    told = _header(first, length, is_whole=True)
    with safe_open(path, framework="pt") as file:
        names = [] if only_described else file.keys()
        return told, {name: _upcast(file.get_tensor(name)) for name in names}


def _read_compressed(path: Path, only_described: bool) -> tuple[str | None, dict[str, Tensor]]:
    if only_described:
        return _header(partial(unpacked, path), MOST_BYTES, is_whole=False), {}
    content = unpacked(path)
    told = _header(lambda n_bytes: content[:n_bytes], len(content), is_whole=True)
    return told, {name: _upcast(tensor) for name, tensor in load(content).items()}


def _header(first: Callable[[int], bytes], length: int, *, is_whole: bool) -> str | None:
    """Return the description of a component in a file, None if there is none."""
    (n_header,) = struct.unpack("<Q", first(8).ljust(8, b"\0"))
    header = first(8 + n_header)[8:] if n_header <= min(length, _LONGEST_HEADER) else b""
    try:
        tensors = parse_json(header)
        told = tensors.pop("__metadata__", {}).get("kscout")
        declared = 8 + n_header + max((x["data_offsets"][1] for x in tensors.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SafetensorError("its header cannot be read") from error
    if is_whole and length != declared:
        raise SafetensorError(f"it has {length} bytes and declares {declared}")
    if not isinstance(told, str | None):
        raise SafetensorError("its header cannot be read")
    return told


@final
@dataclass(frozen=True)
class _Header:
    """What a file of ours says about its tensors."""

    schema_version: int
    kind: Kind
    component: str
    arguments: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)


def _described(path: Path, text: str) -> _Header:
    try:
        table = parse_json(text)
        version = table.get("schema_version") if isinstance(table, dict) else SCHEMA_VERSION
        if version == SCHEMA_VERSION:
            header = read(_Header, table, "kscout")
            check_bounded(header.arguments, "arguments")
            return header
    except (ConfigError, ValueError) as error:
        raise WeightsError(
            f"{path} does not describe its component as kscout does ({error}); save it again with "
            "kscout.policies.save or kscout.reconstruction.save"
        ) from error
    raise WeightsError(
        f"{path} has schema version {version}, this kscout reads {SCHEMA_VERSION}; "
        "use the kscout that wrote it"
    )


def described(file: Path) -> Weights | None:
    """Return the description in a weights file of kscout, without weights; None for other files."""
    if not file.is_file() or not is_described(file):
        return None
    return read_weights(file, only_described=True)


def _upcast(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def is_described(path: Path) -> bool:
    """Return whether a file is a fitted order, a safetensors file or a compressed one."""
    if path.suffix == _ORDER or is_compressed(path):
        return True
    with path.open("rb") as file:
        start = file.read(9)
    # Eight bytes of header length, then a JSON object that fits in the file.
    return (
        len(start) == 9
        and start[8:] == b"{"
        and struct.unpack("<Q", start[:8])[0] <= path.stat().st_size
    )
