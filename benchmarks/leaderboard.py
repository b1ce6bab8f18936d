"""Enter an evaluation into benchmarks/leaderboard.json, one record per store, horizon and method.

A record's `reconstruction` says whether the policies of its table share one network (`frozen`), or
each learned together with its own (`joint`, entered by joint.py). The two are never ranked in one
table: methods of the same name may stand in both.

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, final

from kscout.config import read, to_table
from kscout.errors import ConfigError
from kscout.evaluation.summaries.summarize import gap_closed
from kscout.evaluation.summaries.summary import PolicySummary, Summary, read_summary
from kscout.files import write_json

LEADERBOARD = Path(__file__).with_name("leaderboard.json")
REFERENCE = "fixed"
BOUNDS = ("na-oracle", "oracle")
STORES = {"knee": "knee-paper-size"}
"""Names here of stores that are called otherwise in commands."""


@final
@dataclass(frozen=True)
class LeaderboardRow:
    """What one method reached on one store under one horizon."""

    store: str
    horizon: str
    method: str
    n_seeds: int
    ssim_mean: float
    ssim_std: float | None
    gap_closed: float | None
    difference_to_fixed: float
    interval: tuple[float, float] | None
    """Of the difference; None for the fixed order itself."""
    command: str
    """What evaluates the method again."""
    reconstruction: Literal["frozen", "joint"] = "frozen"
    """Whether all methods of the table share a network, or each learned together with its own. In
    the latter case differences are to the fixed order that was refitted with its own network."""

    @property
    def place(self) -> tuple[str, str, str]:
        """The table that the row is ranked in."""
        return self.store, self.horizon, self.reconstruction


def read_leaderboard(path: Path = LEADERBOARD) -> list[LeaderboardRow]:
    """Return all rows; none where there is no file yet."""
    if not path.is_file():
        return []
    return [read(LeaderboardRow, row) for row in json.loads(path.read_text(encoding="utf-8"))]


def frozen_rows(path: Path = LEADERBOARD) -> list[LeaderboardRow]:
    """Return the rows whose methods share a network."""
    return [row for row in read_leaderboard(path) if row.reconstruction == "frozen"]


def write_leaderboard(rows: Sequence[LeaderboardRow], path: Path = LEADERBOARD) -> None:
    """Write all rows whole."""
    write_json(path, [to_table(row, nulls=True) for row in rows])


def rows_of(
    summary: Summary,
    *,
    store: str,
    horizon: str,
    data: str,
    reconstructor: str,
    sources: Mapping[str, Sequence[str]],
) -> list[LeaderboardRow]:
    """Return the rows of all methods, best first.

    Args:
        summary: of the evaluation.
        store: its name on the leaderboard.
        horizon: the acquisition's name on the leaderboard.
        data: the store as the commands name it.
        reconstructor: the reconstruction as the commands name it.
        sources: by method, what the commands name as its policies, one per seed.
    """
    _check_whole(summary)
    found = []
    for entry in summary.policies:
        places = (data, reconstructor, f"results/{horizon}/{entry.policy}")
        command = _command(summary, places, _policies(entry, sources.get(entry.policy, ())))
        found.append(row_of(summary, entry, store=store, horizon=horizon, command=command))
    return sorted(found, key=lambda row: -row.ssim_mean)


def row_of(
    summary: Summary, entry: PolicySummary, *, store: str, horizon: str, command: str
) -> LeaderboardRow:
    """Return the row of one method of an evaluation."""
    ssim, compared = entry.final["ssim"], summary.comparison(entry.policy)
    return LeaderboardRow(
        store=store,
        horizon=horizon,
        method=entry.policy,
        n_seeds=entry.n_seeds,
        ssim_mean=ssim.mean,
        ssim_std=ssim.std,
        gap_closed=entry.gap_closed,
        difference_to_fixed=compared.difference if compared else 0.0,
        interval=compared.interval if compared else None,
        command=command,
    )


def _check_whole(summary: Summary) -> None:
    if summary.reference != REFERENCE:
        raise ConfigError(
            f"the summary compares with {summary.reference!r}; evaluate with "
            f"--reference {REFERENCE}"
        )
    if summary.limit is not None:
        raise ConfigError(
            f"the summary is of {summary.limit} slices; evaluate without --limit, "
            "because a leaderboard is of whole test sets"
        )


def _policies(entry: PolicySummary, sources: Sequence[str]) -> list[str]:
    """Return what a command names to evaluate one method, labeled where the name would differ."""
    method, n_seeds = entry.policy, entry.n_seeds
    if entry.training is not None and len(sources or [method]) != n_seeds:
        raise ConfigError(
            f"{method!r} has {n_seeds} seeds; name {n_seeds} policies with --source {method}=POLICY"
        )
    return [f"{method}={source}" for source in sources] or [method]


def _command(summary: Summary, places: tuple[str, str, str], policies: Sequence[str]) -> str:
    """Return what evaluates one method as this summary did."""
    data, reconstructor, out = places
    n_trajectories = max(entry.n_trajectories for entry in summary.policies)
    words = [
        "kscout evaluate",
        *(f"--data {data}", f"--reconstructor {reconstructor}", f"--split {summary.split}"),
        *(f"--n-initial {summary.n_initial}", f"--steps {summary.steps}"),
        *(f"--policy {one}" for one in dict.fromkeys([*policies, REFERENCE])),
        "--argmax" if summary.is_argmax else f"--trajectories {n_trajectories}",
        *(f"--seed {seed}" for seed in summary.draw_seeds),
        *(f"--protocol {summary.protocol}", f"--reference {REFERENCE}"),
        f"--out {out}",
    ]
    return " ".join(words)


def entered(rows: Sequence[LeaderboardRow], new: Sequence[LeaderboardRow]) -> list[LeaderboardRow]:
    """Return old and new rows; new ones drive out all old ones of their store and horizon."""
    places = {row.place for row in new}
    kept = [row for row in rows if row.place not in places]
    # Stable: rows of one horizon stay best first.
    return sorted([*kept, *new], key=lambda row: row.place)


def joined(rows: Sequence[LeaderboardRow], new: Sequence[LeaderboardRow]) -> list[LeaderboardRow]:
    """Return new rows of one store and horizon and, best first, those that it has besides."""
    methods = {row.method for row in new}
    place = new[0].place
    own = {row.method: row for row in rows if row.place == place}
    if REFERENCE not in own:
        raise ConfigError(f"no evaluation of {place} is there to join; enter it without --join")
    for row in new:
        is_fitted_alike = row.method in (REFERENCE, *BOUNDS)
        if is_fitted_alike and row.method in own and own[row.method].ssim_mean != row.ssim_mean:
            raise ConfigError(
                f"{row.method!r} scores {row.ssim_mean} here and {own[row.method].ssim_mean} on "
                "the leaderboard; evaluate all methods together and enter them without --join"
            )
    kept = [row for method, row in own.items() if method not in methods]
    ssim = {row.method: row.ssim_mean for row in [*kept, *new]}
    low, high = (ssim.get(name) for name in BOUNDS)
    added = [replace(row, gap_closed=gap_closed(row.ssim_mean, low, high)) for row in new]
    return sorted([*kept, *added], key=lambda row: -row.ssim_mean)


def join(new: LeaderboardRow, fixed_ssim: float) -> None:
    """Join a record to the leaderboard, if the fixed order scored with it as it did there."""
    rows = read_leaderboard()
    fixed = next(x for x in rows if (x.place, x.method) == (new.place, REFERENCE))
    write_leaderboard(entered(rows, joined(rows, [new, replace(fixed, ssim_mean=fixed_ssim)])))


def with_names(
    summary: Summary, names: Mapping[str, str], left_out: Collection[str] = ()
) -> Summary:
    """Return a summary under other names of its policies, and without some of them."""
    known = {entry.policy for entry in summary.policies}
    if unknown := sorted({*names, *left_out} - known):
        raise ConfigError(f"the summary has no {', '.join(unknown)}; it has {sorted(known)}")
    renamed = {name: names.get(name, name) for name in known - set(left_out)}
    if len(set(renamed.values())) < len(renamed):
        raise ConfigError(f"two methods would be called the same: {sorted(renamed.values())}")
    entries, pairs = (
        [replace(one, policy=renamed[one.policy]) for one in part if one.policy in renamed]
        for part in (summary.policies, summary.comparisons)
    )
    return replace(summary, policies=tuple(entries), comparisons=tuple(pairs))


def main() -> None:
    """Enter the given summary and print its rows."""
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
    names = dict(text.split("=", 1) for text in wanted.rename)
    new = rows_of(
        with_names(read_summary(wanted.summary), names, wanted.leave_out),
        store=wanted.store,
        horizon=wanted.horizon,
        data=wanted.data,
        reconstructor=wanted.reconstructor,
        sources=sources,
    )
    old = read_leaderboard(wanted.out)
    write_leaderboard(entered(old, joined(old, new) if wanted.join else new), wanted.out)
    print(json.dumps([to_table(row, nulls=True) for row in new], indent=2))


if __name__ == "__main__":
    main()
