"""The cases: case k of seed s is always the same bytes and the same command."""

import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from coil_data import coil_store
from fuzz import long_commands
from fuzz.commands import ENTROPY, EVALUATE, FINISHED, IMPORT, MAKE, RESUME, TRAIN, UNET
from fuzz.damage import damage_bytes, damage_file, damage_header, misplace
from fuzz.hostile import HOSTILE, environment
from fuzz.options import bad_option, bad_setting
from fuzz.programs import program
from fuzz.raw_volumes import AXES, RAW_FORMATS, good_kspace
from fuzz.service import ATTACKS, SERVE
from fuzz.volumes import FORMATS, numpy_stack, stack

ARTIFACTS = Path(__file__).parent / "artifacts"
"""Valid folders of every kind, tiny, and the same bytes on every machine."""


@final
@dataclass(frozen=True)
class Case:
    """A folder with something bad in it, or a command with something bad in it."""

    kind: str
    what: str
    """What is bad, in a few words."""
    words: list[str]
    must_succeed: bool = False
    """The rest of the input is good, and was to be used without the bad."""
    must_fail: bool = False
    """The input is bad, and a success would be untrue."""
    environment: tuple[tuple[str, str], ...] = ()
    attack: tuple[str, int] = ("", 0)
    """What a client does to the service, and its seed."""
    is_program: bool = False
    """Runs as a program of its own, which is not forked from this one and starts others."""
    stdout: str = ""
    """Where a program prints to: /dev/full, a pipe that nobody reads, or closed."""


def case(seed: int, number: int, folder: Path) -> Case:
    """Build a case in an empty folder."""
    draw = random.Random(f"{seed}/{number}")
    kinds = list(KINDS)
    return KINDS[kinds[number % len(kinds)]](draw, folder)


def _copy(folder: Path, *names: str) -> None:
    for name in names:
        source = ARTIFACTS / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)


def _volumes(folder: Path) -> Path:
    volumes = folder / "volumes"
    volumes.mkdir()
    for number in (1, 2, 3):
        np.save(volumes / f"good{number}.npy", stack(number))
    return volumes


def _import(name: str) -> Callable[[random.Random, Path], Case]:
    def build(draw: random.Random, folder: Path) -> Case:
        volumes = _volumes(folder)
        what = FORMATS[name](draw, volumes)
        skips = draw.random() < 0.6
        words = [*IMPORT, "--skip-bad"] if skips else IMPORT
        return Case(name, what, words, must_succeed=skips)

    return build


def _import_raw(name: str) -> Callable[[random.Random, Path], Case]:
    def build(draw: random.Random, folder: Path) -> Case:
        spoil, suffix = RAW_FORMATS[name]
        (folder / "volumes").mkdir()
        good_kspace(folder / "volumes", suffix)
        what = spoil(draw, folder / "volumes")
        words = ["data", "import", "volumes", "--out", "imported", "--raw"]
        words += ["--axes", AXES] if suffix == ".npy" else []
        skips = draw.random() < 0.6
        words += draw.choice(([], [], ["--crop", "8x11"], ["--resize", "30"], ["--prospective"]))
        return Case(name, what, [*words, "--skip-bad"] if skips else words, must_succeed=skips)

    return build


def _lists(draw: random.Random, folder: Path) -> Case:
    """Files that name the volumes of each split, and presets on volumes that they do not suit."""
    _volumes(folder)
    lists = folder / "lists"
    lists.mkdir()
    for number, split in enumerate(("train", "val", "test"), start=1):
        (lists / f"{split}.txt").write_text(f"good{number}.npy\n")
    what = damage_file(draw, lists / draw.choice(("train.txt", "val.txt", "test.txt")))
    return Case("lists", what, [*IMPORT, "--splits", "lists"])


