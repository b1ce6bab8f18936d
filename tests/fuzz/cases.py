"""The cases: case k of seed s is always the same bytes and the same command."""

import os
import random
import shutil
import tomllib
from collections.abc import Callable, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, final

import numpy as np
import typer

from coil_data import coil_store
from fuzz.commands import (
    CAMPAIGN,
    CURVES,
    ENTROPY,
    EVALUATE,
    EXPORT,
    FINISHED,
    GREEDY,
    IMPORT,
    INFO,
    JOINT,
    MAKE,
    MASKS,
    ORDER,
    PULSEQ,
    RANDOM,
    REPORT,
    RESUME,
    SERVE,
    SHOW,
    STATUS,
    TRAIN,
    UNET,
)
from fuzz.damage import NUMBERS, WORDS, damage_bytes, damage_file, misplace
from fuzz.hostile import HOSTILE
from fuzz.volumes import AXES, IMAGES, RAW, kspace, stack, write_bart
from kscout.data import ImportSettings, import_folder
from kscout.data.store import unfinished_path

ARTIFACTS = Path(__file__).parent / "artifacts"
"""Valid folders of every kind, tiny, and the same bytes on every machine."""
CHECKPOINTS = ARTIFACTS.parents[1] / "golden" / "checkpoints"
_PICKLES = ("recon_4ch.pt", "policy_4ch_r64_data_parallel.pt")


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


def case(seed: int, number: int, folder: Path) -> Case:
    """Build a case in an empty folder."""
    draw = random.Random(f"{seed}/{number}")
    kind = list(KINDS)[number % len(KINDS)]
    copy_artifacts(folder)
    return Case(kind, *KINDS[kind](draw, folder))


def copy_artifacts(folder: Path) -> None:
    """Copy all valid folders, with three volumes to import."""
    shutil.copytree(ARTIFACTS, folder, dirs_exist_ok=True)
    for name in _PICKLES:
        shutil.copy(CHECKPOINTS / name, folder)
    (folder / "volumes").mkdir()
    for number in (1, 2, 3):
        np.save(folder / "volumes" / f"good{number}.npy", stack(number))


def _of_reports(*folders: str) -> list[list[str]]:
    forms = {"markdown": "md", "csv": "csv", "latex": "tex", "html": "html"}
    return [
        ["report", *folders, "-o", f"page.{suffix}", "--format", form]
        for form, suffix in forms.items()
    ]


_NETWORK = ["--reconstructor", "./unet"]
_FILES: dict[str, tuple[list[str], list[list[str]]]] = {
    "store": (
        ["store/manifest.json", "store/manifest.json", "store/test_16x16.npy"],
        [INFO, [*INFO, "--verify", "--json"], SHOW, RANDOM, [*EVALUATE, "--policy", "fixed"]],
    ),
    "run": (
        [f"greedy/{name}" for name in ("config.toml", "provenance.json", "*.jsonl", "done.json")],
        [REPORT, CURVES, [*GREEDY, "--policy", "random"], FINISHED],
    ),
    "interrupted run": (
        [
            *(
                "interrupted/*.toml",
                "interrupted/*.json",
                "interrupted/*.jsonl",
                "unet/config.toml",
            ),
            *("interrupted/best.safetensors", *["interrupted/checkpoint.pt"] * 3),
        ],
        [RESUME],
    ),
    "policy weights": (
        ["greedy/weights.safetensors"],
        [GREEDY, [*EVALUATE, "--policy", "x=greedy/weights.safetensors"], ENTROPY],
    ),
    "reconstructor weights": (
        ["unet/weights.safetensors"],
        [[*RANDOM, *_NETWORK], TRAIN, EXPORT, [*JOINT, *_NETWORK]],
    ),
    "policy pickle": ([_PICKLES[1]], [[*EVALUATE, "--policy", _PICKLES[1]]]),
    "reconstructor pickle": ([_PICKLES[0]], [[*RANDOM, "--reconstructor", _PICKLES[0]]]),
    "results": (
        [*["results/summary.json"] * 4, "results/results.csv", "analyses/*.json"],
        [*_of_reports("results", "analyses"), MASKS],
    ),
    "finished evaluation": (
        ["results/summary.json", "results/results.csv"],
        [
            [*EVALUATE, *_NETWORK, "--out", "results"]
            + [
                word
                for name in ("random", "fixed", "na-oracle", "oracle", "greedy", "ngreedy")
                for word in ("--policy", name)
            ]
        ],
    ),
    "finished analysis": (
        ["analyses/curves.*"],
        [["analyze", "curves", "greedy", "ngreedy", "--out", "analyses"]],
    ),
    "campaign": (
        ["tiny.toml", "campaigns/**/*.json"],
        [STATUS, [*STATUS, "--json"], ["report", "campaigns/tiny", "-o", "page.html"], CAMPAIGN],
    ),
    "settings of a policy": (["greedy/config.toml"], [[*TRAIN, "--config", "greedy/config.toml"]]),
    "settings of a reconstructor": (
        ["unet/config.toml"],
        [[*UNET, "--config", "unet/config.toml"]],
    ),
    "exports": (
        ["store/manifest.json", "unet/weights.safetensors"],
        [EXPORT, [*EXPORT, "--format", "dicom"]],
    ),
}
"""Files of which one is damaged, and commands that read it."""

