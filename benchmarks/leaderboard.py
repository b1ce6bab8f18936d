"""Enter an evaluation into benchmarks/leaderboard.json, one record per store, horizon and method.

All records of a store and horizon come from one evaluation, so that their scores may stand side by
side: entering another one replaces them all. With --join its methods join those that are there, if
it scored the fixed order, and any oracle, exactly as they were: on the same images, by the same
arithmetic.

    python benchmarks/leaderboard.py results/base/summary.json --store knee-paper-size \
        --horizon knee-base --data stores/knee --reconstructor knee-unet \
        --rename zoo=knee-base-greedy --source greedy=runs/five/seed-0 \
        --source greedy=runs/five/seed-1

A method's `--source` is what its command names as the policy, once per seed; a policy that is
known to kscout by the method's name needs none.
"""

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kscout.errors import ConfigError
from kscout.evaluation.summary import gap_closed
from kscout.files import write_json

LEADERBOARD = Path(__file__).with_name("leaderboard.json")
REFERENCE = "fixed"
BOUNDS = ("na-oracle", "oracle")

Record = dict[str, Any]


def records_of(
    summary: Record,
    *,
    store: str,
    horizon: str,
    data: str,
    reconstructor: str,
    sources: Mapping[str, Sequence[str]],
) -> list[Record]:
    """Return the records of all methods, best first.

    Args:
        summary: contents of `summary.json`.
        store: its name on the leaderboard.
        horizon: the acquisition's name on the leaderboard.
        data: the store as the commands name it.
        reconstructor: the reconstruction as the commands name it.
        sources: by method, what the commands name as its policies, one per seed.
    """
    _check_whole(summary)
    against = {entry["policy"]: entry for entry in summary["comparisons"]}
    found = []
    for entry in summary["policies"]:
        method, ssim = entry["policy"], entry["final"]["ssim"]
        compared = against.get(method)
        found.append(
            {
                "store": store,
                "horizon": horizon,
                "method": method,
                "n_seeds": entry["n_seeds"],
                "ssim_mean": ssim["mean"],
                "ssim_std": ssim["std"],
                "gap_closed": entry["gap_closed"],
                "difference_to_fixed": compared["difference"] if compared else 0.0,
                "interval": compared["interval"] if compared else None,
                "command": _command(
                    summary,
                    places=(data, reconstructor, f"results/{horizon}/{method}"),
                    policies=_policies(entry, sources.get(method, ())),
                ),
            }
        )
    return sorted(found, key=lambda record: -record["ssim_mean"])


def _check_whole(summary: Record) -> None:
    if summary["reference"] != REFERENCE:
        raise ConfigError(
            f"the summary compares with {summary['reference']!r}; evaluate with "
            f"--reference {REFERENCE}"
        )
    if summary["limit"] is not None:
        raise ConfigError(
            f"the summary is of {summary['limit']} slices; evaluate without --limit, "
            "because a leaderboard is of whole test sets"
        )


def _policies(entry: Record, sources: Sequence[str]) -> list[str]:
    """Return what a command names to evaluate one method, labeled where the name would differ."""
    method, n_seeds = entry["policy"], entry["n_seeds"]
    if entry["training"] is not None and len(sources or [method]) != n_seeds:
        raise ConfigError(
            f"{method!r} has {n_seeds} seeds; name {n_seeds} policies with --source {method}=POLICY"
        )
    return [f"{method}={source}" for source in sources] or [method]


def _command(summary: Record, *, places: tuple[str, str, str], policies: Sequence[str]) -> str:
    """Return what evaluates one method as this summary did."""
    data, reconstructor, out = places
    n_trajectories = max(entry["n_trajectories"] for entry in summary["policies"])
    words = [
        "kscout evaluate",
        *(f"--data {data}", f"--reconstructor {reconstructor}", f"--split {summary['split']}"),
        *(f"--n-initial {summary['n_initial']}", f"--steps {summary['steps']}"),
        *(f"--policy {one}" for one in dict.fromkeys([*policies, REFERENCE])),
        "--argmax" if summary["is_argmax"] else f"--trajectories {n_trajectories}",
        *(f"--seed {seed}" for seed in summary["draw_seeds"]),
        *(f"--protocol {summary['protocol']}", f"--reference {REFERENCE}"),
        f"--out {out}",
    ]
    return " ".join(words)


