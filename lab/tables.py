"""Fill the tables of README.md and docs from lab/results.csv, between their markers.

    python lab/tables.py            # write the tables
    python lab/tables.py --check    # exit with status 1 if a page differs

A page contains `<!-- table NAME -->` and `<!-- /table -->`; tables.toml defines the tables.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from results import Row, read_results, select

ROOT = Path(__file__).parents[1]
LAYOUT = Path(__file__).with_name("tables.toml")
MARKERS = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def number(text: str, *, sign: bool = False, digits: int = 4) -> str:
    """Format a number without the zero before the point."""
    return re.sub(r"^([+-]?)0\.", r"\1.", f"{float(text):{'+' if sign else ''}.{digits}f}")


def _short(row: Row) -> str:
    return number(row.difference, sign=True) if row.difference else "-"


def _difference(row: Row) -> str:
    interval = f" ({number(row.low)} to {number(row.high)})" if row.low else ""
    return _short(row) + interval


CELLS: Mapping[str, Callable[[Row], str]] = {
    "value": lambda row: number(row.value),
    "value3": lambda row: number(row.value, digits=3),
    "difference": _difference,
    "short": _short,
    "decibel": lambda row: f"{float(row.value):.2f}",
    "seeds": lambda row: row.n_seeds,
    "minutes": lambda row: f"{float(row.seconds) / 60:.1f}" if row.seconds else "-",
    "ms": lambda row: f"{float(row.value):,.{0 if float(row.value) >= 50 else 1}f}",
}
"""What a cell shows of its row; `gap` is the position between NA oracle and oracle."""


def _parsed(*queries: str) -> dict[str, str]:
    """Parse texts such as `experiment=joint; method=fixed|dense`; later ones take precedence."""
    pairs = (part.partition("=") for query in queries for part in query.split("; ") if part)
    return {key: value for key, _, value in pairs}


def _find(rows: Sequence[Row], query: Mapping[str, str]) -> Row | None:
    """Return the row over most seeds of those that a query selects."""
    methods = query["method"].split("|") if "method" in query else [None]
    found = [
        row
        for method in methods
        for row in select(rows, **({**query, "method": method} if method else query))
    ]
    return max(found, key=lambda row: int(row.n_seeds or 1), default=None)


def _cell(rows: Sequence[Row], query: dict[str, str]) -> str:
    kind = query.pop("cell")
    row = _find(rows, query)
    if kind != "gap":
        return "-" if row is None else CELLS[kind](row)
    low, high = (_find(rows, {**query, "method": name}) for name in ("na-oracle", "oracle"))
    if row is None or low is None or high is None:
        return "-"
    bottom, top = float(low.value), float(high.value)
    return f"{100 * (float(row.value) - bottom) / (top - bottom):.0f} %"


def table(layout: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Format a table; columns of numbers are aligned to the right."""
    lines = [[layout["head"], *layout["columns"]], ["---", *["---:"] * len(layout["columns"])]]
    for label, line in layout["lines"].items():
        queries = [(layout["query"], column, line) for column in layout["columns"].values()]
        lines.append([label, *(_cell(rows, _parsed(*query)) for query in queries)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tables() -> dict[str, str]:
    """Return the tables by name."""
    rows = read_results()
    layouts = tomllib.loads(LAYOUT.read_text(encoding="utf-8"))
    return {name: table(layout, rows) for name, layout in layouts.items()}


def differing(*, write: bool) -> list[str]:
    """Return the pages whose tables differ from results.csv; `write` corrects them."""
    found, texts = [], tables()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        new = MARKERS.sub(lambda match: f"{match[1]}\n{texts[match[2]]}\n{match[3]}", text)
        if new != text:
            found.append(str(page.relative_to(ROOT)))
            if write:
                page.write_text(new, encoding="utf-8")
    return found


def main() -> int:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    pages = ", ".join(differing(write=not check))
    if pages and check:
        print(f"Tables differ from lab/results.csv in {pages}; run python lab/tables.py.")
        return 1
    print(f"Wrote the tables in {pages}." if pages else "All tables agree with lab/results.csv.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
