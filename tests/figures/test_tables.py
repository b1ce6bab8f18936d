"""Every form of a table says the same: numbers, the best, oracles, the paper's columns."""

import csv
import io
from html.parser import HTMLParser

import pytest

from kscout.figures.tables import (
    Column,
    Measured,
    Row,
    Table,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
)

TABLE = Table(
    "Scores & more",
    (
        Column("policy"),
        Column("SSIM", best="max"),
        Column("NMSE", digits=2, best="min"),
        Column("paper", is_paper=True, best="max"),
    ),
    (
        Row(("oracle", Measured(0.9), Measured(0.01), Measured(0.99)), is_oracle=True),
        Row(("a_b|c <x>", Measured(0.71234, 0.0012), Measured(0.214), Measured(0.6))),
        Row(("second", Measured(0.7, interval=(0.68, 0.72)), Measured(0.211), None)),
    ),
    "50 % of it",
    "scores",
)


class Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.best: list[str] = []
        self.open: list[str] = []
        self.oracle_rows = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag == "tbody" and ("class", "oracles") in attrs:
            self.oracle_rows += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "elements close in the order they were opened"

    def handle_data(self, data: str) -> None:
        if "strong" in self.open:
            self.best.append(data)


def test_what_rounds_to_zero_has_no_sign() -> None:
    column = Column("difference", is_signed=True)
    numbers = [column.number(value) for value in (-4e-5, 4e-5, 0.0, -6e-5, 6e-5)]
    assert numbers == ["0.0000", "0.0000", "0.0000", "−0.0001", "+0.0001"]


def test_best_is_marked_among_feasible_rows_and_never_in_the_papers_columns() -> None:
    cells = Cells()
    cells.feed(to_html(TABLE))
    # Both NMSE values print as 0.21: a tie as printed marks both.
    assert cells.best == ["0.7123", "0.21", "0.21"]
    assert cells.oracle_rows == 1 and not cells.open


def test_csv_holds_full_numbers_and_says_which_rows_are_oracles() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    assert [row["policy"] for row in rows] == ["a_b|c <x>", "second", "oracle"]
    assert float(rows[0]["SSIM"]) == 0.71234 and float(rows[0]["SSIM std"]) == 0.0012
    assert (float(rows[1]["SSIM low"]), float(rows[1]["SSIM high"])) == (0.68, 0.72)
    assert rows[1]["paper"] == "" and rows[0]["SSIM low"] == ""
    assert [row["is_oracle"] for row in rows] == ["false", "false", "true"]


def test_latex_escapes_and_puts_a_rule_before_oracles() -> None:
    text = to_latex(TABLE)
    assert r"\textbf{0.7123 $\pm$ 0.0012}" in text
    assert r"a\_b|c <x>" in text and r"50 \% of it" not in text and r"Scores \& more" in text
    assert r"\caption{Scores \& more.}" in text and "footnotesize" not in text
    below = to_latex(TABLE, has_notes=True).partition(r"\end{tabular}")[2]
    assert r"\footnotesize" in below and r"50 \% of it" in below
    assert text.count(r"\midrule") == 2
    assert text.index(r"\midrule", text.index("second")) < text.index(r"\textit{oracle}")


def test_markdown_keeps_its_columns_whatever_names_hold() -> None:
    lines = [line for line in to_markdown(TABLE).splitlines() if line.startswith("|")]
    assert len(lines) == 5
    assert {line.replace("\\|", "").count("|") for line in lines} == {5}
    assert r"| a\_b\|c \<x\> |" in lines[2]
    assert "**0.7123 ± 0.0012**" in lines[2] and lines[4].startswith("| *oracle* (oracle)")


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (Column("d", is_signed=True), -0.00123, "−0.0012"),
        (Column("d", is_signed=True), 0.5, "+0.5000"),
        (Column("p", digits=3, is_probability=True), 0.0004, "< 0.001"),
        (Column("p", digits=3, is_probability=True), 0.04, "0.040"),
        (Column("x"), float("nan"), "–"),
        (Column("NMSE"), 0.00003217, "3.217e−05"),
        (Column("NMSE"), 0.0, "0.0000"),
        (Column("d", is_signed=True), -0.00001, "0.0000"),
    ],
)
def test_numbers_print_as_people_write_them(column: Column, value: float, text: str) -> None:
    assert column.number(value) == text
