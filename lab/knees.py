"""Policies for knees with a frozen reconstruction: the rows of the leaderboard.

    python lab/knees.py --only dense ensemble
    python lab/knees.py --seeds 1                  # one seed of each training

Trains every policy on procedural knees of the paper's size, or on four times as many slices, and
evaluates it on the same test slices.
"""

from pathlib import Path

from commands import ACQUISITIONS, evaluate, kscout, parser
from results import record

DATA = {"knee": ("--paper",), "knee-4x": ("--volumes", "1547,99,1", "--slices", 18)}
LARGE = ("policy.width=320", "policy.n_heads=8", "policy.channels=[32,64,96]")
SAMPLER = ("--method", "posterior", "--compile", "--set", "training.follows=knee-base-column")
MEMBERS = 'policy.members=["knee-base-posterior","knee-base-column"]'
ENSEMBLE = ("--method", "ensemble", "--set", MEMBERS)
DECAY, ORDERED = ("--set", "training.decay_epochs=[10]"), ("--set", "training.ordered=[8,12,16]")
DENSE = ("--method", "dense", "--compile", "--epochs")
TRAININGS: dict[str, tuple[str, str, int, tuple[object, ...]]] = {
    "greedy": ("knee", "base", 5, ("--method", "greedy")),
    "greedy-long": ("knee", "long", 1, ("--method", "greedy")),
    "greedy-4x": ("knee-4x", "base", 2, ("--method", "greedy", "--epochs", 12, *DECAY)),
    "ngreedy-0.9": ("knee", "base", 1, ("--method", "ngreedy", "--gamma", 0.9)),
    "dense": ("knee", "base", 3, (*DENSE, 3)),
    "dense-4x": ("knee-4x", "base", 2, (*DENSE, 2)),
    "dense-large": ("knee-4x", "base", 1, (*DENSE, 2, *(w for x in LARGE for w in ("--set", x)))),
    "posterior": ("knee", "base", 3, (*SAMPLER, "--epochs", 24)),
    "posterior-4x": ("knee-4x", "base", 1, (*SAMPLER, "--epochs", 8)),
    "ensemble": ("knee", "base", 1, ENSEMBLE),
    "ensemble-long": ("knee", "long", 1, (*ENSEMBLE, *ORDERED)),
}
"""By name: dataset, acquisition, seeds, and the options of `kscout train policy`."""
SAMPLING = ("greedy", "ngreedy")
"""Methods whose policies are evaluated by eight sampled trajectories, as in the paper."""
BASELINES = ["random", "equispaced-one", "equispaced-two", "center-out", "spectral-oracle"]
BOUNDS = ["fixed", "na-oracle", "oracle"]


def main() -> None:
    """Train, evaluate and record."""
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", choices=[*TRAININGS, "baselines"])
    options.add_argument("--seeds", type=int, help="at most this many seeds of each training")
    options.add_argument("--limit", type=int, help="test slices; all by default")
    asked = options.parse_args()
    names = asked.only or [*TRAININGS, "baselines"]
    for data, words in DATA.items():
        kscout("data", "make", "knee", *words, "--out", asked.work / data)
    limit = () if asked.limit is None else ("--limit", asked.limit)

    def judge(name: str, acquisition: str, policies: list[str], *words: object) -> None:
        n_initial, steps = ACQUISITIONS[acquisition]
        budget = ("--n-initial", n_initial, "--steps", steps, "--protocol", "paper")
        out = asked.work / "results" / f"{name}-{acquisition}"
        run = ("--device", asked.device, *budget, *limit, *words)
        where = (asked.work / "knee", "knee-unet", policies, out)
        record(evaluate("leaderboard", *where, *run, store="knee-paper-size"))

    for name in names:
        if name == "baselines":
            for acquisition in ("base", "long"):
                judge(name, acquisition, [*BASELINES, *BOUNDS], "--trajectories", 8)
            continue
        data, acquisition, n_seeds, words = TRAININGS[name]
        runs: list[Path] = []
        for seed in range(min(n_seeds, asked.seeds or n_seeds)):
            runs.append(asked.work / name / f"seed-{seed}")
            where = ("--data", asked.work / data, "--reconstructor", "knee-unet")
            start = ("--preset", f"knee-{acquisition}", "--seed", seed, "--protocol", "paper")
            how = ("--out", runs[-1], "--device", asked.device)
            kscout("train", "policy", *where, *start, *how, *words)
        sampled = ("--trajectories", 8) if name.startswith(SAMPLING) else ("--argmax",)
        judge(name, acquisition, [*(f"{name}={run}" for run in runs), *BOUNDS], *sampled)


if __name__ == "__main__":
    main()
