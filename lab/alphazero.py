"""AlphaZero's tree search, and the paper's greedy policy trained for about the same time.

    python lab/alphazero.py --seeds 3
    python lab/alphazero.py --set training.n_searches=32 --set training.exploration=4

Evaluates the best round by validation with eight sampled trajectories per slice, as in the paper.
"""

from pathlib import Path

from commands import ACQUISITIONS, evaluate, kscout, parser
from results import record

ROUNDS = {"alphazero": 21, "greedy": 15}
"""Epochs that take about six minutes of one H200."""


def main() -> None:
    """Train, evaluate and record."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=Path("lab-runs/knee"))
    options.add_argument("--acquisition", choices=["base", "long"], default="base")
    options.add_argument("--method", choices=ROUNDS, default="alphazero")
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--rounds", type=int)
    options.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    asked = options.parse_args()
    n_initial, steps = ACQUISITIONS[asked.acquisition]
    changed = [word for one in asked.set for word in ("--set", one)]
    name = " ".join([asked.method, *(one.rpartition(".")[2] for one in asked.set)])
    runs = []
    for seed in range(asked.seeds):
        runs.append(asked.work / name.replace(" ", "-") / asked.acquisition / f"seed-{seed}")
        where = ("--data", asked.data, "--reconstructor", "knee-unet", "--out", runs[-1])
        how = ("--method", asked.method, "--preset", f"knee-{asked.acquisition}", "--seed", seed)
        epochs = ("--epochs", asked.rounds or ROUNDS[asked.method], "--device", asked.device)
        kscout("train", "policy", *where, *how, *epochs, *changed)
    policies = [*(f"{name}={run / 'best.safetensors'}" for run in runs), "fixed"]
    budget = ("--n-initial", n_initial, "--steps", steps, "--protocol", "paper")
    out = runs[0].with_name("results")
    judged = (*budget, "--trajectories", 8, "--device", asked.device)
    fields = {"store": "knee-paper-size"}
    record(evaluate("alphazero", asked.data, "knee-unet", policies, out, *judged, **fields))


if __name__ == "__main__":
    main()
