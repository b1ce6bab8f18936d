"""Bad values for options and settings, chosen by what each takes."""

import os
import random
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import typer

from fuzz.damage import NUMBERS, WORDS

LONG = {"--epochs", "--updates", "--checkpoints", "--watch", "--use", "--help", "--version"}
LONG |= {"--scheduler", "--slurm"}
"""Options that ask for long work or another machine, which is no fault, or for none."""
LONG_SETTINGS = {"n_checkpoints", "n_epochs", "n_updates"}
_MOST_EPOCHS = 2


@cache
def options_of(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the flag of every option of a command that takes a value, and the name of its type."""
    from kscout.apps.cli import app

    command: Any = typer.main.get_command(app)
    for word in words:
        if not hasattr(command, "commands") or word not in command.commands:
            break
        command = command.commands[word]
    return sorted(
        (max(option.opts, key=len), str(option.bare_type()))
        for option in command.params
        if option.param_type_name == "option" and not option.is_flag
    )


def bad_option(draw: random.Random, words: Sequence[str], folder: Path) -> tuple[list[str], str]:
    """Return a command with a bad value for one of its options, or of its arguments."""
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    # Of a campaign they are processes, which the stand-in for its trainings does not reach.
    left_out = LONG | ({"--workers"} if words[0] == "campaign" else set())
    known = [pair for pair in options_of(tuple(words[:2])) if pair[0] not in left_out]
    places = [i for i, word in enumerate(words) if i > 1 and _is_argument(words, i)]
    if places and draw.random() < 0.2:
        value = draw.choice(WORDS)
        changed = list(words)
        changed[draw.choice(places)] = value
        return changed, f"{' '.join(words[:2])} {value[:20]!r}"
    if not known:
        value = draw.choice(WORDS)
        return [*words, value], f"{' '.join(words[:2])} and {value[:20]!r}"
    flag, kind = draw.choice(known)
    is_number = "int" in kind or "float" in kind
    value = draw.choice(NUMBERS if is_number and draw.random() < 0.8 else WORDS)
    return [*words, flag, value], f"{' '.join(words[:2])} {flag} {value[:20]!r}"


def _is_argument(words: Sequence[str], index: int) -> bool:
    return not words[index].startswith("-") and not words[index - 1].startswith("-")


def bad_setting(draw: random.Random, kind: str) -> tuple[str, str]:
    """Return a `section.key=value` of a run, and the same in short."""
    section, names = draw.choice(_settings(kind))
    name = draw.choice(names)
    value = draw.choice(
        [*NUMBERS, *NUMBERS, *WORDS, "[]", "[-1]", "[1e400]", "true", '"x"', "[[1]]"]
    )
    if name in LONG_SETTINGS and value.lstrip("-").isdigit():
        value = str(min(int(value[:9]), _MOST_EPOCHS))
    return f"{section}.{name}={value}", f"{section}.{name}={value[:20]!r}"


@cache
def _settings(kind: str) -> list[tuple[str, list[str]]]:
    from kscout.config import RECONSTRUCTOR_TRAININGS
    from kscout.config.methods import settings_class
    from kscout.config.schema import AcquisitionSetting
    from kscout.config.training import DenseTraining, NonGreedyTraining
    from kscout.names import SAMPLERS

    def names(record: Any) -> list[str]:
        return [item.name for item in fields(record)]

    if kind == "joint":
        return [
            ("training", names(settings_class("dense", SAMPLERS))),
            ("reconstructor", ["n_channels", "n_pools", "dropout", "name", "x"]),
            ("policy", ["n_channels", "n_hidden", "name", "x"]),
            ("acquisition", names(AcquisitionSetting)),
        ]
    if kind == "reconstructor":
        network = ["n_channels", "n_pools", "dropout", "name", "norm", "x"]
        return [
            ("training", names(RECONSTRUCTOR_TRAININGS["paper-unet"])),
            ("reconstructor", network),
            ("x", ["y"]),
        ]
    training = sorted({*names(NonGreedyTraining), *names(DenseTraining)})
    network = ["n_channels", "n_hidden", "n_blocks", "dropout", "name", "x"]
    return [
        ("training", training),
        ("policy", network),
        ("acquisition", names(AcquisitionSetting)),
        ("kind", ["y"]),
    ]