Built = tuple[Any, ...]
"""What is bad, the command, and further fields of a case."""


def _damaged(name: str, draw: random.Random, folder: Path) -> Built:
    files, commands = _FILES[name]
    path = draw.choice(sorted(folder.glob(draw.choice(files))))
    return damage_file(draw, path), draw.choice(commands)


def _images(name: str, draw: random.Random, folder: Path) -> Built:
    what = _bad_volume(draw, folder / "volumes" / name, IMAGES[name])
    return what, *_import(draw, IMPORT)


def _raw(name: str, draw: random.Random, folder: Path) -> Built:
    volumes = folder / "measured"
    volumes.mkdir()
    words = ["data", "import", "measured", "--out", "imported", "--raw"]
    for seed in (1, 2, 3):
        if name == "bad.mat":
            np.save(volumes / f"good{seed}.npy", kspace(seed))
        else:
            write_bart(volumes / f"good{seed}.cfl", kspace(seed))
    words += ["--axes", AXES] if name == "bad.mat" else []
    what = _bad_volume(draw, volumes / name, RAW[name])
    words += draw.choice(([], [], ["--crop", "8x11"], ["--resize", "30"], ["--prospective"]))
    return what, *_import(draw, words)


def _bad_volume(draw: random.Random, path: Path, write: Callable[[Path], object]) -> str:
    write(path)
    return (damage_bytes if draw.random() < 0.8 else misplace)(draw, path)


def _import(draw: random.Random, words: list[str]) -> tuple[list[str], bool]:
    skips = draw.random() < 0.6
    return ([*words, "--skip-bad"] if skips else words), skips


def _lists(draw: random.Random, folder: Path) -> Built:
    """Files that name the volumes of each split."""
    (folder / "lists").mkdir()
    for number, split in enumerate(("train", "val", "test"), start=1):
        (folder / "lists" / f"{split}.txt").write_text(f"good{number}.npy\n")
    path = draw.choice(sorted((folder / "lists").iterdir()))
    return damage_file(draw, path), [*IMPORT, "--splits", "lists"]


def _journal(draw: random.Random, folder: Path) -> Built:
    """A store whose import was interrupted after its second volume, and was damaged since."""

    def stop(done: int, total: int, name: str) -> None:
        if done == 2:
            raise InterruptedError

    with chdir(folder), suppress(InterruptedError):
        import_folder(Path("volumes"), Path("imported"), ImportSettings(size=16), stop)
    hidden = folder / unfinished_path(Path("imported"))
    return damage_file(draw, draw.choice(sorted(hidden.iterdir()))), IMPORT


def _kspace_store(draw: random.Random, folder: Path) -> Built:
    store = coil_store(folder / "coils", n_coils=3, size=(10, 12), noise=0.01)
    file = draw.choice(("manifest.json", "manifest.json", "test_10x12.npy"))
    commands = [
        ["data", "info", "coils", "--json"],
        ["data", "show", "coils", "--split", "test", "--coils", "--out", "montage.png"],
        [*RANDOM, "--data", "coils", "--protocol", "blind"],
    ]
    return damage_file(draw, store.path / file), draw.choice(commands)


