"""Reconstructions and policies on eight simulated coils.

    python lab/coils.py --kind heads --source heads/*.nii.gz
    python lab/coils.py --kind knee

Trains a VarNet and a U-Net, compares reconstructions with the mask of each acceleration, and
compares policies that acquire columns for the VarNet with a fixed order. Protocol `blind`.
"""

import csv
from pathlib import Path

from commands import evaluate, kscout, parser
from results import Row, record, result

from kscout.provenance import commit

BUDGETS = {"4x": (16, 16), "8x": (8, 8)}
UNTRAINED = ("zero-filled", "sense", "sense-tv")
POLICIES = ["random", "equispaced-two", "center-out", "fixed", "na-oracle", "oracle"]
# From the start of each budget to its end, so that every state of an acquisition was in training.
MASKS = ("--set", "training.accelerations=[8,6,4,16,12,8]", "--set")
MASKS += ("training.center_fractions=[0.125,0.125,0.125,0.0625,0.0625,0.0625]",)
VARNET = ("--set", "reconstructor.output=rss", "--set", "reconstructor.n_cascades=4")
VARNET += ("--set", "reconstructor.n_channels=16")
DENSE = {"n_best": 4, "n_random": 4, "batch_size": 16, "n_warm": 20, "n_baseline_slices": 48}
DENSE |= {"n_repeats": 4, "n_repeated": 128}


def reconstruction_rows(folder: Path, store: str, steps: int, command: str) -> list[Row]:
    """Return the rows of an analysis of reconstructions."""
    with (folder / "reconstructions.csv").open(newline="") as file:
        return [
            result(
                **{"experiment": "coils", "store": store, "split": "test", "command": command},
                **{"reconstruction": one["reconstruction"], "protocol": one["protocol"]},
                **{"n_slices": one["n_slices"], "n_volumes": one["n_volumes"], "n_seeds": 1},
                **{"n_initial": one["n_center"], "steps": steps, "n_cols": 128, "metric": metric},
                **{"method": "mask of the acceleration", "statistic": "mean"},
                **{"value": float(one[metric]), "commit": commit()},
            )
            for one in csv.DictReader(file)
            for metric in ("ssim", "psnr")
        ]


def main() -> None:
    """Train, compare and record."""
    options = parser(__doc__)
    options.add_argument("--kind", choices=["heads", "knee"], default="knee")
    options.add_argument("--source", type=Path, nargs="*", default=[], help="files of heads")
    options.add_argument("--epochs", type=int, default=24)
    options.add_argument("--policy-epochs", type=int, default=2)
    options.add_argument("--limit", type=int, default=64, help="slices that policies acquire")
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    work, store = asked.work / f"{asked.kind}8", f"{asked.kind}8-coils"
    make = ("--coils", 8, "--phase", "--size", 128, "--volumes", "100,8,16", "--slices", 16)
    sources = [word for one in asked.source for word in ("--source", one)]
    kscout("data", "make", asked.kind, *make, "--target", "rss", *sources, "--out", work / "data")
    given = ("--data", work / "data", "--protocol", "blind", "--device", asked.device)
    networks = {name: work / f"{name}-{asked.seed}" for name in ("varnet", "unet")}
    for name, run in networks.items():
        recipe = ("--preset", "paper-unet", "--model", name, *given, *MASKS)
        train = (*recipe, *(VARNET if name == "varnet" else ()))
        train += ("--epochs", asked.epochs, "--batch-size", 16, "--seed", asked.seed, "--out", run)
        kscout("train", "reconstructor", *train)
    for factor, (n_initial, steps) in BUDGETS.items():
        budget, out = ("--n-initial", n_initial, "--steps", steps), work / f"images-{factor}"
        named = [*UNTRAINED, *(f"{name}={run}" for name, run in networks.items())]
        command = kscout("analyze", "reconstructions", *named, *given, *budget, "--out", out)
        record(reconstruction_rows(out, store, steps, command))
        policy, varnet = work / f"dense-{factor}-{asked.seed}", networks["varnet"]
        learn = ("--method", "dense", *given, *budget, "--reconstructor", varnet)
        learn += ("--epochs", asked.policy_epochs, "--seed", asked.seed, "--out", policy)
        settings = [x for key, value in DENSE.items() for x in ("--set", f"training.{key}={value}")]
        kscout("train", "policy", *learn, *settings)
        compare = (*budget, "--protocol", "blind", "--device", asked.device, "--argmax")
        compare += ("--fixed-slices", 48, "--limit", asked.limit)
        where = (work / "data", varnet, [*POLICIES, f"dense={policy}"], work / f"results-{factor}")
        fields = {"store": store, "reconstruction": "varnet"}
        record(evaluate("coils-policies", *where, *compare, **fields))


if __name__ == "__main__":
    main()
