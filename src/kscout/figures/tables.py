"""One table, written as HTML, CSV, LaTeX or Markdown.

All formats mark the best value among feasible methods, the rows of oracles, and the columns with
the paper's own numbers.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import chain
from typing import Literal, final

from kscout.errors import unknown_name


@final
@dataclass(frozen=True)
class Measured:
    """A number with its uncertainty: a standard deviation, an interval, or neither."""

    value: float
    spread: float | None = None
    interval: tuple[float, float] | None = None


Cell = str | Measured | None


def decimals(value: float, digits: int = 4) -> str:
    """Format a number with these decimals; with four significant digits if they would all be 0."""
    text = f"{value:.{digits}f}"
    return text if float(text) or not value else f"{value:.4g}"


def measured(value: int | float | None, spread: int | float | None = None) -> Measured | None:
    """Return a cell for a number that may be unknown."""
    if value is None:
        return None
    return Measured(float(value), None if spread is None else float(spread))


@final
@dataclass(frozen=True)
class Column:
    """Name and number format of a column."""

    name: str
    digits: int = 4
    best: Literal["max", "min"] | None = None
    is_paper: bool = False
    """The paper's own numbers: separate, and never marked as best."""
    is_signed: bool = False
    """Differences: with a plus sign."""
    is_probability: bool = False
    """Small values are printed as a bound, since no test gives an exact zero."""

    def number(self, value: float) -> str:
        """Format one number with a true minus sign, except for a difference rounded to zero."""
        if math.isnan(value):
            return "–"
        if self.is_probability and value < 10**-self.digits:
            return f"< {10**-self.digits:g}"
        text = f"{value:+.{self.digits}f}" if self.is_signed else decimals(value, self.digits)
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
    """Rows of methods under named columns; the first column is the name of the row."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    name: str = field(default="table")
    """Name in file names and links."""

    def parted(self) -> tuple[list[Row], list[Row]]:
        """Return the rows of feasible methods, and of oracles."""
        methods = [row for row in self.rows if not row.is_oracle]
        return methods, [row for row in self.rows if row.is_oracle]

    def ordered(self) -> list[Row]:
        """Return feasible methods first, then oracles."""
        return [row for part in self.parted() for row in part]

    def is_best(self, row: Row, index: int) -> bool:
        """Return whether a cell is the best of its column, as printed, without oracles."""
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


def plain_table(title: str, name: str, rows: Sequence[Mapping[str, object]]) -> Table:
    """Make a table of any rows: their keys are the columns, fractional numbers are rounded."""
    columns = tuple(Column(key.replace("_", " ")) for key in rows[0])
    lines = tuple(Row(tuple(map(_plain_cell, row.values()))) for row in rows)
    return Table(title, columns, lines, name=name.replace("_", "-"))


def _plain_cell(value: object) -> Cell:
    if isinstance(value, float):
        return Measured(value)
    return None if value is None else str(value)


@final
@dataclass(frozen=True)
class _Marks:
    """Markup of cells in one format."""

    text: Callable[[str], str]
    """Escapes special characters."""
    best: str
    """The best value {0} of a column, and its uncertainty {1}."""
    oracle: str = "{}"
    """The name of an oracle."""
    spread: str = " ± {}"
    interval: str = " [{}]"
    none: str = "–"


def _cells(table: Table, row: Row, marks: _Marks) -> list[str]:
    """Format the cells of a row; the best value and the name of an oracle are marked."""
    texts = []
    for index, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
        if not isinstance(cell, Measured):
            text = marks.none if cell is None else marks.text(cell)
            texts.append(marks.oracle.format(text) if row.is_oracle and index == 0 else text)
            continue
        value, rest = marks.text(column.number(cell.value)), ""
        if cell.spread is not None:
            rest += marks.spread.format(marks.text(column.number(cell.spread).lstrip("+")))
        if cell.interval is not None:
            bounds = ", ".join(column.number(bound) for bound in cell.interval)
            rest += marks.interval.format(marks.text(bounds))
        best = marks.best if table.is_best(row, index) else "{0}{1}"
        texts.append(best.format(value, rest))
    return texts


_HTML = _Marks(
    escape,
    '<strong title="best in this column">{0}</strong>{1}',
    spread=' <span class="spread">± {}</span>',
    interval=' <span class="interval">[{}]</span>',
    none='<span class="none">–</span>',
)


def to_html(table: Table) -> str:
    """Format the table as HTML; oracles are a separate body under a heading row."""
    kinds = [
        " ".join((["name"] if not index else []) + (["paper"] if column.is_paper else []))
        for index, column in enumerate(table.columns)
    ]
    classes = [f' class="{kind}"' if kind else "" for kind in kinds]

    def line(row: Row) -> str:
        first, *rest = zip(classes, _cells(table, row, _HTML), strict=True)
        cells = "".join(f"<td{kind}>{text}</td>" for kind, text in rest)
        return f'<tr><th scope="row"{first[0]}>{first[1]}</th>{cells}</tr>'

    head = "".join(
        f'<th scope="col"{kind}>{escape(column.name)}</th>'
        for kind, column in zip(classes, table.columns, strict=True)
    )
    methods, oracles = ("".join(map(line, rows)) for rows in table.parted())
    heading = (
        f'<tr class="heading"><th scope="rowgroup" colspan="{len(table.columns)}">'
        "<span>Oracles use the ground truth, so they are bounds and not methods"
        "</span></th></tr>"
        if methods
        else ""
    )
    body = f"<tbody>{methods}</tbody>" if methods else ""
    body += f'<tbody class="oracles">{heading}{oracles}</tbody>' if oracles else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="table" id="table-{escape(table.name)}">'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">'
        f"<table><caption>{escape(table.title)}</caption><thead><tr>{head}</tr></thead>"
        f"{body}</table></div>{note}</div>"
    )


def to_csv(table: Table) -> str:
    """Format the table for machines: full numbers, one column each for spread and interval."""
    rows = table.ordered()
    columns = [_csv_column(column.name, rows, i) for i, column in enumerate(table.columns)]
    if any(row.is_oracle for row in rows):
        columns.append([["is_oracle"], *([str(row.is_oracle).lower()] for row in rows)])
    buffer = io.StringIO()
    lines = (chain(*cells) for cells in zip(*columns, strict=True))
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()


def _csv_column(name: str, rows: Sequence[Row], index: int) -> list[list[str]]:
    """Return the header of one column and its cells, with spread and interval next to the value."""
    cells = [row.cells[index] for row in rows]
    measured = [cell for cell in cells if isinstance(cell, Measured)]
    has_spread = any(cell.spread is not None for cell in measured)
    has_interval = any(cell.interval is not None for cell in measured)
    names = [name, *([f"{name} std"] if has_spread else [])]
    texts = [names + ([f"{name} low", f"{name} high"] if has_interval else [])]
    for cell in cells:
        if not isinstance(cell, Measured):
            texts.append([cell or "", *[""] * (len(texts[0]) - 1)])
            continue
        values: list[float | None] = [None if math.isnan(cell.value) else cell.value]
        values += [cell.spread] if has_spread else []
        values += (cell.interval or (None, None)) if has_interval else ()
        texts.append(["" if value is None else repr(value) for value in values])
    return texts


_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|"})


def _markdown_text(text: str) -> str:
    return " ".join(text.split()).translate(_MARKDOWN)


def to_markdown(table: Table) -> str:
    """Format as a pipe table; the best is bold, oracles are in italics at the end."""
    marks = _Marks(_markdown_text, "**{0}{1}**", "*{}* (oracle)")
    rows = [[_markdown_text(column.name) for column in table.columns]]
    rows += [_cells(table, row, marks) for row in table.ordered()]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    rule = "|".join(["---", *["---:"] * (len(table.columns) - 1)])
    note = f"\n\n{table.note}" if table.note else ""
    text = "\n".join([lines[0], f"|{rule}|", *lines[1:]])
    return f"**{_markdown_text(table.title)}**\n\n{text}{note}\n"


def to_text(table: Table) -> str:
    """Format for a terminal: aligned columns, oracles marked by a star."""
    marks = _Marks(str, "{0}{1}", "{} *")
    head, *rows = [[column.name for column in table.columns]] + [
        _cells(table, row, marks) for row in table.ordered()
    ]
    widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]
    lines = [
        "  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]).rstrip()
        for cells in (head, *rows)
    ]
    foot = ["* uses the ground truth, which no scanner has"] if table.parted()[1] else []
    return "\n".join([table.title, *lines, *foot])


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"−": "$-$", "–": "--", "±": r"$\pm$", "γ": r"$\gamma$", "×": r"$\times$", "≤": r"$\le$"}
)


def _latex_text(text: str) -> str:
    return text.translate(_LATEX)


def to_latex(table: Table, *, has_notes: bool = False) -> str:
    """Format as a booktabs table; a rule separates methods and oracles."""
    marks = _Marks(_latex_text, r"\textbf{{{0}{1}}}", r"\textit{{{}}}", r" $\pm$ {}", none="--")
    head = " & ".join(rf"\textbf{{{_latex_text(column.name)}}}" for column in table.columns)
    bodies = [
        [f"    {' & '.join(_cells(table, row, marks))} " + r"\\" for row in rows]
        for rows in table.parted()
        if rows
    ]
    note = has_notes and table.note
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        rf"  \caption{{{_latex_text(table.title)}.}}",
        rf"  \label{{tab:{table.name}}}",
        r"  \centering",
        rf"  \begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        *(r"    \toprule", rf"    {head} \\"),
        *(line for body in bodies for line in (r"    \midrule", *body)),
        *(r"    \bottomrule", r"  \end{tabular}"),
        *([rf"  \par\smallskip\footnotesize {_latex_text(table.note)}"] if note else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


FORMATS: dict[str, Callable[[Table], str]] = {
    "html": to_html,
    "csv": to_csv,
    "latex": to_latex,
    "markdown": to_markdown,
}
EXTENSIONS = {"csv": ".csv", "latex": ".tex", "markdown": ".md"}


def write(tables: Sequence[Table], form: str, *, has_notes: bool = False) -> str:
    """Format tables one after the other in a named format; `has_notes` is for LaTeX."""
    if form not in FORMATS:
        raise unknown_name("format", form, list(FORMATS))
    if form == "latex":
        return "\n".join(to_latex(table, has_notes=has_notes) for table in tables)
    return "\n".join(FORMATS[form](table) for table in tables)
