"""Weights files of kscout: safetensors, plain or compressed.

A file names the component and the arguments that rebuild it, so loading needs only the file.
`kscout.pickles` reads checkpoints of other packages.
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
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor, nn
from torch.nn.modules.module import register_module_buffer_registration_hook as register_buffer_hook
from torch.nn.modules.module import (
    register_module_parameter_registration_hook as register_parameter_hook,
)

from kscout.compressed import MOST_BYTES, SUFFIX, compressed, is_compressed, unpacked
from kscout.config import check_bounded, read, supported
from kscout.config.retired import LISTED, defaults_of
from kscout.errors import ConfigError, WeightsError
from kscout.files import parse_json, read_text, written_whole
from kscout.json_types import JsonObject
from kscout.names import POLICIES, RECONSTRUCTORS, Registry
from kscout.names.renamed import CLASSES, current, current_keys, keys_in_0_2

_LONGEST_HEADER = 10**8
"""Largest number of bytes that the format allows."""
_MOST_TENSORS = 5_000
"""Limit of tensors per component; the networks of kscout have at most a few hundred."""
SCHEMA_VERSION = 1
_HALF = (torch.float16, torch.bfloat16)
_ORDER = ".json"
"""Suffix of fitted orders, which have no weights: their file is the header of a weights file."""
WEIGHTS_NAME = "weights.safetensors"
"""Name of the weights file in a run folder."""


def joint_policy_path(path: Path) -> Path:
    """Return the path of the policy that was trained jointly with the reconstruction of a file."""
    return path.with_stem(f"{path.stem}-policy")


def policy_file(path: Path) -> Path:
    """Return the weights file of a policy in a run folder or next to a jointly trained network."""
    weights = path / WEIGHTS_NAME if path.is_dir() else path
    return joint_policy_path(weights) if joint_policy_path(weights).is_file() else weights


def network_file(path: Path) -> Path:
    """Return the weights file of a reconstruction: the one in a run folder, or the path itself."""
    return path / WEIGHTS_NAME if path.is_dir() else path


def check_one_run(path: Path) -> None:
    """Raise an error for a folder of several runs, such as the seeds of one command."""
    runs = sorted(file.parent for file in path.glob(f"*/{WEIGHTS_NAME}"))
    # An unfinished run has weights of its best epoch.
    if runs and not any(path.glob("*.safetensors")):
        names = ", ".join(map(str, runs))
        raise WeightsError(f"{path} holds several runs; give one of {names}")


Kind = Literal["reconstructor", "policy"]

_TABLES: dict[str, Registry[Any]] = {"reconstructor": RECONSTRUCTORS, "policy": POLICIES}
_USES = {"reconstructor": "as the reconstruction", "policy": "as a policy"}


@final
@dataclass(frozen=True)
class Weights:
    """The parameters of one component, with its name and constructor arguments."""

    kind: Kind
    component: str
    """Its name in the table of its kind, or `module:Class`."""
    arguments: JsonObject
    """Keyword arguments of its constructor."""
    state: dict[str, Tensor]
    extra: JsonObject = field(default_factory=dict)
    """Origin of the weights; not needed to load them."""


def constructor_arguments(component: nn.Module) -> JsonObject:
    """Return the constructor arguments of a component, which stores each under the same name."""
    kind = type(component)
    # The signature of nn.Module.__init__ is *args, **kwargs, but it accepts no arguments.
    has_constructor = kind.__init__ is not nn.Module.__init__
    parameters = list(inspect.signature(kind).parameters.values()) if has_constructor else []
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise WeightsError(
                f"{kind.__name__} cannot be saved: its constructor takes '{parameter}', which is "
                "not a keyword argument; name each argument, and store it under that name"
            )
    names = [parameter.name for parameter in parameters]
    try:
        return {name: getattr(component, name) for name in names}
    except AttributeError as error:
        raise WeightsError(
            f"{kind.__name__} cannot be saved: its constructor takes {error.name!r} "
            f"but the object does not store it; set self.{error.name} in __init__"
        ) from error


def fingerprint(component: nn.Module) -> str:
    """Return a hash of a component's class, plain settings and weights.

    The hash equals that of version 0.2: it includes the class names and retired settings of 0.2. It
    does not include lists; a component that differs only by a sequence stores it as a tuple.
    """
    kind = type(component)
    retired = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in retired_arguments(component).items()
        if name not in LISTED
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
    for name, value in sorted(stored_state(component).items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def stored_state(component: nn.Module) -> dict[str, Tensor]:
    """Return the weights that the file of a component contains; others are in files it names."""
    left_out = getattr(component, "stored_elsewhere", ())
    state = component.state_dict().items()
    return {name: value for name, value in state if not name.startswith(left_out)}


def save_component(
    path: Path, component: nn.Module, *, kind: Kind, extra: JsonObject | None = None
) -> None:
    """Write a component to a file from which `build_component` rebuilds it."""
    name, arguments = _TABLES[kind].name_of(type(component)), constructor_arguments(component)
    check_bounded(arguments, f"{name}: arguments")
    save_weights(path, Weights(kind, name, arguments, stored_state(component), extra or {}))


def build_component(path: Path, weights: Weights, kind: Kind) -> Any:  # noqa: ANN401 - of that kind
    """Build the component that a file describes, with its weights.

    A class of another package is built only if a user named its module before.
    """
    if weights.kind != kind:
        policy = joint_policy_path(path)
        is_pair = kind == "policy" and policy.is_file()
        raise WeightsError(
            f"{path} holds a {weights.kind} ({weights.component}), not a {kind}; "
            + (f"give {policy}" if is_pair else f"give it {_USES[weights.kind]}")
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
        store_retired(component, weights.arguments)
        component.load_state_dict(weights.state)
        component.recorded = weights.extra
    except Exception as error:  # arguments in a file may make a constructor raise any exception
        raise misfit(path, weights.component, error) from error
    return component


def misfit(path: Path, component: str, error: Exception) -> WeightsError:
    """Return the error for a file whose component cannot be built."""
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    advice = "use the version that wrote it, or train again"
    return WeightsError(f"{path} does not fit {component} of this kscout ({reason}); {advice}")


@contextmanager
def few_tensors() -> Iterator[None]:
    """Raise an error if a component that is built inside the block has too many tensors."""
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
    constructor: Callable[..., nn.Module], name: str, arguments: Mapping[str, object]
) -> JsonObject:
    """Return the arguments in a file without those that were removed after version 0.2."""
    return supported(arguments, inspect.signature(constructor).parameters, name)


def store_retired(component: nn.Module, arguments: Mapping[str, object]) -> None:
    """Store the arguments that `supported_arguments` left out: fingerprints include them."""
    known = inspect.signature(type(component)).parameters
    component.retired_arguments = {x: y for x, y in arguments.items() if x not in known}  # type: ignore[assignment]


def retired_arguments(component: nn.Module) -> JsonObject:
    """Return the retired arguments of a component: those of its file, or the defaults of 0.2."""
    defaults = defaults_of(_name(type(component)))
    return {**defaults, **getattr(component, "retired_arguments", {})}


def _name(kind: type) -> str:
    """Return the name of a component of kscout; empty for other classes."""
    target = f"{kind.__module__}:{kind.__qualname__}"
    tables = [table.entries.items() for table in _TABLES.values()]
    return next((name for one in tables for name, entry in one if entry.target == target), "")


def _check_shapes(
    constructor: Callable[..., nn.Module], arguments: JsonObject, state: Mapping[str, Tensor]
) -> None:
    try:
        with torch.device("meta"):
            expected = constructor(**arguments).state_dict()
    except NotImplementedError:
        # The constructor computes with tensors; such components of kscout are small.
        return
    for name, tensor in expected.items():
        saved = state.get(name)
        if saved is not None and saved.shape != tensor.shape:
            raise WeightsError(
                f"size mismatch of {name}: {list(saved.shape)} in the file, {list(tensor.shape)} "
                "by its arguments"
            )
        if saved is None and tensor.numel():
            raise WeightsError(f"the file has no {name}")


def save_weights(path: Path, weights: Weights) -> None:
    """Write weights atomically; the suffix `.xz` selects compression.

    Equal inputs give equal bytes.
    """
    description = {name: value for name, value in vars(weights).items() if name != "state"}
    header = {"schema_version": SCHEMA_VERSION, **description}
    # Cloned, because safetensors rejects tensors that share memory. All metadata is under one key,
    # because safetensors writes several keys in an arbitrary order.
    state = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.state.items()
    }
    # Not with its `save_file`, which ignores the umask and lets only the owner read the file.
    content = save(state, metadata={"kscout": json.dumps(header)})
    with written_whole(path) as aside:
        aside.write_bytes(compressed(content) if path.suffix == SUFFIX else content)


def read_weights(path: Path, *, only_described: bool = False) -> Weights:
    """Read a file written by `save_weights`, or a fitted order; half precision becomes single."""
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
            f"{path} is not a complete safetensors file ({error}); copy or train it again"
        ) from error
    if header is None:
        raise WeightsError(
            f"{path} does not say which component it belongs to (no kscout metadata); "
            "only files written by kscout can be loaded"
        )
    described = _described(path, header)
    component = current(_TABLES[described.kind].kind, described.component)
    arguments = current_keys(component, described.arguments)
    state = {x: y.float() if y.dtype in _HALF else y for x, y in state.items()}
    return Weights(described.kind, component, arguments, state, described.extra)


def _read_plain(path: Path, only_described: bool) -> tuple[str | None, dict[str, Tensor]]:
    length = path.stat().st_size

    def first(n_bytes: int) -> bytes:
        with path.open("rb") as file:
            return file.read(n_bytes)

    # `load_file` maps the whole file into memory; the header is checked first.
    header = _header(first, length, is_complete=True)
    return header, {} if only_described else load_file(path)


def _read_compressed(path: Path, only_described: bool) -> tuple[str | None, dict[str, Tensor]]:
    if only_described:
        return _header(partial(unpacked, path), MOST_BYTES, is_complete=False), {}
    content = unpacked(path)
    header = _header(lambda n_bytes: content[:n_bytes], len(content), is_complete=True)
    return header, load(content)


def _header(first: Callable[[int], bytes], length: int, *, is_complete: bool) -> str | None:
    """Return the description of the component in a file; None if there is none."""
    (n_header,) = struct.unpack("<Q", first(8).ljust(8, b"\0"))
    header = first(8 + n_header)[8:] if n_header <= min(length, _LONGEST_HEADER) else b""
    try:
        tensors = parse_json(header)
        description = tensors.pop("__metadata__", {}).get("kscout")
        declared = 8 + n_header + max((x["data_offsets"][1] for x in tensors.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SafetensorError("its header cannot be read") from error
    if is_complete and length != declared:
        raise SafetensorError(f"it has {length} bytes and declares {declared}")
    if not isinstance(description, str | None):
        raise SafetensorError("its header cannot be read")
    return description


@final
@dataclass(frozen=True)
class _Header:
    schema_version: int
    kind: Kind
    component: str
    arguments: JsonObject
    extra: JsonObject = field(default_factory=dict)


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
            f"{path} has an invalid description of its component ({error}); save it again with "
            "kscout.policies.save or kscout.reconstruction.save"
        ) from error
    raise WeightsError(
        f"{path} has schema version {version}, this kscout reads {SCHEMA_VERSION}; "
        "use the kscout that wrote it"
    )


def described(file: Path) -> Weights | None:
    """Return the description in a weights file of kscout, without weights; None for other files."""
    is_ours = file.is_file() and is_described(file)
    return read_weights(file, only_described=True) if is_ours else None


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
