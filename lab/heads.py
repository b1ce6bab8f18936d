"""Policies for a head that they were not trained on: each of several heads is left out in turn.

    python lab/heads.py heads/*.nii.gz --preset knee-base --seeds 3
    python lab/heads.py heads/*.nii.gz --without colin27 --imported

The head that is left out is the test split of its dataset. A posterior sampler and a `column`
network are trained on the others and combined. `--imported` also evaluates the ensemble on the
head's own file, imported with and without resampling to 1.6 mm. `small_heads.py` makes small copies
of heads for machines that cannot download them.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from commands import evaluate, kscout, parser, seconds
from results import Row, record

PRESETS = {"knee-base": (16, 16), "knee-long": (4, 28)}
COUNTS = ("--volumes", "400,16,20", "--slices", 16, "--size", 128)
ZOOM = ("--set", "training.zoom=1.8")
IMPORTS = {"cut": (), "resampled": ("--resample", 1.6)}


def name_of(path: Path) -> str:
    """Return the name of a head."""
    return path.name.partition(".")[0]


def trained(data: Path, work: Path, preset: str, seed: int, device: str) -> Path:
    """Train both members and the ensemble; return its run folder."""
    common = ("--data", data, "--reconstructor", "heads-unet", "--seed", seed, "--device", device)
    members = []
    for method, start, epochs in (
        ("posterior", "knee-base-posterior", 10),
        ("dense", "knee-base-column", 4),
    ):
        run = work / f"{method}-{seed}"
        how = ("--method", method, "--start", start, "--epochs", epochs, "--preset", "knee-base")
        kscout("train", "policy", *common, *how, *ZOOM, "--out", run)
        members.append(str(run))
    run = work / f"ensemble-{preset}-{seed}"
    words = ["--method", "ensemble", "--preset", preset, "--set"]
    words += [f"policy.members={json.dumps(members)}"]
    ordered = ("--set", "training.ordered=[8,12,16]") if preset == "knee-long" else ()
    kscout("train", "policy", *common, *words, *ordered, "--out", run)
    return run


def main() -> None:
    """Leave out each head in turn, and record."""
    options = parser(__doc__)
    options.add_argument("heads", type=Path, nargs="+", help="NIfTI files")
    options.add_argument("--without", help="name of the head to leave out; each by default")
    options.add_argument("--preset", choices=PRESETS, default="knee-base")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--imported", action="store_true", help="also evaluate the file itself")
    asked = options.parse_args()
    n_initial, steps = PRESETS[asked.preset]
    budget = ("--n-initial", n_initial, "--steps", steps, "--protocol", "paper", "--argmax")
    for head in asked.heads:
        name = name_of(head)
        if asked.without not in (None, name):
            continue
        work = asked.work / f"without-{name}"
        sources = [one for one in asked.heads if one != head]
        named = [word for one in (*sources, head) for word in ("--source", one)]
        kscout("data", "make", "heads", *named, *COUNTS, "--out", work / "data")
        runs = [
            trained(work / "data", work, asked.preset, seed, asked.device)
            for seed in range(asked.seeds)
        ]
        policies = [*(f"ensemble={run}" for run in runs), "fixed", "na-oracle", "oracle"]
        time = float(np.mean([seconds(run) for run in runs]))
        where = (work / "data", "heads-unet", policies, work / f"results-{asked.preset}")
        rows = evaluate("heads", *where, *budget, store=f"heads-without-{name}")
        record([replace(row, seconds=f"{time:.6g}") if _is_own(row) else row for row in rows])
        for how, words in IMPORTS.items() if asked.imported else ():
            data, sizes = work / how, ("--size", 128, "--pad", 128, "--absolute")
            kscout("data", "import", head, *words, *sizes, "--out", data)
            # The only volume of a single file is in the training split.
            given = (data, "heads-unet", [policies[0], "fixed", "oracle"], work / f"results-{how}")
            split = ("--split", "train")
            store = f"heads-{name}-{how}"
            record(evaluate("heads-imported", *given, *budget, *split, store=store))


def _is_own(row: Row) -> bool:
    return row.method == "ensemble"


if __name__ == "__main__":
    main()
