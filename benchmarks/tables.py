"""Write the tables of README.md and docs from records, between their markers.

    python benchmarks/tables.py            # write them all
    python benchmarks/tables.py --check    # only say whether one differs

`tables.toml` lays them out. A cell is text in which `{ssim H/M}` stands for the final SSIM of a
method M under a horizon H, `{minus H/M}` for its difference to the fixed order with the 95 %
interval (`joint:H/M` for a method that has a network of its own), `{paper S/M}` for what the paper
prints, `{gap S}` for its oracle minus its NA oracle, and `{size NAME}` for the size of a file.
A table that has `text` in place of rows is a paragraph, filled in like a cell. One that is
`made_by` a function of a module here is what that function returns.
Records are leaderboard.json, other_results.json (evaluations that the leaderboard has no place for,
as they were written down), half_size.json (campaigns at half the paper's size) and the paper's
numbers.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from leaderboard import LEADERBOARD, LeaderboardRow, read_leaderboard
from paired import Paired

from kscout.errors import DataError
from kscout.evaluation.summaries.paper_numbers import SSIM
from kscout.files import write_text
from kscout.zoo import zoo_file

ROOT = Path(__file__).parents[1]
LAYOUT = Path(__file__).with_name("tables.toml")
OTHERS = [LEADERBOARD.with_name(name) for name in ("other_results.json", "half_size.json")]
END = "<!-- end of table -->"


def marker(name: str) -> str:
    """Return the line before a table."""
    return f"<!-- table {name}: written by benchmarks/tables.py -->"


def number(value: float, *, is_signed: bool = False) -> str:
    """Return four digits, without the zero before the point."""
    return f"{value:{'+' if is_signed else ''}.4f}".replace("0.", ".", 1)


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    first, *others = ["".join(f"| {cell}".rstrip() + " " for cell in x) for x in (head, *lines)]
    return "".join(f"{row}|\n" for row in (first, "|---" * len(head), *others))


def size(n_bytes: int) -> str:
    """Return bytes, or megabytes to two digits."""
    return f"{n_bytes} bytes" if n_bytes < 1e5 else f"{n_bytes / 1e6:.2g} MB"


def spread(mean: float, std: float | None) -> str:
    """Return a mean with its deviation over seeds, where there is one."""
    return number(mean) if std is None else f"{number(mean)} ± {number(std)}"


def difference(found: Paired) -> str:
    """Return a difference with its 95 % interval, where there is one."""
    text = number(found.difference, is_signed=True)
    return (
        text if found.interval is None else f"{text} ({' to '.join(map(number, found.interval))})"
    )


def ref_of(row: LeaderboardRow) -> str:
    """Return what a cell calls a record: `knee-base/greedy`, or `joint:knee-base/dense`."""
    kind = "" if row.reconstruction == "frozen" else f"{row.reconstruction}:"
    return f"{kind}{row.horizon}/{row.method}"


def check_alike(name: str, cells: list[str]) -> None:
    """Refuse a table that ranks methods of one network with those that have networks of their own.

    Args:
        name: of the table.
        cells: all of it.
    """
    refs = [ref for _, ref in re.findall(r"\{(ssim|minus) ([^}]+)\}", " ".join(cells))]
    if len({ref.startswith("joint:") for ref in refs}) > 1:
        raise DataError(
            f"table {name} ranks joint and frozen reconstructions together; make two of it"
        )


def filled(cell: str, records: dict[str, LeaderboardRow]) -> str:
    """Return a cell with its numbers."""

    def found(match: re.Match[str]) -> str:
        what, ref = match.groups()
        horizon, _, method = ref.partition("/")
        if what == "paper":
            return spread(*SSIM[horizon][method])
        if what == "gap":
            return number(SSIM[ref]["oracle"][0] - SSIM[ref]["na-oracle"][0], is_signed=True)
        if what == "size":
            return size(zoo_file(ref).stat().st_size)
        if ref not in records:
            raise DataError(f"tables.toml names {ref}, of which there is no record")
        row = records[ref]
        if what == "ssim":
            return spread(row.ssim_mean, row.ssim_std)
        if row.interval is None:
            return "0"
        low, high = map(number, row.interval)
        return f"{number(row.difference_to_fixed, is_signed=True)} ({low} to {high})"

    return re.sub(r"\{(ssim|minus|paper|gap|size) ([^}]+)\}", found, cell)


def tables() -> dict[str, dict[str, str]]:
    """Return the text of every table by file and name."""
    rows = [row for path in (LEADERBOARD, *OTHERS) for row in read_leaderboard(path)]
    records = {ref_of(row): row for row in rows}
    found: dict[str, dict[str, str]] = {}
    for table in tomllib.loads(LAYOUT.read_text(encoding="utf-8"))["tables"]:
        if "made_by" in table:
            module, _, function = table["made_by"].partition(":")
            text = getattr(import_module(module), function)()
        elif "text" in table:
            text = filled(table["text"], records)
        else:
            check_alike(table["name"], [cell for row in table["rows"] for cell in row])
            lines = [[filled(cell, records) for cell in row] for row in table["rows"]]
            text = markdown(table["head"], lines)
        found.setdefault(table["file"], {})[table["name"]] = text
    return found


def written(text: str, own: dict[str, str]) -> str:
    """Return a document with its tables put between their markers."""
    for name, table in own.items():
        head, begin, rest = text.partition(marker(name))
        _, end, tail = rest.partition(END)
        if not (begin and end):
            raise DataError(f"there is no place for table {name}; add {marker(name)} and {END}")
        text = f"{head}{begin}\n\n{table}\n{end}{tail}"
    return text


def main() -> int:
    """Write all tables, or tell which documents have others."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail where any differ")
    is_check, differing = parser.parse_args().check, []
    for file, own in tables().items():
        path = ROOT / file
        before = path.read_text(encoding="utf-8")
        if (after := written(before, own)) != before:
            differing.append(file)
            if not is_check:
                write_text(path, after)
    print(
        f"tables differ in: {', '.join(differing)}" if differing else "all tables are as they are"
    )
    return 1 if differing and is_check else 0


if __name__ == "__main__":
    sys.exit(main())
