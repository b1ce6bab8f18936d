"""Enter evaluations into benchmarks/leaderboard.json, one record per store, horizon and method.

Several summaries of one acquisition may be given at once, because oracles are slow and evaluated
apart from the trained policies; each must compare with `fixed`. Records of the same store, horizon
and method are replaced, all others stay:

    python benchmarks/leaderboard.py --store knee-paper-size --horizon knee-base \
        --data stores/knee --reconstructor knee-unet \
        --source greedy=knee-base-greedy --source greedy-last-argmax=runs/greedy \
        results/base/summary.json results/greedy/summary.json \
        greedy-last=results/greedy-argmax/summary.json

A trained policy that took its best column at each step is entered as METHOD-argmax.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kscout.errors import ConfigError
from kscout.evaluation.summary import gap_closed
from kscout.files import write_json

LEADERBOARD = Path(__file__).with_name("leaderboard.json")
REFERENCE = "fixed"
SHARED = (
    *("store_fingerprint", "split", "n_cols", "n_initial", "steps", "limit", "n_slices"),
    *("protocol", "metric_convention", "reconstructor_fingerprint"),
)
"""What summaries have in common where their scores may stand side by side."""

Record = dict[str, Any]


def records_of(
    summaries: Sequence[Record],
    *,
    names: dict[str, str],
    data: str,
    reconstructor: str,
    sources: dict[str, str],
    entered_before: Sequence[Record] = (),
) -> list[Record]:
    """Return the records of all methods, best first.

    Args:
        summaries: contents of `summary.json`.
        names: store and horizon.
        data: the store as the commands name it.
        reconstructor: the reconstruction as the commands name it.
        sources: by method, what the commands name as its policy, where that is not the method.
        entered_before: the leaderboard; oracles that no summary holds are taken from it.
    """
    _check_same_acquisition(summaries)
    means = {
        record["method"]: record["ssim_mean"]
        for record in entered_before
        if all(record[key] == value for key, value in names.items())
    }
    means |= {
        entry["policy"]: entry["final"]["ssim"]["mean"]
        for summary in summaries
        for entry in summary["policies"]
    }
    found: dict[str, Record] = {}
    for summary in summaries:
        against = {entry["policy"]: entry for entry in summary["comparisons"]}
        for entry in summary["policies"]:
            method = _method(entry, summary)
            ssim = entry["final"]["ssim"]
            if method in found:
                # Every summary holds the reference, and it is the same one in all.
                if method != REFERENCE or ssim["mean"] != found[method]["ssim_mean"]:
                    raise ConfigError(f"summaries hold two {method!r}; name one METHOD=SUMMARY")
                continue
            compared = against.get(entry["policy"])
            found[method] = {
                **names,
                "method": method,
                "n_seeds": entry["n_seeds"],
                "ssim_mean": ssim["mean"],
                "ssim_std": ssim["std"],
                "gap_closed": gap_closed(ssim["mean"], means.get("na-oracle"), means.get("oracle")),
                "difference_to_fixed": compared["difference"] if compared else 0.0,
                "interval": compared["interval"] if compared else None,
                "command": _command(summary, data, reconstructor, sources.get(method, method)),
            }
    return sorted(found.values(), key=lambda record: -record["ssim_mean"])


def _method(entry: Record, summary: Record) -> str:
    is_argmax = summary["is_argmax"] and entry["training"] is not None
    return f"{entry['policy']}-argmax" if is_argmax else entry["policy"]


def _check_same_acquisition(summaries: Sequence[Record]) -> None:
    for summary in summaries:
        for key in SHARED:
            if summary[key] != summaries[0][key]:
                raise ConfigError(
                    f"summaries differ in {key}: {summaries[0][key]!r} and {summary[key]!r}; "
                    "enter them in two calls"
                )
        if summary["reference"] != REFERENCE:
            raise ConfigError(
                f"a summary compares with {summary['reference']!r}; evaluate with "
                f"--reference {REFERENCE}"
            )


def _command(summary: Record, data: str, reconstructor: str, policy: str) -> str:
    """Return what evaluates one policy as this summary did."""
    policies = list(dict.fromkeys([policy, REFERENCE]))
    n_trajectories = max(entry["n_trajectories"] for entry in summary["policies"])
    words = [
        "kscout evaluate",
        *(f"--data {data}", f"--reconstructor {reconstructor}", f"--split {summary['split']}"),
        *(f"--n-initial {summary['n_initial']}", f"--steps {summary['steps']}"),
        *(f"--policy {one}" for one in policies),
        "--argmax" if summary["is_argmax"] else f"--trajectories {n_trajectories}",
        *(f"--seed {seed}" for seed in summary["draw_seeds"]),
        *(f"--protocol {summary['protocol']}", f"--reference {REFERENCE}", "--out OUT"),
    ]
    return " ".join(words)


def entered(records: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """Return old and new records, new ones in place of old ones of the same key."""
    keys = {_key(record) for record in new}
    kept = [record for record in records if _key(record) not in keys]
    # Stable: records of one horizon stay best first.
    by_score = sorted([*kept, *new], key=lambda record: -record["ssim_mean"])
    return sorted(by_score, key=lambda record: (record["store"], record["horizon"]))


def _key(record: Record) -> tuple[str, str, str]:
    return record["store"], record["horizon"], record["method"]


def read_summary(text: str) -> Record:
    """Read `PATH`, or `METHOD=PATH` to rename the one trained policy in it."""
    name, equals, after = text.partition("=")
    is_named = bool(equals) and not Path(text).exists()
    summary: Record = json.loads(Path(after if is_named else text).read_text(encoding="utf-8"))
    if not is_named:
        return summary
    trained = [entry for entry in summary["policies"] if entry["training"] is not None]
    if len(trained) != 1:
        raise ConfigError(f"{after} holds {len(trained)} trained policies; only one can be {name}")
    old = trained[0]["policy"]
    for entry in (*summary["policies"], *summary["comparisons"]):
        if entry["policy"] == old:
            entry["policy"] = name
    return summary


def main() -> None:
    """Enter the given summaries and print the leaderboard."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("summaries", nargs="+", metavar="[METHOD=]SUMMARY")
    for name in ("store", "horizon", "data", "reconstructor"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--source", action="append", default=[], metavar="METHOD=POLICY")
    parser.add_argument("--out", type=Path, default=LEADERBOARD)
    wanted = parser.parse_args()
    old = json.loads(wanted.out.read_text(encoding="utf-8")) if wanted.out.is_file() else []
    new = records_of(
        [read_summary(text) for text in wanted.summaries],
        names={"store": wanted.store, "horizon": wanted.horizon},
        data=wanted.data,
        reconstructor=wanted.reconstructor,
        sources=dict(text.split("=", 1) for text in wanted.source),
        entered_before=old,
    )
    records = entered(old, new)
    write_json(wanted.out, records)
    print(json.dumps(records, indent=2))


if __name__ == "__main__":
    main()
