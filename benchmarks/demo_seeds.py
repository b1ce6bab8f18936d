"""Does the demo's first sentence hold for every seed? Runs what it needs, seed after seed.

The seed decides the knees. Records are kept after every seed, and
what is recorded is not run again; the demo's page cites them:

    python benchmarks/demo_seeds.py --out runs/demo-seeds --seeds 5
"""

import argparse
import json
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kscout import policies
from kscout.demo import DemoFolder, DemoSettings
from kscout.demo.seeds import SEEDS, is_above
from kscout.demo.stages import lead_all, lead_over, silent
from kscout.files import write_text
from kscout.weights import fingerprint

RECORD = Path(__file__).with_name("demo_seeds.json")
COMMAND = "python benchmarks/demo_seeds.py --out runs/demo-seeds --seeds 5"


def run_seed(settings: DemoSettings, folder: DemoFolder) -> dict[str, Any]:
    """Run one demo as far as its claim goes; return the lead over the fixed order, and scores."""
    begun, used = time.perf_counter(), time.process_time()
    found, one = lead_all(settings, folder, silent), settings.paper_size.acquisitions[0]
    lead = lead_over(folder.lead, one.told, one.reference)
    return {
        "seed": settings.seed,
        "lead": round(lead.difference, 5),
        "interval": None if lead.interval is None else [round(end, 5) for end in lead.interval],
        "n_slices": found.n_slices,
        "n_volumes": found.n_volumes,
        "ssim": {entry.policy: round(entry.ssim, 5) for entry in found.policies},
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "time_s": round(time.perf_counter() - begun),
        "cpu_s": round(time.process_time() - used),
    }


def settings_told(settings: DemoSettings) -> dict[str, Any]:
    """Return what decides the claim, as plain values; the seed stands with each run."""
    zoo = asdict(settings.paper_size)
    told = {name: zoo[name] for name in ("n_unseen", "n_unseen_slices")}
    told["acquisition"] = zoo["acquisitions"][0]
    told["weights"] = fingerprints(settings)
    return json.loads(json.dumps(told))


def fingerprints(settings: DemoSettings) -> dict[str, str]:
    """Return those of the weights that the claim is about."""
    names = settings.paper_size.acquisitions[0].policies.values()
    return {name: fingerprint(policies.load(name)) for name in names}


def write_record(settings: dict[str, Any], rows: list[dict[str, Any]], out: Path) -> None:
    """Write all that was found, and for the page what it cites."""
    rows = sorted(rows, key=lambda row: row["seed"])
    held = {"n_seeds": len(rows), "n_above_zero": sum(map(is_above, rows))}
    whole = {"command": COMMAND, **held, "settings": settings, "seeds": rows}
    write_text(out, json.dumps(whole, indent=1) + "\n")
    if out == RECORD:
        cited = [{name: row[name] for name in ("seed", "lead", "interval")} for row in rows]
        write_text(SEEDS, json.dumps({"command": COMMAND, "seeds": cited}, indent=1) + "\n")


def main() -> None:
    """Run what is not recorded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--record", type=Path, default=RECORD)
    wanted = parser.parse_args()
    settings = DemoSettings()
    told, rows = settings_told(settings), []
    if wanted.record.is_file():
        kept = json.loads(wanted.record.read_text(encoding="utf-8"))
        # Runs of other settings say nothing of these.
        rows = kept["seeds"] if kept.get("settings") == told else []
    for seed in range(wanted.seeds):
        if seed not in {row["seed"] for row in rows}:
            own = replace(settings, seed=seed)
            rows.append(run_seed(own, DemoFolder(wanted.out / f"seed-{seed}")))
            write_record(told, rows, wanted.record)
            print(json.dumps(rows[-1]), flush=True)
    print(f"above zero in {sum(map(is_above, rows))} of {len(rows)} seeds")


if __name__ == "__main__":
    main()
