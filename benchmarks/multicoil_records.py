"""What the records of `benchmarks/multicoil.py` say, in tables and sentences of docs/coils.md.

Every sentence follows from the records; where they do not decide, it says so.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from tables import markdown, number

RECORDS = Path(__file__).parent / "multicoil"
EXPECTED = ("varnet", "unet", "sense", "zero-filled")
"""Reconstructions, the best first, as was expected before there were records."""
NOTHING = "Not recorded yet.\n"
NOT_RUN = "not run"
ACCELERATIONS = ("4x", "8x")

SIMPLE = ("random", "center-out")
"""Policies that sentences compare with the fixed order; the table has them all."""

WORDS = ("SSIM", "minus fixed", "NMSE")
"""What stands under an acceleration, in this order."""

Cells = dict[tuple[str, str], dict[tuple[str, str], str]]
"""Of a store and a method: what stands under each acceleration and word."""


def image_table(records: Path = RECORDS, of: str = "*") -> str:
    """Return the table of reconstructions, by default of all stores and seeds."""
    cells: Cells = {}
    for path in sorted(records.glob(f"{of}-reconstructions-*.json")):
        for row in json.loads(path.read_text())["results"]:
            between = [float(row[key]) for key in ("ssim_low", "ssim_high") if row[key]]
            own = cells.setdefault((_store(path), row["reconstruction"]), {})
            x = f"{float(row['acceleration']):g}x"
            own[x, "SSIM"] = _cell(float(row["ssim"]), between)
            own[x, "NMSE"] = number(float(row["nmse"]))
    return _table("reconstruction", cells)


def policy_table(records: Path = RECORDS) -> str:
    """Return the table of policies, the best last, and what there is to gain below."""
    cells: Cells = {}
    headroom: Cells = {}
    for path in sorted(records.glob("*-policies-*.json")):
        found, x = json.loads(path.read_text())["results"], _acceleration(path)
        learned = _learned(path)
        own = [row for row in learned["policies"] if row["policy"] != "fixed"]
        rows = [*found["policies"], *own]
        beside = {x["policy"]: x for x in (*found["comparisons"], *learned["comparisons"])}
        for row in sorted(rows, key=lambda row: row["final"]["ssim"]["mean"]):
            name = re.sub(r"^dense-.*", "dense", row["policy"]) + " *" * row["is_oracle"]
            cell = cells.setdefault((_store(path), name), {})
            # The interval of a mean is that of volumes; differences say how policies compare.
            cell[x, "SSIM"] = number(row["final"]["ssim"]["mean"])
            if row["policy"] in beside:
                cell[x, "minus fixed"] = _difference(beside[row["policy"]])
        if not own:
            cells.setdefault((_store(path), "dense"), {})[x, "SSIM"] = NOT_RUN
        for what, one in found["headroom"].items():
            if one is not None:
                words = what.replace("na_oracle", "NA oracle").replace("_", " ")
                headroom.setdefault((_store(path), words), {})[x, "SSIM"] = _difference(one)
    below = f"\n{_table('headroom', headroom)}" if headroom else ""
    return _table("policy", cells) + below + _missing(cells)


def _missing(cells: Cells) -> str:
    """Say which accelerations no store has."""
    known = {x for row in cells.values() for x, _ in row}
    missing = [x for x in ACCELERATIONS if x not in known]
    return f"\nNo policy was run at {' and '.join(missing)}.\n" if cells and missing else ""


def _acceleration(record: Path) -> str:
    return record.stem.rpartition("-")[2]


def _store(record: Path) -> str:
    return record.name.partition("-")[0]


def _cell(mean: float, interval: Sequence[float] | None) -> str:
    return number(mean) + (f" ({' to '.join(map(number, interval))})" if interval else "")


def _difference(found: dict[str, Any]) -> str:
    between = found["interval"]
    told = f" ({' to '.join(number(x, is_signed=True) for x in between)})" if between else ""
    return number(found["difference"], is_signed=True) + told


def _table(what: str, cells: Cells) -> str:
    if not cells:
        return NOTHING
    known = {at for row in cells.values() for at in row}
    under = [(x, word) for x in ACCELERATIONS for word in WORDS if (x, word) in known]
    lines = [
        [*place, *(row.get(at, NOT_RUN if at[1] == "SSIM" else "") for at in under)]
        for place, row in cells.items()
    ]
    return markdown(["store", what, *(f"{word}, {x}" for x, word in under)], lines)


def findings(records: Path = RECORDS) -> str:
    """Return what reconstructions and policies came to, a line for each store and acceleration."""
    lines = [*_orders(records), *_gains(records), *_in_all(records)]
    return "".join(f"- {line}\n" for line in lines) or NOTHING


def _orders(records: Path) -> Iterator[str]:
    """Say of reconstructions whether they come in the order that was expected."""
    for path in sorted(records.glob("*-reconstructions-*.json")):
        rows = json.loads(path.read_text())["results"]
        ssim = {row["reconstruction"]: float(row["ssim"]) for row in rows}
        error = {row["reconstruction"]: float(row["nmse"]) for row in rows}
        best, after, *_ = sorted(ssim, key=lambda name: -ssim[name])
        named = [name for name in EXPECTED if name in ssim]
        wrong = [pair for pair in combinations(named, 2) if ssim[pair[0]] < ssim[pair[1]]]
        told = "; ".join(
            f"`{two}` comes before `{one}`, "
            f"by NMSE {'after it' if error[one] < error[two] else 'too'}"
            for one, two in wrong
        )
        order = ", ".join(f"`{name}`" for name in named)
        yield (
            f"{_place(path)}: `{best}` is first, {number(ssim[best] - ssim[after])} above "
            f"`{after}`. Expected was the order {order}: {told or 'so it came'}."
        )


def _gains(records: Path) -> Iterator[str]:
    """Say what an order and the learned policy gain, beside what there is to gain by adapting."""
    for path in sorted(records.glob("*-policies-*.json")):
        found = json.loads(path.read_text())["results"]
        simple = [one for one in found["comparisons"] if one["policy"] in SIMPLE]
        ends = [f"`{one['policy']}` {_difference(one)}" for one in simple]
        learned = [
            f"`dense`{_effort(path)} {_difference(one)}: {_verdict(one['interval'])}"
            for one in _learned(path)["comparisons"]
        ]
        told = f"{', '.join([*ends, *learned])}." + ("" if learned else " `dense` was not run.")
        if room := found["headroom"].get("oracle_minus_na_oracle"):
            told += f" Adapting by the truth gains {_difference(room)}."
        yield (
            f"{_place(path)}, policies on {found['n_slices']} slices of {found['n_volumes']} "
            f"volumes, from the fixed order: {told}"
        )


def _in_all(records: Path) -> Iterator[str]:
    """Say how often learning paid, and how room for adapting grows with the acceleration."""
    paths = sorted(records.glob("*-policies-*.json"))
    if counted := _counted(records):
        yield "**In all**: of {} trainings of `dense`, {} pay and {} cost.".format(*counted)
    rooms: dict[str, dict[str, float]] = {}
    for path in paths:
        headroom = json.loads(path.read_text())["results"]["headroom"]
        if one := headroom.get("oracle_minus_na_oracle"):
            rooms.setdefault(_store(path), {})[_acceleration(path)] = one["difference"]
    for store, own in rooms.items():
        if set(ACCELERATIONS) <= set(own):
            few, many = (own[x] for x in ACCELERATIONS)
            yield f"**{store}**: adapting by the truth gains {many / few:.1f} times as much at 8x."


def _effort(policies: Path) -> str:
    """Say how long the trained policy beside a record of others has learned."""
    path = policies.with_name(policies.name.replace("-policies-", "-policy-"))
    if not path.is_file():
        return ""
    last = json.loads(path.read_text())["results"]
    n_epochs, n_decisions = last["epoch"], last["n_decisions"]
    return f" ({n_epochs} epochs of {n_decisions:,} decisions each)"


def room(records: Path = RECORDS) -> str:
    """Return for README.md what there is to gain on coils by adapting."""
    found = []
    for path in sorted(records.glob("*-policies-4x.json")):
        one = json.loads(path.read_text())["results"]["headroom"].get("oracle_minus_na_oracle")
        if one is not None:
            kind = _store(path).rstrip("0123456789")
            found.append(f"{_difference(one)} on {kind}{'' if kind.endswith('s') else 's'}")
    if not found:
        return NOTHING
    learned = ""
    if counted := _counted(records):
        learned = (
            "Of {} policies trained there {} ended above a fixed order, {} below it.\n".format(
                *counted
            )
        )
    return (
        "With eight simulated coils and an unrolled network, adapting by a look one column ahead\n"
        f"at the truth gains {' and '.join(found)}\n"
        f"over one order fitted to the test slices ([docs/coils.md](docs/coils.md)).\n{learned}"
    )


def _counted(records: Path) -> tuple[int, int, int] | None:
    """Return how many policies were trained, how many paid and how many cost; None for none."""
    paths = sorted(records.glob("*-policies-*.json"))
    found = [_verdict(one["interval"]) for path in paths for one in _learned(path)["comparisons"]]
    return (len(found), found.count("it pays"), found.count("it costs")) if found else None


def _learned(policies: Path) -> dict[str, Any]:
    """Return the results of the trained policy beside a record of others, empty without one."""
    path = policies.with_name(policies.name.replace("-policies-", "-dense-"))
    if not path.is_file():
        return {"policies": [], "comparisons": []}
    return json.loads(path.read_text())["results"]


def _verdict(interval: Sequence[float] | None) -> str:
    if interval is None:
        return "one volume decides nothing"
    low, high = interval
    return "it pays" if low > 0 else "it costs" if high < 0 else "no difference is shown"


def _place(record: Path) -> str:
    return f"**{_store(record)}, {_acceleration(record)}**"
