"""Bad inputs to commands that start long work: they are refused before it begins.

A campaign that may begin is run by a stand-in for its trainings; `demo` gets only what it
cannot begin with.
"""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from fuzz.damage import damage_file
from fuzz.options import bad_option, bad_setting

JOINT = [
    *("train", "joint", "--data", "store", "--out", "joined", "--method", "dense", "--policy"),
    *("conv", "--set", "policy.n_hidden=4", "--set", "policy.n_channels=2"),
    *("--set", "policy.n_blocks=2", "--n-initial", "2", "--steps", "3", "--updates", "2"),
    *("--checkpoints", "1", "--batch-size", "4", "--device", "cpu", "--set", "training.n_pool=8"),
    *("--set", "reconstructor.n_channels=2", "--set", "reconstructor.n_pools=1"),
    *("--set", "training.sampler_every=2", "--set", "training.sampler_batch=3"),
    *("--set", "training.convolution=onednn"),
]
CAMPAIGN = ["campaign", "run", "tiny.toml", "--workers", "0", "--device", "cpu", "--no-report"]
NO_SEEDS = [
    *("-1", "-99999999999", "3.5", "1e400", "nan", "-inf", "x", ""),
    *(str(2**63), str(2**64 + 1), "9" * 400, "9" * 5000),
]
NO_FOLDERS = ["tiny.toml", "tiny.toml/x", "fifo", "loop", "/dev/null", "/proc/x", "a" * 5000]


def joint(draw: random.Random, folder: Path) -> tuple[str, list[str]]:
    """Spoil an option, a setting, the store or the network to start from."""
    roll = draw.random()
    if roll < 0.4:
        words, what = bad_option(draw, JOINT, folder)
        return what, words
    if roll < 0.7:
        named, what = bad_setting(draw, "joint")
        return what, [*JOINT, "--set", named]
    file = draw.choice(("store/manifest.json", "store/train_16x16.npy", "unet/weights.safetensors"))
    start = ["--reconstructor", "./unet"] if file.startswith("unet") else []
    return damage_file(draw, folder / file), [*JOINT, *start]


def campaign(draw: random.Random, folder: Path) -> tuple[str, list[str]]:
    """Spoil the file of a campaign, what it has written, or an option."""
    roll = draw.random()
    if roll < 0.3:
        words, what = bad_option(draw, CAMPAIGN, folder)
        return what, words
    states = sorted((folder / "campaigns").rglob("*.json"))
    return damage_file(draw, folder / "tiny.toml" if roll < 0.7 else draw.choice(states)), CAMPAIGN


def demo(draw: random.Random, folder: Path) -> tuple[str, list[str]]:
    """Ask for what no demo can begin with."""
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    choices: list[tuple[Sequence[str], str, Sequence[str]]] = [
        (("demo", "--out", "new"), "--seed", NO_SEEDS),
        (("demo",), "--out", NO_FOLDERS),
    ]
    words, flag, values = draw.choice(choices)
    value = draw.choice(values)
    return f"{words[0]} {flag} {value[:20]!r}", [*words, f"{flag}={value}"]


LONG: dict[str, Callable[[random.Random, Path], tuple[str, list[str]]]] = {
    "joint": joint,
    "campaign run": campaign,
    "demo": demo,
}
