"""Does the demo's claim hold for every seed? Runs the whole demo for each and prints JSON.

Images, initial weights, order and draws all follow the seed. One process per core, one thread
each: python benchmarks/demo_seeds.py --out runs/demo-seeds --seeds 5
"""

import argparse
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import torch

from kscout.demo import run_demo
from kscout.demo.settings import CLAIMED
from kscout.demo.stages import leads_of


def run_seed(task: tuple[Path, int]) -> dict[str, Any]:
    """Run one demo; return its scores and what its trained policies gain on plain masks."""
    out, seed = task
    torch.set_num_threads(1)
    found = run_demo(out / f"seed-{seed}", seed=seed)
    leads = leads_of(out / f"seed-{seed}" / "evaluation")
    gains = {name: vars(leads[name]) for name in (*CLAIMED, "fixed")}
    ssim = {entry.policy: entry.ssim for entry in found.summary.policies}
    return {
        "seed": seed,
        "claim_holds": all(gains[name]["interval"][0] > 0 for name in CLAIMED),
        "non_greedy_is_above": all(ssim["ngreedy"] > ssim[name] for name in CLAIMED),
        "greedy_gains": gains,
        "ssim": ssim,
        "reconstruction_ssim": {
            name: [one.ssim for one in found.reconstructions if one.reconstruction == name]
            for name in dict.fromkeys(one.reconstruction for one in found.reconstructions)
        },
    }


def main() -> None:
    """Run all seeds and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    wanted = parser.parse_args()
    # Spawned, because torch's threads do not survive a fork; not a pool, whose workers may not
    # have children of their own, as making a store does.
    tasks = [(wanted.out, seed) for seed in range(wanted.seeds)]
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        rows = list(pool.map(run_seed, tasks))
    holds = sum(row["claim_holds"] for row in rows)
    print(json.dumps({"n_seeds": len(rows), "claim_holds": holds, "seeds": rows}))


if __name__ == "__main__":
    main()
