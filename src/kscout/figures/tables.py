"""One table, written as HTML, CSV, LaTeX or Markdown.

Every form says the same: which value is best among methods that a scanner could run, which rows are
oracles, and which columns are the paper's own numbers.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal, final

from kscout.errors import unknown_name


@final
@dataclass(frozen=True)
class Measured:
    """A number with its uncertainty: a standard deviation, an interval, or neither."""

    value: float
    spread: float | None = None
    interval: tuple[float, float] | None = None


Cell = str | Measured | None


def measured(value: int | float | None, spread: int | float | None = None) -> Measured | None:
    """Return a cell for a number that may not be known."""
    if value is None:
        return None
    return Measured(float(value), None if spread is None else float(spread))


@final
@dataclass(frozen=True)
class Column:
    """How a column is named and printed."""

    name: str
    digits: int = 4
    best: Literal["max", "min"] | None = None
    is_paper: bool = False
    """The paper's own numbers: set apart, and never marked as best."""
    is_signed: bool = False
    """Differences: a plus sign is printed."""
    is_probability: bool = False
    """Small values are printed as a bound, since no test yields an exact zero."""

    def number(self, value: float) -> str:
        """Print one number with a true minus sign; what rounds to zero has none."""
        if math.isnan(value):
            return "–"
        if self.is_probability and value < 10**-self.digits:
            return f"< {10**-self.digits:g}"
        text = f"{value:{'+' if self.is_signed else ''}.{self.digits}f}"
        return text.replace("-", "−") if float(text) else text.lstrip("+-")


@final
@dataclass(frozen=True)
class Row:
    """The cells of one row, in the order of the columns."""

    cells: tuple[Cell, ...]
    is_oracle: bool = False


@final
@dataclass(frozen=True)
class Table:
    """Rows of methods under named columns; the first column is the row's name."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    name: str = field(default="table")
    """For file names and links."""

    def ordered(self) -> list[Row]:
        """Return feasible methods first, oracles after them."""
        return sorted(self.rows, key=lambda row: row.is_oracle)

    def is_best(self, row: Row, index: int) -> bool:
        """Say whether a cell is the best of its column, as printed, among rows without oracles."""
        column, value = self.columns[index], self._rounded(row, index)
        if column.best is None or column.is_paper or row.is_oracle or value is None:
            return False
        others = [self._rounded(other, index) for other in self.rows if not other.is_oracle]
        values = [other for other in others if other is not None]
        return len(values) > 1 and value == (max if column.best == "max" else min)(values)

    def _rounded(self, row: Row, index: int) -> float | None:
        cell = row.cells[index]
        if not isinstance(cell, Measured) or math.isnan(cell.value):
            return None
        return round(cell.value, self.columns[index].digits)


def plain_table(title: str, name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Lay out rows of any kind: their keys are the columns, numbers with a fraction are rounded."""
    columns = tuple(Column(key.replace("_", " ")) for key in rows[0])
    lines = tuple(Row(tuple(map(_plain_cell, row.values()))) for row in rows)
    return Table(title, columns, lines, name=name.replace("_", "-"))


def _plain_cell(value: object) -> Cell:
    if isinstance(value, float):
        return Measured(value)
    return None if value is None else str(value)


def to_html(table: Table) -> str:
    """Write the table as HTML; oracles are a body of their own under a heading row."""
    head = "".join(
        f'<th scope="col"{_kind(column, index)}>{escape(column.name)}</th>'
        for index, column in enumerate(table.columns)
    )
    bodies = []
    for is_oracle in (False, True):
        rows = [row for row in table.rows if row.is_oracle is is_oracle]
        if not rows:
            continue
        heading = (
            f'<tr class="heading"><th scope="rowgroup" colspan="{len(table.columns)}">'
            "<span>Oracles: they look at the ground truth, so they are bounds and not methods"
            "</span></th></tr>"
            if is_oracle and len(rows) < len(table.rows)
            else ""
        )
        kind = ' class="oracles"' if is_oracle else ""
        lines = "".join(_html_row(table, row) for row in rows)
        bodies.append(f"<tbody{kind}>{heading}{lines}</tbody>")
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="table" id="table-{escape(table.name)}">'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">'
        f"<table><caption>{escape(table.title)}</caption><thead><tr>{head}</tr></thead>"
        f"{''.join(bodies)}</table></div>{note}</div>"
    )


def _kind(column: Column, index: int) -> str:
    kinds = (["name"] if index == 0 else []) + (["paper"] if column.is_paper else [])
    return f' class="{" ".join(kinds)}"' if kinds else ""


def _html_row(table: Table, row: Row) -> str:
    cells = []
    for index, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
        text = _html_cell(column, cell, is_best=table.is_best(row, index))
        kind = _kind(column, index)
        cells.append(
            f'<th scope="row"{kind}>{text}</th>' if index == 0 else f"<td{kind}>{text}</td>"
        )
    return f"<tr>{''.join(cells)}</tr>"


