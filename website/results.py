"""The page of results, from the records of the leaderboard."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from matplotlib.figure import Figure

from benchmarks.leaderboard import LeaderboardRow, read_leaderboard
from kscout.figures.curves import draw_final_differences
from kscout.figures.series import Curve, mark_oracle
from kscout.names import POLICIES

_HEAD = """# Leaderboard

Drawn from [benchmarks/leaderboard.json](../../benchmarks/leaderboard.json) while the site is
built. All methods of a table were scored on the same images. Differences are to `fixed`, an order
fitted on training data, with 95 % intervals over volumes
([statistics](../concepts/statistics.md)). Oracles use the ground truth: no scanner can run them.
`gap closed` is the share of the way from `na-oracle`, the best order of the test images themselves,
to `oracle`, which chooses anew for every image.

Names: `greedy` and `gamma-0.9` are the paper's ways to train, on the paper's number of images, at
the last epoch; with `-best` at the best epoch by validation. `knee-base-greedy`, `knee-base-column`
and the like come with kscout ([the zoo](../zoo.md)). `dense` are three seeds of [dense
gains](../dense.md) on the paper's number of images; `dense-conv` is the paper's network trained
so, and other names that begin like that are ablations with one seed. `dense-4x`, of which
`knee-base-column` is one seed, `dense-large`, with five times the weights, and `knee-base-greedy`
had four times the paper's number of images. [Which policy to
take](../concepts/policies.md#which-one-to-take).

The images are procedural knees and slices cut from a few real heads, not the paper's data;
[Reproduce the paper](../reproduce.md) says what follows from that.
"""
_NETWORKS = {
    "frozen": "All methods share one reconstruction network.",
    "joint": "Each method learned together with a network of its own.",
}
_TITLES = {
    ("knee-paper-size", "knee-base", "frozen"): "Knees, 16 + 16 columns",
    ("knee-paper-size", "knee-base", "joint"): "Knees, 16 + 16 columns, learned together",
    ("knee-paper-size", "knee-long", "frozen"): "Knees, 4 + 28 columns",
    ("heads", "heads-base", "frozen"): "Heads, 16 + 16 columns",
    ("heads-small", "heads-small-base", "frozen"): "Heads from coarser copies, 16 + 16 columns",
}
"""Of tables, by their place, in the order of the page; others follow under plain names."""


def tables() -> dict[str, list[LeaderboardRow]]:
    """Return the rows of each table by a name of its own."""
    order = list(_TITLES)
    rows = sorted(
        read_leaderboard(),
        key=lambda row: (order.index(row.place) if row.place in order else len(order), row.place),
    )
    return {"-".join(place): list(own) for place, own in groupby(rows, lambda row: row.place)}


def results_page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *(_section(name, rows) for name, rows in tables().items())])


def result_drawings() -> dict[str, Figure]:
    """Return the drawing of each table by its name."""
    return {f"results-{name}": _drawn(rows) for name, rows in tables().items()}


def _drawn(rows: Sequence[LeaderboardRow]) -> Figure:
    return draw_final_differences([_curve(row) for row in rows if row.interval], reference="fixed")


def _curve(row: LeaderboardRow) -> Curve:
    assert row.interval is not None
    low, high = row.interval
    values = (np.array([value]) for value in (0.0, row.difference_to_fixed, low, high))
    return Curve(row.method, *values, is_oracle=_is_oracle(row.method))


def _is_oracle(method: str) -> bool:
    return method in POLICIES and POLICIES[method].is_oracle


def _section(name: str, rows: Sequence[LeaderboardRow]) -> str:
    first = rows[0]
    best = sorted(rows, key=lambda row: -row.ssim_mean)
    commands = "".join(f"    {row.command}\n" for row in best)
    title = _TITLES.get(first.place, f"{first.horizon} on {first.store}, {first.reconstruction}")
    return f"""
## {title}

{_NETWORKS[first.reconstruction]} Records: store `{first.store}`, horizon `{first.horizon}`.

<!-- drawing results-{name}: SSIM of each method minus that of the fixed order, with intervals -->

| method | seeds | SSIM | minus `fixed` | gap closed |
|---|---|---|---|---|
{"".join(_line(row) for row in best)}
??? note "The commands that evaluate them again"

{"".join(f"    {line}" + chr(10) for line in commands.splitlines())}"""


def _line(row: LeaderboardRow) -> str:
    method = mark_oracle(row.method) if _is_oracle(row.method) else row.method
    spread = "" if row.ssim_std is None else f" ± {row.ssim_std:.4f}"
    compared = "0"
    if row.interval is not None:
        low, high = row.interval
        compared = f"{row.difference_to_fixed:+.4f}&nbsp;({low:+.4f}&nbsp;to&nbsp;{high:+.4f})"
    gap = "" if row.gap_closed is None else f"{row.gap_closed:.0%}"
    return f"| {method} | {row.n_seeds} | {row.ssim_mean:.4f}{spread} | {compared} | {gap} |\n"