def _journal(draw: random.Random, folder: Path) -> Case:
    """A store whose making was interrupted, and whose journal or pixels were damaged since."""
    _volumes(folder)
    from fuzz.unfinished import leave_unfinished

    hidden = leave_unfinished(folder, IMPORT)
    what = damage_file(draw, draw.choice(sorted(hidden.iterdir())))
    return Case("journal", what, IMPORT)


def _store(draw: random.Random, folder: Path) -> Case:
    _copy(folder, "store")
    if draw.random() < 0.65:
        what = damage_file(draw, folder / "store" / "manifest.json")
    else:
        path = folder / "store" / "test_16x16.npy"
        if draw.random() < 0.5:
            what = numpy_stack(draw, folder)
            path.unlink()
            if os.path.lexists(bad := folder / "bad.npy"):
                bad.rename(path)
        else:
            what = damage_file(draw, path)
    command = draw.choice(
        [
            ["data", "info", "store"],
            ["data", "info", "store", "--verify", "--json"],
            ["data", "show", "store", "--split", "test", "--out", "montage.png"],
            [*EVALUATE, "--policy", "random"],
            [*EVALUATE, "--policy", "fixed"],
        ]
    )
    return Case("store", what, command)


def _kspace_store(draw: random.Random, folder: Path) -> Case:
    store = coil_store(folder / "coils", n_coils=3, size=(10, 12), noise=0.01)
    file = draw.choice(("manifest.json", "manifest.json", "test_10x12.npy"))
    what = damage_file(draw, store.path / file)
    command = draw.choice(
        [
            ["data", "info", "coils", "--json"],
            ["data", "show", "coils", "--split", "test", "--coils", "--out", "montage.png"],
            [*EVALUATE, "--data", "coils", "--policy", "random", "--protocol", "blind"],
        ]
    )
    return Case("kspace store", what, command)


def _run(draw: random.Random, folder: Path) -> Case:
    _copy(folder, "store", "unet", "greedy", "interrupted")
    file, command = draw.choice(_RUN_FILES)
    return Case("run", damage_file(draw, folder / file), command)


_READ_RUN = [
    ["report", "greedy", "-o", "page.html"],
    ["analyze", "curves", "greedy", "--out", "analyzed"],
    [*EVALUATE, "--policy", "greedy", "--policy", "random"],
    FINISHED,
]
_RUN_FILES: list[tuple[str, list[str]]] = [
    *((f"interrupted/{name}", RESUME) for name in ("config.toml", "provenance.json")),
    *((f"interrupted/{name}", RESUME) for name in ("metrics.jsonl", "best.safetensors")),
    *[("interrupted/checkpoint.pt", RESUME)] * 3,
    *(
        (f"greedy/{name}", words)
        for name in ("config.toml", "provenance.json")
        for words in _READ_RUN
    ),
    *((f"greedy/{name}", words) for name in ("metrics.jsonl", "done.json") for words in _READ_RUN),
    *((f"unet/{name}", RESUME) for name in ("config.toml", "weights.safetensors")),
]


def _weights(draw: random.Random, folder: Path) -> Case:
    _copy(folder, "store", "unet", "greedy")
    name = draw.choice(("unet", "greedy"))
    path = folder / name / "weights.safetensors"
    if draw.random() < 0.75:
        what = damage_header(draw, path)
    else:
        what = (damage_bytes if draw.random() < 0.7 else misplace)(draw, path)
    commands = {
        "unet": [
            [*EVALUATE, "--policy", "random", "--reconstructor", "./unet"],
            [*EVALUATE, "--policy", "random", "--reconstructor", "unet/weights.safetensors"],
            TRAIN,
        ],
        "greedy": [
            [*EVALUATE, "--policy", "greedy"],
            [*EVALUATE, "--policy", "x=greedy/weights.safetensors"],
            ENTROPY,
        ],
    }
    return Case("weights", f"{name}: {what}", draw.choice(commands[name]))


