"""Hostile inputs: bombs, links, damage behind a valid start, and bad input that looks good."""

import json
import os
import random
import socket
import stat
import zlib
from collections.abc import Callable
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import pydicom
import torch
from PIL import Image
from pydicom.encaps import encapsulate

from dicom_files import write_dicom
from fuzz.commands import ENTROPY, EVALUATE, IMPORT, MAKE, RESUME, TRAIN, UNET
from fuzz.damage import damage_bytes, flipped
from fuzz.long_commands import JOINT
from fuzz.service import SERVE
from fuzz.volumes import stack
from kscout.apps.player import save_acquisition
from kscout.evaluation.analyses.examples import Example, ExampleRow, save_examples
from kscout.evaluation.analyses.masks import MaskRow
from kscout.weights import Weights, read_weights, save_weights
from synthetic_results import make_acquisition, write_run

IMAGES = [
    *("data", "export", "store", "--format", "nifti", "--reconstructor", "zero-filled"),
    *("--device", "cpu"),
]
ORDER = ["--n-cols", "16", "--n-initial", "3", "--steps", "4"]
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
    option = "--reconstructor" if kind == "reconstructor" else "--policy"
    words = [*EVALUATE, *(["--policy", "random"] if kind == "reconstructor" else [])]
    what = f"{name}.{key} = {str(given[key])[:30]}"
    return what, [*words, option, "w.safetensors"], name != "total-variation"


def outputs(draw: random.Random, folder: Path) -> Built:
    """An output that is a link, a device or a FIFO, or the folder of something else."""
    (folder / "precious").write_text("kept")
    if draw.random() < 0.2:
        out = draw.choice(("store", "greedy"))
        words = draw.choice(
            (
                [*EVALUATE, "--policy", "random", "--out", out],
                ["campaign", "run", "tiny.toml", "--workers", "0", "--out", out],
                [*IMAGES, "--out", out],
            )
        )
        return f"{words[0]} into {out}", words, True
    words, suffix = draw.choice(_OUTPUTS)
    way = draw.choice([*_PLACES, "precious/x"])
    out = way if "/" in way else f"out{suffix}"
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
_SEQUENCE = ["export", "pulseq", "center-out", *ORDER, "--n-rows", "16", "--fov-mm", "220"]
_OUTPUTS: list[tuple[list[str], str]] = [
    (["data", "show", "store", "--split", "test", "--out"], ".png"),
    (["report", "results", "-o"], ".html"),
    *(
        (["report", "results", "--format", name, "-o"], suffix)
        for name, suffix in (("markdown", ".md"), ("csv", ".csv"), ("latex", ".tex"))
    ),
    (["export", "order", "center-out", *ORDER, "--out"], ".csv"),
    ([*_SEQUENCE, "--out"], ".seq"),
    (["export", "onnx", "greedy", "--out"], ".onnx"),
    ([*IMAGES, "--out"], ""),
    (["analyze", "ranking", "results", "--out"], ""),
    *(([*words, "--out"], "") for words in (TRAIN, UNET, JOINT, MAKE, ENTROPY)),
    ([*EVALUATE, "--policy", "random", "--out"], ""),
    (["campaign", "run", "tiny.toml", "--workers", "0", "--out"], ""),
    (["report", "results", "-o", "page.html", "--figures"], ""),
    ([*SERVE, "--keep"], ""),
]
"""Commands up to what they write, and how its name ends; a folder has no suffix."""


def compressed(draw: random.Random, folder: Path) -> Built:
    """Damage behind a valid start of a compressed file, or one that unpacks without end."""
    volumes = folder / "volumes"
    volumes.mkdir()
    way = draw.choice(("flip", "cut", "bomb", "deflated", "RLE", "JPEG", "JPEG2000"))
    if way in ("flip", "cut", "bomb"):
        path = volumes / "bad.nii.gz"
        nibabel.save(nibabel.Nifti1Image(stack().transpose(), np.eye(4)), path)
        content = path.read_bytes()
        if way == "cut":
            content = content[: -draw.randrange(1, 9)]
        elif way == "bomb":
            packer = zlib.compressobj(9, wbits=31)
            raw = zlib.decompress(content, 31) + bytes(2**27)
            content = packer.compress(raw) + packer.flush()
        else:
            middle = draw.randrange(100, len(content) - 8)
            content = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        path.write_bytes(content)
        return f"gzip {way}", IMPORT, True
    path = volumes / "a" / "0.dcm"
    if way == "deflated":
        size = draw.choice(((18, 20), (8000, 8000)))
        write_dicom(path, np.ones(size), syntax="1.2.840.10008.1.2.1.99")
        return f"deflated {size}", IMPORT, size[0] > 18
    _encapsulated(path, way)
    content = path.read_bytes()
    begin = content.index(b"\xe0\x7f\x10\x00")
    path.write_bytes(content[:begin] + flipped(draw, content[begin:]))
    return f"{way} flipped", IMPORT, False


