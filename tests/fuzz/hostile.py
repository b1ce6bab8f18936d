"""Hostile inputs: weights that ask for much, outputs that are no files, and endless inputs."""

import os
import random
import socket
import stat
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch

from fuzz.commands import (
    CAMPAIGN,
    ENTROPY,
    EVALUATE,
    EXPORT,
    JOINT,
    MAKE,
    MASKS,
    ORDER,
    PULSEQ,
    RANDOM,
    SERVE,
    SHOW,
    STATUS,
    TRAIN,
    UNET,
)
from kscout.weights import Weights, save_weights

_BIG = [2**21, 10**9, 10**12, 2**62, -(10**12), 10**300]
_COMPONENTS: dict[str, dict[str, Any]] = {
    "fixed": {"n_cols": 16, "order": [3]},
    "center-out": {"n_cols": 16},
    "variable-density": {"n_cols": 16, "power": 2.0},
    "density": {"n_cols": 16},
    "conv": {"n_cols": 16, "n_rows": 16, "n_channels": 2, "n_blocks": 2, "n_hidden": 4},
    "column": {"n_cols": 16, "n_initial": 2, "horizon": 3, "n_layers": 1},
    "posterior": {"n_channels": 2, "n_pools": 1, "n_draws": 2, "n_best": 2},
    "equispaced-two": {"n_cols": 16, "n_initial": 2, "horizon": 3},
    "alphazero": {"n_cols": 16, "n_rows": 16, "n_channels": 2, "n_blocks": 2, "n_hidden": 4},
    "ensemble": {"members": [], "horizon": 1, "order": [1], "order_cols": 16},
    "unet": {"n_channels": 2, "n_pools": 1},
    "varnet": {"n_cascades": 1, "n_channels": 2, "n_pools": 1, "sensitivity_channels": 2},
    "total-variation": {"weight": 0.01, "n_iterations": 3},
}
_FIXED = {"component": "fixed", "arguments": _COMPONENTS["fixed"], "gain_units": [1.0]}

Built = tuple[str, list[str], bool]
"""What is bad, the command, and whether it must fail."""


def arguments(draw: random.Random, folder: Path) -> Built:
    """A weights file of a few hundred bytes whose arguments ask for much, or name files."""
    os.mkfifo(folder / "fifo")
    name = draw.choice(list(_COMPONENTS))
    given: dict[str, Any] = {**_COMPONENTS[name]}
    if name == "ensemble":
        file = draw.choice(("fifo", "/etc/passwd", "/dev/zero"))
        nested = {"component": "ensemble", "arguments": {"members": [file, file]}}
        bomb = {**_FIXED, "arguments": {"n_cols": draw.choice(_BIG), "order": []}}
        member = draw.choice((file, {**nested, "gain_units": [1.0]}, bomb, _FIXED))
        given["members"] = [member] * draw.choice((2, 2, 10_000))
    key = draw.choice(list(given))
    if name != "ensemble" or member is _FIXED:
        ways = [draw.choice(_BIG), [1] * 10**5, [*range(10**5)], [[[[[[[[[1]]]]]]]]], 10**6, "x"]
        given[key] = draw.choice(ways)
    kind: Any = "reconstructor" if name in ("unet", "varnet", "total-variation") else "policy"
    save_weights(folder / "w.safetensors", Weights(kind, name, given, {"a": torch.ones(2)}))
    words = [*(EVALUATE if kind == "policy" else RANDOM), f"--{kind}", "w.safetensors"]
    return f"{name}.{key} = {str(given[key])[:30]}", words, name != "total-variation"


def outputs(draw: random.Random, folder: Path) -> Built:
    """An output that is a link, a device or a FIFO, or the folder of something else."""
    (folder / "precious").write_text("kept")
    words, suffix = draw.choice(_OUTPUTS)
    way = draw.choice([*_PLACES, "precious/x", *(() if suffix else ("store", "greedy"))])
    out = f"out{suffix}" if way in _PLACES else way
    if way in _PLACES:
        _PLACES[way](folder / out)
    return f"{' '.join(words[:2])} to {way}", [*words, out], bool(suffix) or way != "folder"


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "x").touch()


def _device(path: Path) -> None:
    """Make what takes nothing; the system's own one is at risk of what only root may do."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    except PermissionError:
        path.symlink_to("/dev/full")


def _link_to_device(path: Path) -> None:
    _device(path.with_name("device"))
    path.symlink_to("device")


def _socket(path: Path) -> None:
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)


_PLACES: dict[str, Callable[[Path], None]] = {
    "link": lambda path: path.symlink_to("precious"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "device": _device,
    "link to a device": _link_to_device,
    "fifo": os.mkfifo,
    "folder": _folder,
    "socket": _socket,
}
_OUTPUTS: list[tuple[list[str], str]] = [
    ([*SHOW, "--out"], ".png"),
    *(
        (["report", "results", "--format", form, "-o"], f".{suffix}")
        for form, suffix in (("html", "html"), ("markdown", "md"), ("csv", "csv"), ("latex", "tex"))
    ),
    ([*ORDER, "--out"], ".csv"),
    ([*PULSEQ, "--out"], ".seq"),
    (["export", "onnx", "greedy", "--out"], ".onnx"),
    *(([*words, "--out"], "") for words in (EXPORT, TRAIN, UNET, JOINT, MAKE, ENTROPY, RANDOM)),
    *(([*words, "--out"], "") for words in (MASKS, CAMPAIGN)),
    (["report", "results", "-o", "page.html", "--figures"], ""),
    ([*SERVE, "--keep"], ""),
]
"""Commands up to what they write, and how its name ends; a folder has no suffix."""

_FOLDERS = ["tiny.toml", "tiny.toml/x", "fifo", "loop", "/dev/null", "/proc/x", "a" * 5000]
_SEEDS = ["-1", "-99999999999", "3.5", "1e400", "nan", "-inf", "x", "", str(2**63), "9" * 5000]


def endless(draw: random.Random, folder: Path) -> Built:
    """What could be followed, read or listed without end, and long work that cannot begin."""
    for name, target in (("greedy/up", folder), ("greedy/self", folder / "greedy")):
        (folder / name).symlink_to(target)
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")
    grid = (folder / "tiny.toml").read_text()
    seeds = f"seeds = [{', '.join(map(str, range(200_000)))}]"
    (folder / "seeds.toml").write_text(grid.replace("seeds = [0]", seeds))
    (folder / "deep.toml").write_text(f"a = {'[' * 5000}{']' * 5000}")
    choices: list[tuple[list[str], bool]] = [
        (["report", "greedy", "-o", "page.html"], False),
        *((["replay", name, "--to", "127.0.0.1:1"], True) for name in ("fifo", "/dev/zero")),
        *(([*STATUS[:2], name], True) for name in ("fifo", "seeds.toml", "deep.toml")),
        (["report", "fifo", "-o", "page.html"], True),
        ([*EVALUATE, "--policy", "fifo"], True),
        (["campaign", "run", "tiny.toml", "--slurm", "partition=x"], True),
        *((["demo", f"--out={value}"], True) for value in _FOLDERS),
        *((["demo", "--out", "new", f"--seed={value}"], True) for value in _SEEDS),
    ]
    words, must_fail = draw.choice(choices)
    return f"{words[-1][:30]!r}", words, must_fail


HOSTILE: dict[str, Callable[[random.Random, Path], Built]] = {
    "arguments": arguments,
    "outputs": outputs,
    "endless": endless,
}