def _pickle(draw: random.Random, folder: Path) -> Case:
    _copy(folder, "store")
    golden = ARTIFACTS.parents[1] / "golden" / "checkpoints"
    name = draw.choice(("recon_4ch.pt", "policy_4ch_r64_data_parallel.pt"))
    path = Path(shutil.copy(golden / name, folder / "model.pt"))
    what = (damage_bytes if draw.random() < 0.85 else misplace)(draw, path)
    if name.startswith("recon"):
        words = [*EVALUATE, "--policy", "random", "--reconstructor", "model.pt"]
    else:
        words = [*EVALUATE, "--policy", "model.pt"]
    return Case("pickle", f"{name}: {what}", words)


def _results(draw: random.Random, folder: Path) -> Case:
    _copy(folder, "results", "analyses")
    file = draw.choice(
        [*["results/summary.json"] * 4, "results/results.csv"]
        + [f"analyses/{name}.json" for name in ("cost", "curves", "entropies", "ranking")]
        + [f"analyses/{name}.settings.json" for name in ("curves", "ranking")]
    )
    what = damage_file(draw, folder / file)
    words = draw.choice(
        [
            ["report", "results", "analyses", "-o", "page.html"],
            ["report", "results", "analyses", "-o", "page.md", "--format", "markdown"],
            ["report", "results", "analyses", "-o", "page.csv", "--format", "csv"],
            ["report", "results", "analyses", "-o", "page.tex", "--format", "latex"],
            ["analyze", "ranking", "results", "--out", "analyses"],
        ]
    )
    return Case("results", what, words)


def _again(draw: random.Random, folder: Path) -> Case:
    """A finished evaluation or analysis, damaged, that is asked for again."""
    _copy(folder, "results", "analyses", "store", "unet", "greedy", "ngreedy")
    if draw.random() < 0.5:
        what = damage_file(draw, folder / "results" / draw.choice(("summary.json", "results.csv")))
        words = [*EVALUATE, "--reconstructor", "./unet", "--out", "results"]
        for name in ("random", "fixed", "na-oracle", "oracle", "greedy", "ngreedy"):
            words += ["--policy", name]
    else:
        name = draw.choice(("curves.json", "curves.settings.json", "curves.csv"))
        what = damage_file(draw, folder / "analyses" / name)
        words = ["analyze", "curves", "greedy", "ngreedy", "--out", "analyses"]
    return Case("again", what, words)


def _campaign(draw: random.Random, folder: Path) -> Case:
    _copy(folder, "tiny.toml", "campaigns", "store")
    if draw.random() < 0.6:
        what = damage_file(draw, folder / "tiny.toml")
    else:
        states = sorted((folder / "campaigns").rglob("*.json"))
        what = damage_file(draw, draw.choice(states))
    words = draw.choice(
        [
            ["campaign", "status", "tiny.toml"],
            ["campaign", "status", "tiny.toml", "--json"],
            ["report", "campaigns/tiny", "-o", "page.html"],
        ]
    )
    return Case("campaign", what, words)


def _settings(draw: random.Random, folder: Path) -> Case:
    _copy(folder, "store", "unet")
    words: Sequence[str] = draw.choice((TRAIN, UNET))
    named, what = bad_setting(draw, "policy" if words is TRAIN else "reconstructor")
    if draw.random() < 0.4:
        key, _, value = named.partition("=")
        section, _, name = key.partition(".")
        (folder / "own.toml").write_text(f"[{section}]\n{name} = {value}\n", errors="replace")
        return Case("settings", f"file {what}", [*words, "--config", "own.toml"])
    return Case("settings", what, [*words, "--set", named])


def _file_of_settings(draw: random.Random, folder: Path) -> Case:
    _copy(folder, "store", "unet")
    kind = draw.choice(("unet", "greedy"))
    path = folder / "own.toml"
    shutil.copy(ARTIFACTS / kind / "config.toml", path)
    what = damage_file(draw, path)
    return Case("toml", what, [*(UNET if kind == "unet" else TRAIN), "--config", "own.toml"])