def _encapsulated(path: Path, way: str) -> None:
    values = (stack()[0] * 100).clip(0, 255).astype(np.uint8)
    write_dicom(path, values)
    data = pydicom.dcmread(path)
    data.BitsAllocated = data.BitsStored = 8
    data.HighBit, data.PixelData = 7, values.tobytes()
    if way == "RLE":
        data.compress(pydicom.uid.RLELossless)
    else:
        picture = path.with_suffix(".tmp")
        Image.fromarray(values).save(picture, way)
        data.file_meta.TransferSyntaxUID = {
            "JPEG": pydicom.uid.JPEGBaseline8Bit,
            "JPEG2000": pydicom.uid.JPEG2000Lossless,
        }[way]
        data.PixelData = encapsulate([picture.read_bytes()])
        data["PixelData"].is_undefined_length = True
        picture.unlink()
    data.save_as(path, enforce_file_format=True)


def deep(draw: random.Random, folder: Path) -> Built:
    """Texts nested too deeply, and arrays of records that are NaN or have another shape."""
    n = draw.choice((101, 5000, 200_000))
    if draw.random() < 0.4:
        text = draw.choice((f"{'a.' * n}a = 1", f"[{'a.' * n}a]", f"a = {'[' * n}{']' * n}"))
        (folder / "own.toml").write_text(text)
        words = draw.choice(([*TRAIN, "--config", "own.toml"], ["campaign", "status", "own.toml"]))
        return f"TOML {text[:4]} {n}", words, True
    if draw.random() < 0.3:
        text = draw.choice(("[" * n + "]" * n, '{"a":' * n + "1" + "}" * n))
        file = draw.choice(("results/summary.json", "store/manifest.json", "greedy/done.json"))
        (folder / file).write_text(text)
        words = draw.choice((["report", "results", "greedy", "-o", "page.html"], [*RESUME]))
        words = [*EVALUATE, "--policy", "random"] if file.startswith("store") else words
        return f"{file} {text[:2]} {n}", words, False
    name, key = _record(draw, folder / "record")
    return f"{name}.{key}", ["report", "record", "-o", "page.html"], False


def _record(draw: random.Random, folder: Path) -> tuple[str, str]:
    """Write a record of arrays with one that is bad."""
    folder.mkdir()
    name = draw.choice(("acquisition", "examples", "masks"))
    path = folder / f"{name}.npz"
    if name == "acquisition":
        save_acquisition(make_acquisition(), path)
    elif name == "examples":
        image = np.ones((9, 11), np.float32)
        example = Example("greedy", 0, "v", 3, np.arange(11) > 5, image, image, 0.9)
        save_examples(path, [example])
        row: Any = asdict(ExampleRow.of(example))
    else:
        (folder / "masks").mkdir()
        path = folder / "masks" / "a.npz"
        np.savez(path, order=np.zeros((2, 1, 7), np.int16))
        place = draw.choice(("masks/a", "../masks/a", "/etc/passwd"))
        row = asdict(MaskRow("base", "greedy", 0, 2, 1, 0.0, place))
    if name != "acquisition":
        (folder / f"{name}.json").write_text(json.dumps([row]))
        (folder / f"{name}.settings.json").write_text(json.dumps({"analysis": name}))
    arrays = dict(np.load(path))
    key = draw.choice(list(arrays))
    shape = arrays[key].shape
    values = [np.full(shape, np.nan), np.zeros(0), np.array(3), np.full((*shape, 2), 1)]
    values += [np.full(shape, 2**40), np.full(shape, -1), np.full(shape, "x\x1b[31m")]
    np.savez(path, **{**arrays, key: draw.choice(values)})
    return name, key


def endless(draw: random.Random, folder: Path) -> Built:
    """What could be followed, read or listed without end."""
    run = write_run(folder / "runs" / "a")
    for name, target in (("up", folder), ("self", run), ("loop", "loop")):
        (run / name).symlink_to(target)
    os.mkfifo(folder / "fifo")
    seeds = ", ".join(map(str, range(200_000)))
    grid = (folder / "tiny.toml").read_text()
    name = "a\\u001b[31m\\u0000"
    with h5py.File(folder / "groups.h5", "w") as file:
        for number in range(3000):
            file.create_group(f"group-{number}")
    choices: list[tuple[str, list[str], bool]] = [
        ("links", ["report", "runs", "-o", "page.html"], False),
        ("links", ["report", ".", "-o", "page.html"], False),
        ("fifo", ["replay", "fifo", "--to", "127.0.0.1:1"], True),
        ("device", ["replay", "/dev/zero", "--to", "127.0.0.1:1"], True),
        ("fifo", ["campaign", "status", "fifo"], True),
        ("fifo", ["report", "fifo", "-o", "page.html"], True),
        ("fifo", [*EVALUATE, "--policy", "fifo"], True),
        ("fifo", ["export", "order", "fifo", *ORDER, "--out", "order.csv"], True),
        ("seeds", ["campaign", "status", "own.toml"], True),
        ("name", ["campaign", "status", "own.toml"], True),
        ("groups", ["data", "import", "groups.h5", "--out", "imported"], True),
        ("groups", ["data", "import", "groups.h5", "--raw", "--out", "imported"], True),
        ("sbatch", ["campaign", "run", "tiny.toml", "--slurm", "partition=x"], True),
    ]
    what, words, must_fail = draw.choice(choices)
    if what == "seeds":
        grid = grid.replace("seeds = [0]", f"seeds = [{seeds}]")
    if what == "name":
        grid = grid.replace('name = "tiny"', f'name = "{name}"')
    (folder / "own.toml").write_text(grid)
    return f"{what}: {' '.join(words[:2])}", words, must_fail