def _html_cell(column: Column, cell: Cell, *, is_best: bool = False) -> str:
    if cell is None:
        return '<span class="none">–</span>'
    if isinstance(cell, str):
        return escape(cell)
    text = column.number(cell.value)
    if is_best:
        text = f'<strong title="best in this column">{text}</strong>'
    if cell.spread is not None:
        text += f' <span class="spread">± {column.number(cell.spread).lstrip("+")}</span>'
    if cell.interval is not None:
        low, high = (column.number(bound) for bound in cell.interval)
        text += f' <span class="interval">[{low}, {high}]</span>'
    return text


def _plain(column: Column, cell: Cell, plus_minus: str = " ± ") -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    text = column.number(cell.value)
    if cell.spread is not None:
        text += f"{plus_minus}{column.number(cell.spread).lstrip('+')}"
    if cell.interval is not None:
        low, high = (column.number(bound) for bound in cell.interval)
        text += f" [{low}, {high}]"
    return text


def to_csv(table: Table) -> str:
    """Write the table for machines: full numbers, one column each for spread and interval."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    has_oracles = any(row.is_oracle for row in table.rows)
    parts = [_csv_parts(table, index) for index in range(len(table.columns))]
    writer.writerow(
        [name for part in parts for name in part] + (["is_oracle"] if has_oracles else [])
    )
    for row in table.ordered():
        values = [
            value
            for cell, part in zip(row.cells, parts, strict=True)
            for value in _csv_values(cell, part)
        ]
        writer.writerow(values + ([str(row.is_oracle).lower()] if has_oracles else []))
    return buffer.getvalue()


def _csv_parts(table: Table, index: int) -> list[str]:
    name = table.columns[index].name
    cells = [row.cells[index] for row in table.rows]
    measured = [cell for cell in cells if isinstance(cell, Measured)]
    parts = [name]
    if any(cell.spread is not None for cell in measured):
        parts.append(f"{name} std")
    if any(cell.interval is not None for cell in measured):
        parts += [f"{name} low", f"{name} high"]
    return parts


def _csv_values(cell: Cell, parts: list[str]) -> list[str]:
    if cell is None or isinstance(cell, str):
        return [cell or ""] + [""] * (len(parts) - 1)
    values = ["" if math.isnan(cell.value) else repr(cell.value)]
    if any(part.endswith(" std") for part in parts[1:]):
        values.append("" if cell.spread is None else repr(cell.spread))
    if any(part.endswith(" low") for part in parts[1:]):
        values += ["", ""] if cell.interval is None else [repr(bound) for bound in cell.interval]
    return values


def to_markdown(table: Table) -> str:
    """Write a pipe table; the best is bold, oracles are in italics after the rest."""
    lines = [
        "| " + " | ".join(_markdown_text(column.name) for column in table.columns) + " |",
        "|"
        + "|".join("---" if index == 0 else "---:" for index in range(len(table.columns)))
        + "|",
    ]
    for row in table.ordered():
        cells = []
        for index, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
            text = _markdown_text(_plain(column, cell))
            if index == 0 and row.is_oracle:
                text = f"*{text}* (oracle)"
            cells.append(f"**{text}**" if table.is_best(row, index) else text)
        lines.append("| " + " | ".join(cells) + " |")
    note = f"\n\n{table.note}" if table.note else ""
    return f"**{table.title}**\n\n" + "\n".join(lines) + note + "\n"


def _markdown_text(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "–": "--",
    "±": r"$\pm$",
    "γ": r"$\gamma$",
    "×": r"$\times$",
    "≤": r"$\le$",
}


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def to_latex(table: Table) -> str:
    """Write a booktabs table; a rule stands between methods and oracles."""
    head = " & ".join(rf"\textbf{{{_latex_text(column.name)}}}" for column in table.columns)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        rf"  \caption{{{_latex_text(' '.join(filter(None, [table.title + '.', table.note])))}}}",
        rf"  \label{{tab:{table.name}}}",
        r"  \centering",
        rf"  \begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"    \toprule",
        rf"    {head} \\",
        r"    \midrule",
    ]
    was_oracle = False
    for number, row in enumerate(table.ordered()):
        if row.is_oracle and not was_oracle and number:
            lines.append(r"    \midrule")
        was_oracle = row.is_oracle
        lines.append(f"    {_latex_row(table, row)} " + r"\\")
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_row(table: Table, row: Row) -> str:
    cells = []
    for index, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
        text = _latex_text(_plain(column, cell))
        if index == 0 and row.is_oracle:
            text = rf"\textit{{{text}}}"
        cells.append(rf"\textbf{{{text}}}" if table.is_best(row, index) else text)
    return " & ".join(cells)


FORMATS: dict[str, Callable[[Table], str]] = {
    "html": to_html,
    "csv": to_csv,
    "latex": to_latex,
    "markdown": to_markdown,
}
EXTENSIONS = {"csv": ".csv", "latex": ".tex", "markdown": ".md"}


def write(tables: Sequence[Table], form: str) -> str:
    """Write tables one after the other in a named form."""
    if form not in FORMATS:
        raise unknown_name("format", form, list(FORMATS))
    return "\n".join(FORMATS[form](table) for table in tables)


__all__ = [
    "EXTENSIONS",
    "FORMATS",
    "Cell",
    "Column",
    "Measured",
    "Row",
    "Table",
    "measured",
    "plain_table",
    "to_csv",
    "to_html",
    "to_latex",
    "to_markdown",
    "write",
]