def _options(draw: random.Random, folder: Path) -> Case:
    _copy(folder, "store", "unet", "greedy", "results", "tiny.toml")
    _volumes(folder)
    valid = [
        *(IMPORT, MAKE, TRAIN, UNET, [*EVALUATE, "--policy", "random"]),
        SERVE,
        ["replay", "volumes/good1.npy", "--to", "127.0.0.1:1"],
        ["data", "info", "store"],
        ["data", "show", "store", "--out", "montage.png"],
        ["report", "results", "-o", "page.html"],
        ["campaign", "status", "tiny.toml"],
        ["analyze", "curves", "greedy", "--out", "analyzed"],
        ["analyze", "ranking", "results", "--out", "analyzed"],
    ]
    words, what = bad_option(draw, draw.choice(valid), folder)
    return Case("options", what, words)


def _long(name: str) -> Callable[[random.Random, Path], Case]:
    def build(draw: random.Random, folder: Path) -> Case:
        _copy(folder, "store", "unet", "tiny.toml", "campaigns")
        return Case(name, *long_commands.LONG[name](draw, folder))

    return build


def _exports(draw: random.Random, folder: Path) -> Case:
    _copy(folder, "store", "unet", "greedy", "results")
    order = ["--n-cols", "16", "--n-initial", "3", "--steps", "4", "--fov-mm", "220"]
    network = ["--reconstructor", "./unet", "--device", "cpu", "--out", "images"]
    valid = [
        ["export", "order", "center-out", *order, "--out", "order.csv"],
        ["export", "pulseq", "center-out", *order, "--n-rows", "16", "--out", "scan.seq"],
        *(["data", "export", "store", *network, "--format", x] for x in ("nifti", "dicom")),
    ]
    words = draw.choice(valid)
    if words[0] == "data" and draw.random() < 0.5:
        file = draw.choice(("store/manifest.json", "unet/weights.safetensors"))
        return Case("exports", damage_file(draw, folder / file), words)
    words, what = bad_option(draw, words, folder)
    return Case("exports", what, words)


def _hostile(name: str) -> Callable[[random.Random, Path], Case]:
    def build(draw: random.Random, folder: Path) -> Case:
        _copy(folder, "store", "unet", "greedy", "interrupted", "results", "tiny.toml")
        what, words, must_fail = HOSTILE[name](draw, folder)
        return Case(name, what, words, must_fail=must_fail)

    return build


def _environment(draw: random.Random, folder: Path) -> Case:
    _copy(folder, "store", "unet", "greedy", "results", "tiny.toml")
    variable, words = environment(draw)
    return Case("environment", "=".join(variable)[:40], words, environment=(variable,))


def _program(draw: random.Random, folder: Path) -> Case:
    _copy(folder, "store", "unet", "greedy", "results", "tiny.toml")
    what, words, fields = program(draw, folder)
    return Case("program", what, words, is_program=True, **fields)


def _service(draw: random.Random, folder: Path) -> Case:
    name = draw.choice(list(ATTACKS))
    words, variables, _ = ATTACKS[name]
    attack = name, draw.randrange(2**31)
    return Case("service", name, [*SERVE, *words], environment=variables, attack=attack)


KINDS: dict[str, Callable[[random.Random, Path], Case]] = {
    **{name: _import(name) for name in FORMATS},
    "lists": _lists,
    "journal": _journal,
    "store": _store,
    "run": _run,
    "weights": _weights,
    "pickle": _pickle,
    "results": _results,
    "again": _again,
    "campaign": _campaign,
    "settings": _settings,
    "toml": _file_of_settings,
    "options": _options,
    "more options": _options,
    **{name: _import_raw(name) for name in RAW_FORMATS},
    "kspace store": _kspace_store,
    **{name: _long(name) for name in long_commands.LONG},
    "exports": _exports,
    **{name: _hostile(name) for name in HOSTILE},
    "environment": _environment,
    "program": _program,
    "service": _service,
}
