"""Store with the demo what it has no time for: oracles on its slices at the paper's size.

Writes src/kscout/demo/oracles.json: for each acquisition of the demo's table SSIM of both oracles
by slice and step, the fingerprint of the slices, and the whole test set's scores as they stand in
benchmarks/leaderboard.json. About six minutes for 16 steps on two cores; what --work holds
already is not computed again:

    python benchmarks/demo_oracles.py --work runs/demo-oracles
"""

import argparse
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kscout.data.generate import make_store
from kscout.data.store import Store
from kscout.demo.oracles import STORED, to_json
from kscout.demo.paper_size import UNET, Budget, PaperSize
from kscout.demo.stages import reused_evaluation
from kscout.evaluation.compare import evaluate
from kscout.evaluation.results import read_scores
from kscout.files import write_text
from kscout.reconstruction import load
from kscout.weights import fingerprint

ORACLES = ["na-oracle", "oracle"]
LEADERBOARD = Path(__file__).with_name("leaderboard.json")
TEST_SET = {"store": "knee-paper-size", "n_slices": 1715, "n_volumes": 96}


def whole_test(budget: Budget, leaderboard: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what each row of the table scores over the whole test set.

    A policy is found by its name in the zoo, and an order that evaluations fit by its title.
    """
    records = {
        record["method"]: record
        for record in leaderboard
        if (record["store"], record["horizon"]) == (TEST_SET["store"], budget.name)
    }
    found = {name: records.get(name) for name in ("random", "center-out")}
    found |= {
        one.title: records.get(one.weights, records.get(one.title)) for one in budget.policies
    }
    found |= {name: records.get(name) for name in ORACLES}
    return {
        name: {
            "ssim": record["ssim_mean"],
            "difference_to_fixed": record["difference_to_fixed"],
            "interval": record["interval"],
            "is_argmax": "--argmax" in record["command"],
        }
        for name, record in found.items()
        if record is not None
    }


def oracles_of(budget: Budget, settings: PaperSize, store: Store, work: Path) -> dict[str, Any]:
    """Run both oracles on the demo's slices of one acquisition."""
    out, setting = work / budget.name, settings.evaluation(budget)
    inputs = {
        "store": store.fingerprint,
        "reconstructor": fingerprint(load(UNET)),
        "setting": str(setting),
    }
    reused_evaluation(out, inputs, lambda: evaluate(ORACLES, store, UNET, setting, out=out))
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    made = datetime.fromtimestamp((out / "summary.json").stat().st_mtime, UTC)
    return {
        "date": f"{made:%Y-%m-%d}",
        "device": summary["device"],
        "n_initial": budget.n_initial,
        "horizon": budget.horizon,
        "protocol": summary["protocol"],
        "store_fingerprint": store.fingerprint,
        "reconstructor_fingerprint": inputs["reconstructor"],
        **to_json(read_scores(out)),
    }


def main() -> None:
    """Compute what is missing and write the file whole."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/demo-oracles"))
    parser.add_argument("--out", type=Path, default=STORED)
    wanted = parser.parse_args()
    settings = PaperSize()
    store = make_store(wanted.work / "knees", settings.making)
    leaderboard = json.loads(LEADERBOARD.read_text(encoding="utf-8"))
    acquisitions = {
        budget.name: {
            **oracles_of(budget, settings, store, wanted.work),
            "whole_test": whole_test(budget, leaderboard),
        }
        for budget in settings.budgets
    }
    value = {
        "command": "python benchmarks/demo_oracles.py",
        "test_set": TEST_SET,
        "acquisitions": acquisitions,
    }
    # A row of numbers stays on one line.
    text = re.sub(
        r"\[[^\[\]{}]*\]",
        lambda match: re.sub(r"\s+", " ", match[0]).replace("[ ", "[").replace(" ]", "]"),
        json.dumps(value, indent=1),
    )
    write_text(wanted.out, text + "\n")
    print(f"wrote {wanted.out}: {', '.join(acquisitions)}")


if __name__ == "__main__":
    main()
