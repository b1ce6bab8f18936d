"""Reconstructions that are trained together with what chooses their columns.

    python lab/joint.py --task knee-base --method fixed dense --seeds 3
    python lab/joint.py --task knee-base --method loupe straight-through random --no-flips

All variants start from the same network and take the same number of updates from the same slices.
Each is compared with the co-trained fixed order of the same seeds, paired by seed and volume.
"""

from dataclasses import replace
from pathlib import Path

from commands import evaluate, kscout, paired, parser, scores, seconds
from results import Row, record

from kscout.evaluation.records.results import Scores

TASKS = {
    "knee-base": ("knee-paper-size", "knee-unet", 16, 16),
    "knee-long": ("knee-paper-size", "knee-unet", 4, 28),
    "knee-8x": ("knee-paper-size", "knee-unet", 8, 8),
    "heads-base": ("heads-coarse", "heads-general-unet", 16, 16),
}
"""By name: dataset, network to start from, columns at the start, columns to acquire."""
METHODS = ("fixed", "dense", "loupe", "straight-through", "random")


def main() -> None:
    """Train, evaluate, pair and record."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=Path("lab-runs/knee"))
    options.add_argument("--task", choices=TASKS, default="knee-base")
    options.add_argument("--method", nargs="+", choices=METHODS, default=["fixed", "dense"])
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--updates", type=int, default=6000)
    options.add_argument("--no-flips", action="store_true", help="without mirrored slices")
    asked = options.parse_args()
    store, start, n_initial, steps = TASKS[asked.task]
    budget = ("--n-initial", n_initial, "--steps", steps, "--protocol", "paper")
    suffix = "-no-flips" if asked.no_flips else ""
    # The other methods are compared with the fixed order.
    methods = list(dict.fromkeys(["fixed", *asked.method]))
    by_method: dict[str, list[Scores]] = {}
    rows: list[Row] = []
    for method in methods:
        runs = [
            asked.work / asked.task / (method + suffix) / f"seed-{n}" for n in range(asked.seeds)
        ]
        by_method[method] = []
        for seed, run in enumerate(runs):
            where = ("--data", asked.data, "--out", run, "--device", asked.device)
            how = ("--method", method, "--reconstructor", start, "--updates", asked.updates)
            flips = ("--set", f"training.flips={'false' if asked.no_flips else 'true'}")
            compiled = () if asked.device == "cpu" else ("--set", "training.compile=true")
            train = (*where, *how, *budget, *flips, *compiled, "--seed", seed)
            command = kscout("train", "joint", *train)
            fields = {"store": store, "reconstruction": "co-trained", "seed": seed}
            fields |= {"seconds": seconds(run), "command": command}
            named = [f"{method}{suffix}={run}", *(["fixed"] if method != "fixed" else [])]
            draws = ("--trajectories", 4) if method == "random" else ("--argmax",)
            out = run.with_name(f"results-{seed}")
            judged = evaluate(
                *("joint", asked.data, run, named, out, *budget, *draws),
                **{"device": asked.device, **fields} if asked.device != "auto" else fields,
            )
            row = next(one for one in judged if one.method == method + suffix)
            by_method[method].append(scores(out, method + suffix))
            rows.append(row)
        difference, interval = paired(by_method[method], by_method["fixed"])
        if method != "fixed":
            seeds = " ".join(map(str, range(asked.seeds)))
            mean = sum(float(row.value) for row in rows[-asked.seeds :]) / asked.seeds
            low, high = (f"{end:.6g}" if end is not None else "" for end in interval)
            mean_row = replace(rows[-1], seed=seeds, n_seeds=str(asked.seeds), value=f"{mean:.6g}")
            compared = {"difference_to": f"fixed{suffix}", "difference": f"{difference:.6g}"}
            rows.append(replace(mean_row, low=low, high=high, **compared))
    record(rows)


if __name__ == "__main__":
    main()