_LONG = {"--epochs", "--updates", "--checkpoints", "--watch", "--use", "--help", "--version"}
_LONG |= {"--scheduler", "--slurm"}
"""Options that ask for long work or another machine, which is no fault, or for none."""
_LONG_SETTINGS = {"n_epochs": "2", "n_checkpoints": "2", "n_updates": "2"}
_REPLAY = ["replay", "volumes/good1.npy", "--to", "127.0.0.1:1"]
_TAKE_OPTIONS = [
    *(IMPORT, MAKE, TRAIN, UNET, JOINT, RANDOM, SERVE, _REPLAY, INFO, SHOW, REPORT, STATUS),
    *(CAMPAIGN, CURVES, MASKS, ORDER, PULSEQ, EXPORT),
]


@cache
def options_of(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the flag of every option of a command that takes a value, and the name of its type."""
    from kscout.apps.cli import app

    command: Any = typer.main.get_command(app)
    for word in words:
        if word not in getattr(command, "commands", ()):
            break
        command = command.commands[word]
    return sorted(
        (max(option.opts, key=len), str(option.bare_type()))
        for option in command.params
        if option.param_type_name == "option" and not option.is_flag
    )


def _options(draw: random.Random, folder: Path) -> Built:
    """A command with a bad value for one of its options, or of its arguments."""
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    words: Sequence[str] = draw.choice(_TAKE_OPTIONS)
    # Of a campaign they are processes, which the stand-in for its trainings does not reach.
    left_out = _LONG | ({"--workers"} if words[0] == "campaign" else set())
    known = [pair for pair in options_of(tuple(words[:2])) if pair[0] not in left_out]
    places = [
        i for i in range(2, len(words)) if not words[i].startswith("-") and words[i - 1][0] != "-"
    ]
    if not known or (places and draw.random() < 0.2):
        place, value = draw.choice(places or [len(words)]), draw.choice(WORDS)
        return (
            f"{' '.join(words[:2])} {value[:20]!r}",
            [*words[:place], value, *words[place + 1 :]],
        )
    flag, kind = draw.choice(known)
    is_number = "int" in kind or "float" in kind
    value = draw.choice(NUMBERS if is_number and draw.random() < 0.8 else WORDS)
    return f"{' '.join(words[:2])} {flag} {value[:20]!r}", [*words, flag, value]


def _settings(draw: random.Random, folder: Path) -> Built:
    """A command with a bad value for one of the settings that its run records."""
    words, name = draw.choice(((TRAIN, "greedy"), (UNET, "unet"), (JOINT, "greedy")))
    config = tomllib.loads((folder / name / "config.toml").read_text())
    section = draw.choice([key for key in config if isinstance(config[key], dict)])
    key = draw.choice([*config[section], "dropout", "x"])
    value = draw.choice(
        [*NUMBERS, *NUMBERS, *WORDS, "[]", "[-1]", "[1e400]", "true", '"x"', "[[1]]"]
    )
    if value.lstrip("-").isdigit() and int(value[:9]) > 2:
        value = _LONG_SETTINGS.get(key, value)
    return f"{section}.{key}={value[:20]!r}", [*words, "--set", f"{section}.{key}={value}"]


def _hostile(name: str, draw: random.Random, folder: Path) -> Built:
    what, words, must_fail = HOSTILE[name](draw, folder)
    return what, words, False, must_fail


KINDS: dict[str, Callable[[random.Random, Path], Built]] = {
    **{name: partial(_images, name) for name in IMAGES},
    **{f"raw {name}": partial(_raw, name) for name in RAW},
    **{name: partial(_damaged, name) for name in _FILES},
    "lists": _lists,
    "journal": _journal,
    "kspace store": _kspace_store,
    "settings": _settings,
    "options": _options,
    "more options": _options,
    **{name: partial(_hostile, name) for name in HOSTILE},
}