def sequences(draw: random.Random, folder: Path) -> Built:
    """Orders and sequences that no scanner can play, or that the raster cannot represent."""
    pulseq = ["export", "pulseq", "center-out", *ORDER, "--n-rows", "16", "--out", "scan.seq"]
    order = ["export", "order", "center-out", *ORDER, "--out", "order.csv"]
    far = draw.choice(("1e300", "1e-300", "0", "-1", "nan", "inf", "99999999999"))
    choices: list[tuple[list[str], str, str]] = [
        (pulseq, "--dwell-us", draw.choice(("13", "1", "10.5", far))),
        *((pulseq, x, far) for x in ("--fov-mm", "--readout-mm", "--slice-mm", "--field-t")),
        (pulseq, "--echo-ms", draw.choice(("8.0001", far))),
        (pulseq, "--repetition-ms", draw.choice(("20.0001", far))),
        (pulseq, "--n-rows", far),
        (order, "--n-cols", draw.choice(("99999999999", "70000", "1"))),
        (order, "--fov-mm", far),
        (order, "--slice", "a:1"),
        (order, "--policy", "x"),
    ]
    words, flag, value = draw.choice(choices)
    first = [] if flag == "--fov-mm" or words is order else ["--fov-mm", "220"]
    return f"{words[1]} {flag} {value}", [*words, *first, flag, value], True


def untrue(draw: random.Random, folder: Path) -> Built:
    """What was taken for a success: NaN in weights, true for 1, broken headers."""
    way = draw.choice(("checkpoint", "weights", "true", "header"))
    if way == "checkpoint":
        path = folder / "interrupted" / "checkpoint.pt"
        content = torch.load(path, weights_only=True)
        next(x for x in content["model"].values() if x.is_floating_point()).fill_(torch.nan)
        torch.save(content, path)
        return way, RESUME, True
    if way == "weights":
        weights = read_weights(folder / "greedy" / "weights.safetensors")
        draw.choice(list(weights.state.values())).view(-1)[0] = torch.nan
        save_weights(folder / "greedy" / "weights.safetensors", weights)
        return way, [*EVALUATE, "--policy", "greedy"], True
    if way == "true":
        path = folder / "interrupted" / "config.toml"
        path.write_text(path.read_text().replace("batch_size = 4", "batch_size = true"))
        return way, [*RESUME, "--batch-size", "1"], True
    (folder / "volumes").mkdir()
    for number in range(3):
        with h5py.File(folder / "volumes" / f"{number}.h5", "w") as file:
            file["reconstruction_esc"] = stack(number)
            file["ismrmrd_header"] = "<ismrmrdHeader><encoding>"
    damage_bytes(draw, Path(folder / "tiny.toml"))
    return way, IMPORT, False


_ALWAYS_READ = [
    *("MPLBACKEND", "SOURCE_DATE_EPOCH", "WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_PORT"),
    *("KSCOUT_USE", "KSCOUT_KERNELS", "KSCOUT_TOKEN", "DASK_SCHEDULER_ADDRESS", "COLUMNS"),
    *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HOME", "TZ", "NO_COLOR", "TERM", "LANG"),
]


def environment(draw: random.Random) -> tuple[tuple[str, str], list[str]]:
    """Return a variable with a value that has no meaning, and a command."""
    value = draw.choice(("x", "", "-1", "abc,", "1e400", "/nowhere/x", "module:y", "9" * 400))
    words = draw.choice(
        (
            ["report", "results", "-o", "page.html", "--figures", "figures"],
            ["data", "show", "store", "--out", "montage.png"],
            ["campaign", "status", "tiny.toml"],
            [*EVALUATE, "--policy", "greedy"],
            TRAIN,
        )
    )
    return (draw.choice(_ALWAYS_READ), value), words


HOSTILE: dict[str, Callable[[random.Random, Path], Built]] = {
    "arguments": arguments,
    "outputs": outputs,
    "compressed": compressed,
    "deep": deep,
    "endless": endless,
    "sequences": sequences,
    "untrue": untrue,
}
