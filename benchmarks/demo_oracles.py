"""Store with the demo what it has no time for: oracles on its slices at the paper's size.

Writes src/kscout/demo/oracles.json: for each acquisition of the demo's table, and of the quick
demo's, SSIM of both oracles by slice and step, the columns of the oracle, which the page's player
measures again, the fingerprint of the slices, and the whole test set's scores as they stand in
benchmarks/leaderboard.json. About six minutes for 16 steps on two cores; what --work holds
already is not computed again:

    python benchmarks/demo_oracles.py --work runs/demo-oracles
"""

import argparse
import json
import re
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from kscout.data.generate import make_store
from kscout.data.store import Store
from kscout.demo.oracles import STORED
from kscout.demo.settings import ZOO_UNET, DemoSettings, PaperSize, ZooAcquisition
from kscout.demo.stages import evaluated
from kscout.evaluation.records.results import Scores, read_scores
from kscout.evaluation.running.recording import columns_of
from kscout.files import write_text
from kscout.reconstruction import load
from kscout.weights import fingerprint
from kscout.zoo import zoo_path

ORACLES = ["na-oracle", "oracle"]
LEADERBOARD = Path(__file__).with_name("leaderboard.json")
TEST_SET = {"store": "knee-paper-size", "n_slices": 1715, "n_volumes": 96}


def whole_test(
    budget: ZooAcquisition, leaderboard: list[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return what each row of the table scores over the whole test set.

    A policy is found by its name in the zoo, and an order that evaluations fit by its title.
    """
    records = {
        record["method"]: record
        for record in leaderboard
        if (record["store"], record["horizon"]) == (TEST_SET["store"], budget.name)
        and record["reconstruction"] == "frozen"
    }
    found = {name: records.get(name) for name in ("random", "center-out")}
    found |= {
        title: records.get(name, records.get(title)) for title, name in budget.policies.items()
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


def oracles_of(
    budget: ZooAcquisition, settings: PaperSize, store: Store, work: Path
) -> dict[str, Any]:
    """Run both oracles on the demo's slices of one acquisition."""
    out, weights = work / budget.name, zoo_path(ZOO_UNET)
    files = {} if weights is None else {ZOO_UNET: weights}
    summary = evaluated(ORACLES, store, ZOO_UNET, settings.evaluation(budget), out, files)
    made = datetime.fromtimestamp((out / "summary.json").stat().st_mtime, UTC)
    return {
        "date": f"{made:%Y-%m-%d}",
        "device": summary.device,
        "n_initial": budget.n_initial,
        "horizon": budget.horizon,
        "protocol": summary.protocol,
        "store_fingerprint": store.fingerprint,
        "reconstructor_fingerprint": fingerprint(load(ZOO_UNET)),
        **to_json(scores := read_scores(out)),
        "columns": [
            list(chain(*one["oracle"]))
            for one in columns_of(out, summary.ranked, scores, range(summary.n_slices))
        ],
    }


def to_json(scores: list[Scores], *, digits: int = 7) -> dict[str, Any]:
    """Return slices and SSIM by slice and step, as they are stored."""
    first = scores[0]
    return {
        "slices": [list(pair) for pair in zip(first.volumes, first.slices, strict=True)],
        "ssim": {one.policy: one.metric("ssim").round(digits).tolist() for one in scores},
    }


def main() -> None:
    """Compute what is missing and write the file whole."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/demo-oracles"))
    parser.add_argument("--out", type=Path, default=STORED)
    wanted = parser.parse_args()
    leaderboard = json.loads(LEADERBOARD.read_text(encoding="utf-8"))
    acquisitions = {}
    for settings in (PaperSize(), DemoSettings.quick().paper_size):
        making = settings.making
        store = make_store(wanted.work / f"knees-{making.volumes[-1]}", making)
        for budget in settings.acquisitions:
            acquisitions[budget.name] = {
                **oracles_of(budget, settings, store, wanted.work),
                "whole_test": whole_test(budget, leaderboard),
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