def entered(records: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """Return old and new records; new ones drive out all old ones of their store and horizon."""
    places = {_place(record) for record in new}
    kept = [record for record in records if _place(record) not in places]
    # Stable: records of one horizon stay best first.
    return sorted([*kept, *new], key=_place)


def joined(records: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """Return new records of one store and horizon and, best first, those that it has besides."""
    methods = {record["method"] for record in new}
    place = _place(new[0])
    own = {record["method"]: record for record in records if _place(record) == place}
    if REFERENCE not in own:
        raise ConfigError(f"no evaluation of {place} is there to join; enter it without --join")
    for record in new:
        name, ssim = record["method"], record["ssim_mean"]
        is_fitted_alike = name in (REFERENCE, *BOUNDS)
        if is_fitted_alike and name in own and own[name]["ssim_mean"] != ssim:
            raise ConfigError(
                f"{name!r} scores {ssim} here and {own[name]['ssim_mean']} on the leaderboard; "
                "evaluate all methods together and enter them without --join"
            )
    kept = [record for method, record in own.items() if method not in methods]
    ssim = {record["method"]: record["ssim_mean"] for record in [*kept, *new]}
    low, high = (ssim.get(name) for name in BOUNDS)
    added = [record | {"gap_closed": gap_closed(record["ssim_mean"], low, high)} for record in new]
    return sorted([*kept, *added], key=lambda record: -record["ssim_mean"])


def _place(record: Record) -> tuple[str, str]:
    return record["store"], record["horizon"]


def with_names(summary: Record, names: Mapping[str, str], left_out: Collection[str] = ()) -> Record:
    """Return a summary under other names of its policies, and without some of them."""
    known = {entry["policy"] for entry in summary["policies"]}
    if unknown := sorted({*names, *left_out} - known):
        raise ConfigError(f"the summary has no {', '.join(unknown)}; it has {sorted(known)}")
    renamed = {name: names.get(name, name) for name in known - set(left_out)}
    if len(set(renamed.values())) < len(renamed):
        raise ConfigError(f"two methods would be called the same: {sorted(renamed.values())}")
    return summary | {
        part: [
            entry | {"policy": renamed[entry["policy"]]}
            for entry in summary[part]
            if entry["policy"] in renamed
        ]
        for part in ("policies", "comparisons")
    }


def main() -> None:
    """Enter the given summary and print its records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("summary", type=Path)
    for name in ("store", "horizon", "data", "reconstructor"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rename", action="append", default=[], metavar="POLICY=METHOD")
    parser.add_argument("--leave-out", action="append", default=[], metavar="POLICY")
    parser.add_argument("--source", action="append", default=[], metavar="METHOD=POLICY")
    parser.add_argument("--join", action="store_true")
    parser.add_argument("--out", type=Path, default=LEADERBOARD)
    wanted = parser.parse_args()
    sources: dict[str, list[str]] = {}
    for method, source in (text.split("=", 1) for text in wanted.source):
        sources.setdefault(method, []).append(source)
    summary = json.loads(wanted.summary.read_text(encoding="utf-8"))
    names = dict(text.split("=", 1) for text in wanted.rename)
    new = records_of(
        with_names(summary, names, wanted.leave_out),
        store=wanted.store,
        horizon=wanted.horizon,
        data=wanted.data,
        reconstructor=wanted.reconstructor,
        sources=sources,
    )
    old = json.loads(wanted.out.read_text(encoding="utf-8")) if wanted.out.is_file() else []
    write_json(wanted.out, entered(old, joined(old, new) if wanted.join else new))
    print(json.dumps(new, indent=2))


if __name__ == "__main__":
    main()
