"""Figures are pure, labeled, repeatable and follow the page's colors."""

import csv
import io
import re
import sys
import xml.etree.ElementTree as ET
from importlib import resources
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from kscout.figures.curves import (
    draw_curves,
    draw_differences,
    draw_entropies,
    draw_final_differences,
    draw_gammas,
    draw_snr,
    draw_ssim_by_step,
)
from kscout.figures.pictures import Shown, draw_average_policy, draw_examples, draw_reconstructions
from kscout.figures.png import montage
from kscout.figures.series import INK, SERIES, Curve, styles_of
from kscout.figures.style import house_style, new_axes, save_figure, to_inline_svg, to_svg
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

X = np.arange(7, dtype=np.float64)
CURVES = [
    Curve("greedy", X, 0.6 + 0.02 * X, 0.58 + 0.02 * X, 0.62 + 0.02 * X),
    Curve("random", X, 0.6 + 0.01 * X),
    Curve("oracle", X, 0.6 + 0.03 * X, is_oracle=True),
]
IMAGE = np.outer(np.linspace(0, 1, 9), np.linspace(0, 1, 11))
MASK = np.arange(11) % 3 == 0

FIGURES = {
    "steps": lambda: draw_ssim_by_step(CURVES),
    "differences": lambda: draw_differences(CURVES, reference="fixed"),
    "final": lambda: draw_final_differences(CURVES, reference="fixed"),
    "entropies": lambda: draw_entropies({"marginal": CURVES, "conditional": CURVES[:2]}),
    "curves": lambda: draw_curves(CURVES[:2], CURVES[:2]),
    "snr": lambda: draw_snr(CURVES[:2]),
    "gammas": lambda: draw_gammas(
        np.array([1.0, 0.0, 0.9]), np.array([0.7, 0.72, 0.73]), greedy=0.71
    ),
    "policy": lambda: draw_average_policy({"a": IMAGE, "b": IMAGE}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_axes_are_labeled_and_drawing_leaves_no_global_state(name: str) -> None:
    before = dict(mpl.rcParams)
    figure = FIGURES[name]()
    assert dict(mpl.rcParams) == before
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert all(axes.get_xlabel() for axes in panels)
    assert panels[0].get_ylabel() or panels[0].get_yticklabels()[0].get_text() == "greedy"
    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()


def test_oracles_are_dashed_in_ink_and_methods_solid_in_colors() -> None:
    lines = {line.get_label(): line for line in draw_ssim_by_step(CURVES).axes[0].get_lines()}
    assert lines["oracle"].get_linestyle() == "--" and lines["oracle"].get_color() == INK
    assert {lines[name].get_linestyle() for name in ("greedy", "random")} == {"-"}
    assert {lines[name].get_color() for name in ("greedy", "random")} <= set(SERIES)


def test_each_final_difference_is_a_row_with_its_number_and_interval() -> None:
    (axes,) = draw_final_differences(CURVES, reference="fixed").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["greedy", "random", "oracle"]
    assert [text.get_text() for text in axes.texts] == [
        "+0.7200  [+0.7000, +0.7400]",
        "+0.6600",
        "+0.7800",
    ]
    assert axes.get_xlabel() == "SSIM minus that of fixed"


def test_figures_are_drawn_in_the_colors_of_the_page() -> None:
    css = (resources.files("kscout.apps.player") / "templates" / "base.css").read_text()
    light, dark, printed = re.findall(r"--series-1: [^}]*?--series-8: #\w+", css)
    assert tuple(re.findall(r"#\w{6}", light)) == tuple(re.findall(r"#\w{6}", printed)) == SERIES
    assert len(set(re.findall(r"#\w{6}", dark))) == len(SERIES)


def test_no_two_of_twenty_methods_look_alike() -> None:
    styles = styles_of([Curve(f"m{index}", X, X) for index in range(20)])
    assert len({(style.color, style.marker) for style in styles.values()}) == 20


def test_average_policies_are_drawn_from_zero_to_one() -> None:
    fraction = np.full((3, 11), 0.25)
    shown = draw_average_policy({"a": fraction}).axes[0].images[0]
    assert (np.asarray(shown.get_array()) == 0.25).all() and shown.get_clim() == (0, 1)


def test_errors_of_all_examples_share_one_scale() -> None:
    examples = [Shown("a", MASK, IMAGE, IMAGE, 0.5), Shown("b", MASK, IMAGE + 0.3, IMAGE)]
    axes = draw_examples(examples).axes
    assert axes[3].images[0].get_clim() == axes[7].images[0].get_clim() == (0, pytest.approx(0.3))
    assert np.asarray(axes[0].images[0].get_array())[4].tolist() == MASK.tolist()


def test_a_montage_keeps_every_image() -> None:
    images = np.random.default_rng(0).random((5, 3, 4), dtype=np.float32)
    page = montage(images, n_across=3)
    assert page.shape == (8, 16)
    assert np.array_equal(page[5:8, 6:10], images[4])


def test_reconstructions_stand_above_their_masks_and_errors() -> None:
    images = {"zero-filled": IMAGE - 0.2, "unet": IMAGE}
    ssim, masks = {"zero-filled": 0.25, "unet": 1.0}, {"zero-filled": MASK, "unet": MASK}
    axes = draw_reconstructions(IMAGE, images, ssim=ssim, masks=masks).axes
    assert [a.get_title() for a in axes[:3]] == ["target", "zero-filled", "unet"]
    assert [a.get_xlabel() for a in axes[1:3]] == ["SSIM 0.2500", "SSIM 1.0000"]
    assert np.asarray(axes[4].images[0].get_array())[0].tolist() == MASK.tolist()
    assert np.asarray(axes[7].images[0].get_array()) == pytest.approx(0.2)
    assert np.asarray(axes[8].images[0].get_array()).max() == 0


def test_svg_is_the_same_twice_and_inline_svg_takes_the_pages_colors() -> None:
    figure = draw_ssim_by_step(CURVES)
    assert to_svg(figure, name="x") == to_svg(draw_ssim_by_step(CURVES), name="x")
    inline = to_inline_svg(figure, name="one", label='SSIM "by" step')
    root = ET.fromstring(inline)
    assert root.get("viewBox") and root.get("width") is None
    assert "var(--series-1)" in inline and "var(--ink)" in inline
    assert INK not in inline and not any(color in inline for color in SERIES)
    ids = re.findall(r'\bid="([^"]+)"', inline)
    referred = set(re.findall(r'(?:href="#|url\(#)([^")]+)', inline))
    assert ids and referred == set(ids)
    other = to_inline_svg(figure, name="two", label="")
    assert not referred & set(re.findall(r'\bid="([^"]+)"', other))


def test_inline_svg_is_short_and_draws_the_same() -> None:
    figure = draw_ssim_by_step(CURVES)
    whole, inline = to_svg(figure, name="x"), to_inline_svg(figure, name="x", label="")
    assert len(inline) < 0.75 * len(whole)
    for kind in ("path", "use", "text", "clipPath"):
        assert len(re.findall(f"<{kind}\\b", inline)) == len(re.findall(f"<{kind}\\b", whole))
    texts = [re.findall(r"<text[^>]*>([^<]*)<", one) for one in (inline, whole)]
    assert texts[0] == texts[1]
    places = [
        [float(x) for x in re.findall(r'<use[^>]* x="([^"]+)"', one)] for one in (inline, whole)
    ]
    assert places[0] and places[0] == pytest.approx(places[1], abs=0.006)


def test_large_pictures_are_small_on_a_page_and_masks_stay_exact() -> None:
    (large, (axes,)), (small, (other,)) = new_axes(), new_axes()
    noise = np.random.default_rng(0).random((128, 128))
    axes.imshow(noise, cmap="gray", interpolation="none")
    other.imshow(IMAGE, cmap="gray", interpolation="none")
    inline = to_inline_svg(large, name="x", label="noise")
    assert "data:image/webp" in inline and "data:image/png" not in inline
    assert len(inline) < 0.7 * len(to_svg(large, name="x"))
    kept = to_inline_svg(small, name="x", label="small")
    assert "data:image/png" in kept and "webp" not in kept


@pytest.mark.slow
def test_figures_are_saved_in_three_forms(tmp_path: Path) -> None:
    figure: Figure = FIGURES["gammas"]()
    paths = save_figure(figure, tmp_path / "figures", "gammas")
    begins = {path.suffix: path.read_bytes()[:5] for path in paths}
    assert begins == {".png": b"\x89PNG\r", ".pdf": b"%PDF-", ".svg": b"<?xml"}
    dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    for path in paths:
        again, metadata = io.BytesIO(), dates.get(path.suffix)
        with house_style(), mpl.rc_context({"svg.hashsalt": "gammas"}):
            FIGURES["gammas"]().savefig(again, format=path.suffix[1:], metadata=metadata)
        assert again.getvalue() == path.read_bytes(), path.name


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


def test_best_is_marked_among_feasible_rows_and_never_in_the_papers_columns() -> None:
    html = ET.fromstring(to_html(TABLE))
    # Both NMSE values print as 0.21: a tie as printed marks both.
    assert [cell.text for cell in html.iter("strong")] == ["0.7123", "0.21", "0.21"]
    assert [body.get("class") for body in html.iter("tbody")] == [None, "oracles"]


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
