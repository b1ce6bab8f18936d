"""The bundled weights for protocol `blind`: networks of both kinds, for knees and for heads.

    python lab/blind.py networks --train heads/*.nii.gz --jobs 4

Network a is trained on random masks, network b on the masks of a fixed order that is fitted while
it learns, one per start. Both learn from the same slices in equal numbers of updates of 64 slices,
half of which are mirrored. `--train` names six heads, one more for validation and one for a test
split that is not used.
"""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from commands import parser

ACQUISITIONS = {"base": (16, 16), "long": (4, 28)}
"""Columns at the start and columns to acquire, of 128."""
N_SEEDS = {("knee", "base"): 3}
"""Seeds of each training; one where a kind and a start are not named."""
N_TRAINED = {"knee": 27_846, "heads": 6_400}
BATCH = 64


def data_commands(work: Path, heads: Sequence[Path]) -> dict[str, list[str]]:
    """Return the commands that make the datasets of the trainings."""
    sources = [word for head in heads for word in ("--source", str(head))]
    sizes = {
        "knee": ("knee", "--volumes", "1547,99,1", "--slices", 18),
        "heads": ("heads", *sources, "--volumes", "400,16,1", "--slices", 16, "--size", 128),
    }
    return {
        f"data-{kind}": words("data", "make", *how, "--out", work / "data" / kind)
        for kind, how in sizes.items()
    }


def network_commands(work: Path, n_updates: int) -> dict[str, list[str]]:
    """Return the commands of all networks by name, such as `knee-a-0` and `knee-b-long-0`."""
    found = {}
    for kind, n_slices in N_TRAINED.items():
        n_steps = -(-n_slices // BATCH)
        n_epochs = round(n_updates / n_steps)
        common = ("--data", work / "data" / kind, "--protocol", "blind", "--batch-size", BATCH)
        for seed in range(N_SEEDS.get((kind, "base"), 1)):
            name = f"{kind}-a-{seed}"
            how = ("--epochs", n_epochs, "--seed", seed, "--out", work / name)
            found[name] = words("train", "reconstructor", *common, *how)
        for acquisition, (n_initial, steps) in ACQUISITIONS.items():
            budget = ("--n-initial", n_initial, "--steps", steps)
            for seed in range(N_SEEDS.get((kind, acquisition), 1)):
                name = f"{kind}-b-{acquisition}-{seed}"
                how = ("--method", "fixed", "--model", "unet", "--updates", n_epochs * n_steps)
                how += ("--set", "training.compile=true")
                rest = (*budget, "--seed", seed, "--out", work / name)
                found[name] = words("train", "joint", *common, *how, *rest)
    return found


def words(*command: object) -> list[str]:
    """Return the words of a command of kscout."""
    return [str(word) for word in command]


def run_all(commands: dict[str, list[str]], work: Path, n_jobs: int) -> None:
    """Run commands, several at a time, with their output in `NAME.log`; stop if one fails."""

    def run(name: str) -> int:
        print(shlex.join(["kscout", *commands[name]]), flush=True)
        with (work / f"{name}.log").open("a") as log:
            command = [sys.executable, "-m", "kscout", *commands[name]]
            return subprocess.run(command, stdout=log, stderr=log).returncode

    with ThreadPoolExecutor(n_jobs) as pool:
        codes = dict(zip(commands, pool.map(run, commands), strict=True))
    failed = [name for name, code in codes.items() if code]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; see their logs in {work}")


def main() -> None:
    """Run the commands of a stage; what is finished is skipped, what was interrupted resumes."""
    options = parser(__doc__)
    options.add_argument("stage", choices=["data", "networks"])
    options.add_argument("--train", type=Path, nargs="+", default=[], help="heads, NIfTI files")
    options.add_argument("--only", nargs="+", help="beginnings of the names of commands")
    options.add_argument("--updates", type=int, default=6100)
    options.add_argument("--jobs", type=int, default=1, help="commands at a time")
    asked = options.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    stages = {
        "data": lambda: data_commands(asked.work, asked.train),
        "networks": lambda: network_commands(asked.work, asked.updates),
    }
    commands = {
        name: command
        for name, command in stages[asked.stage]().items()
        if asked.only is None or name.startswith(tuple(asked.only))
    }
    run_all(commands, asked.work, asked.jobs)


if __name__ == "__main__":
    main()
