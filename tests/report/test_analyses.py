"""Tables of the analyses, as evaluation writes them, become sections of the page."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kscout.apps.player import save_acquisition
from kscout.apps.report.build import build_report, write_report
from kscout.apps.report.page import drawings_of
from kscout.errors import DataError
from kscout.evaluation.analyses import Page, write_table
from kscout.evaluation.analyses.average_policy import AveragePolicies, PolicyRow
from kscout.evaluation.analyses.curves import Curves
from kscout.evaluation.analyses.entropy import Entropy, EntropyRow, entropies, entropy_rows
from kscout.evaluation.analyses.examples import Example, ExampleRow, Examples, save_examples
from kscout.evaluation.analyses.gammas import GammaRow, Gammas
from kscout.evaluation.analyses.masks import MaskRow, Masks
from kscout.evaluation.analyses.snr import Snr, SnrRow
from kscout.evaluation.analyses.unexplored import Unexplored, tally_states, unexplored_rows
from kscout.evaluation.records.results import writing_results
from kscout.figures.blocks import Drawing
from kscout.figures.tables import Measured, Table, to_csv
from synthetic_results import (
    N_COLS,
    N_INITIAL,
    STEPS,
    make_acquisition,
    make_scores,
    write_evaluation,
    write_run,
)


def write_analyses(folder: Path, n_initial: int = N_INITIAL, steps: int = STEPS) -> Path:
    """Write tables of several analyses."""
    average = [
        PolicyRow("greedy", step, column, 0.5, None) for step in (1, 2, 3) for column in range(7)
    ]
    write_table(folder, AveragePolicies, average)
    draws = torch.rand(3, 2, 5, 4, 7, generator=torch.Generator().manual_seed(0))
    by_seed = [entropies(draw.softmax(dim=-1)) for draw in draws.transpose(1, 2)]
    write_table(folder, Entropy, entropy_rows("greedy", by_seed))
    ratios = (3.0, 1.0, 3.0, 0.0)
    noise = [SnrRow("greedy", 0, x, 3, 4, *ratios, n_initial, steps) for x in (1, 10, 13)]
    write_table(folder, Snr, noise)
    gammas = (("g", None, 0.71), ("a", 0.9, 0.72), ("b", 1.0, 0.7))
    rows = [
        GammaRow(
            *(name, "greedy" if gamma is None else "ngreedy", gamma, n_initial, steps, 2),
            *(ssim, 0.001, 30.0, 0.001),
        )
        for name, gamma, ssim in gammas
    ]
    write_table(folder, Gammas, rows)
    image = np.ones((9, 11), dtype=np.float32)
    example = Example("greedy", 0, "v", 3, np.arange(11) > 5, image, image * 0.5, 0.9)
    save_examples(folder / "examples.npz", [example])
    write_table(folder, Examples, [ExampleRow.of(example)])
    return folder


def test_every_analysis_has_its_section(tmp_path: Path) -> None:
    sections = build_report([write_analyses(tmp_path)]).sections
    titles = {"Average policy", "Adaptivity", "Gradient noise", "Discount", "Examples"}
    assert {section.title for section in sections} == titles
    names = {drawing.name for drawing in drawings_of(sections)}
    assert names == {"average-policy", "entropies", "gradient-snr", "discount", "examples"}


def test_runs_of_every_kind_have_learning_curves_of_their_own(tmp_path: Path) -> None:
    for kind in ("policy", "joint", "reconstructor"):
        config = write_run(tmp_path / kind) / "config.toml"
        config.write_text(config.read_text().replace('"policy"', f'"{kind}"'))
    sections = build_report([tmp_path]).sections
    assert [drawing.name for drawing in drawings_of(sections)] == [
        "learning-curves",
        "learning-curves-joint",
        "learning-curves-reconstructor",
    ]
    alone = drawings_of(build_report([tmp_path / "joint"]).sections)
    assert [drawing.name for drawing in alone] == ["learning-curves-joint"]


def tables_at(folder: Path, n_cols: int, protocol: str = "paper") -> dict[str, Table]:
    """The tables of analyses beside an evaluation of 16 + 16 columns."""
    write_analyses(folder / "analyses", n_initial=16, steps=16)
    write_evaluation(folder / "base", n_cols=n_cols, n_initial=16, steps=16, protocol=protocol)
    return {table.name: table for table in build_report([folder]).tables}


@pytest.mark.slow
@pytest.mark.parametrize(("n_cols", "protocol"), [(96, "paper"), (128, "blind")])
def test_the_papers_columns_stand_next_to_its_size_and_protocol_only(
    tmp_path: Path, n_cols: int, protocol: str
) -> None:
    other = tables_at(tmp_path / "other", n_cols, protocol)
    same = tables_at(tmp_path / "same", n_cols=128)
    for name in ("policies", "gradient-snr", "discount"):
        assert any(column.is_paper for column in same[name].columns), name
        assert not any(column.is_paper for column in other[name].columns), name
        assert "not shown: they are for 16 + 16 of 128 columns" in other[name].note
        assert "not shown" not in same[name].note


def test_numbers_stand_next_to_the_papers_of_the_same_epoch_policy_or_discount(
    tmp_path: Path,
) -> None:
    tables = tables_at(tmp_path, n_cols=128)
    first, tenth, other = tables["gradient-snr"].rows
    assert first.cells == ("1", Measured(3.0, 1.0), Measured(2.21, 0.24))
    assert tenth.cells[2] == Measured(3.20, 0.10) and other.cells[2] is None
    psnr = {row.cells[0]: row.cells[-1] for row in tables["policies"].rows}
    assert (psnr["oracle"], psnr["na-oracle"]) == (Measured(27.5), Measured(27.21))
    assert psnr["greedy"] is None and tables["policies"].columns[-1].is_paper
    lines = to_csv(tables["discount"]).splitlines()
    assert lines[1].startswith("g,greedy,2,0.71,0.001") and lines[1].endswith("0.723,0.0001")
    assert lines[2].startswith("a,γ = 0.9,2,0.72,0.001") and lines[2].endswith("0.7232,0.0002")


@pytest.mark.slow
def test_ratios_of_two_horizons_stand_next_to_the_papers_own(tmp_path: Path) -> None:
    means = {(16, 16): 2.21, (4, 28): 2.46}
    for start, steps in means:
        row = SnrRow("greedy", 4, 1, 3, 9, 5.0, 0.5, 6.0, 0.5, start, steps, n_seeds=5)
        write_table(tmp_path / f"{start}", Snr, [row])
        write_evaluation(tmp_path / f"e{start}", n_cols=128, n_initial=start, steps=steps)
    found = [one for one in build_report([tmp_path]).tables if "gradient-snr" in one.name]
    assert len(found) == 2
    for table, mean in zip(found, means.values(), strict=True):
        (line,) = table.rows
        assert isinstance(line.cells[2], Measured) and line.cells[2].value == mean
        assert "Of up to 5 seeds of a method, the one with the highest validation" in table.note
    both = [
        SnrRow("greedy", 0, epoch, 3, 9, 5.0, 0.5, 6.0, 0.5, *where)
        for where in means
        for epoch in (1, 10)
    ]
    page = Page(settings={(16, 16): "knee-base", (4, 28): "knee-long"})
    blocks = Snr.blocks(both, page, tmp_path)
    names = ["gradient-snr-16-16-columns", "gradient-snr-4-28-columns"]
    assert [block.name for block in blocks if isinstance(block, Table)] == names


def test_entropies_of_many_discounts_are_divided_at_one_half(tmp_path: Path) -> None:
    gammas = ("0", "0.1", "0.2", "0.5", "0.8", "0.9", "1")
    names = ["greedy", *(f"ngreedy-{gamma}" for gamma in gammas)]
    rows = [
        EntropyRow(name, step, 1, 2.0, None, 1.0, None, 1.0, None)
        for name in names
        for step in (1, 2)
    ]
    drawings = [x for x in Entropy.blocks(rows, Page(), tmp_path) if isinstance(x, Drawing)]
    labels = {
        one.name: [line.get_label() for line in one.drawn.axes[0].get_lines()] for one in drawings
    }
    assert labels == {"entropies-low": names[:5], "entropies-high": [names[0], *names[4:]]}
    assert "up to .5" in drawings[0].caption and ".5 and more" in drawings[1].caption
    (whole,) = Entropy.blocks([row for row in rows if row.policy in names[:3]], Page(), tmp_path)
    assert isinstance(whole, Drawing) and whole.name == "entropies"


def test_unexplored_columns_have_a_table_with_every_policy(tmp_path: Path) -> None:
    gains = torch.tensor([[0.1, 0.4], [0.3, 0.1]])
    some, other = (
        tally_states(gains, torch.tensor([[1 - p, p]] * 2), rare=0.01) for p in (0.0, 0.5)
    )
    write_table(tmp_path, Unexplored, unexplored_rows({"greedy": some, "random": other}))
    (section,) = build_report([tmp_path]).sections
    (table,) = section.blocks
    assert isinstance(table, Table) and section.title == "Unexplored columns"
    rows = [row.cells[:2] for row in table.rows]
    assert rows == [("greedy", "any"), ("random", "any"), ("greedy", "1")]
    shares = (Measured(0.5), Measured(0.5))
    assert table.rows[2].cells[2:4] == shares and table.rows[1].cells[4:] == (None, None)

    for file in list(tmp_path.glob("unexplored*")):
        in_0_2 = file.with_name(file.name.replace("unexplored", "overlooked"))
        in_0_2.write_text(file.read_text().replace("unexplored", "overlooked"))
        file.unlink()
    assert build_report([tmp_path]).sections == (section,)


def test_the_average_policy_of_an_evaluation_is_drawn_without_an_analysis(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "base")
    scores = [one for one in make_scores() if one.policy in ("greedy", "ngreedy-0.9")]
    with writing_results(folder / "results.csv") as writer:
        for one in scores:
            n_slices = len(one.slices)
            columns = np.broadcast_to(np.arange(STEPS), (n_slices, 1, STEPS))
            metrics = one.values[:, None]
            writer.write(one.policy, one.seed, columns, metrics, one.volumes, one.slices)
    sections = {section.title: section for section in build_report([tmp_path]).sections}
    (drawing,) = sections["Average policy"].blocks
    assert isinstance(drawing, Drawing)
    panels = [axes for axes in drawing.drawn.axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in panels] == ["greedy", "ngreedy-0.9"]
    picture = np.asarray(panels[0].images[0].get_array())
    # Column t is acquired in step t, and stays; the start is white from the beginning.
    expected = np.tri(STEPS, N_COLS)
    start = (N_COLS - N_INITIAL + 1) // 2
    expected[:, start : start + N_INITIAL] = 1
    assert (picture == expected).all()


def test_removed_analyses_are_shown_as_they_are_and_other_files_passed_over(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "base")
    (folder / "other.json").write_text(json.dumps([{"a": 1}]))
    cost, ranking = [{"policy": "greedy", "time_s": 3.5}], {"base": {"rows": []}}
    for name, document in (("cost", cost), ("ranking", ranking)):
        (folder / f"{name}.json").write_text(json.dumps(document))
        (folder / f"{name}.settings.json").write_text(json.dumps({"analysis": name}))
    *others, section = build_report([tmp_path]).sections
    assert [one.title for one in others] == ["Difference to fixed", "Scores", "SSIM by step"]
    (table,) = section.blocks
    assert isinstance(table, Table) and section.title == "cost"
    assert "cost is not part of this version of kscout" in table.note
    assert "greedy,3.5" in to_csv(table)


def test_tables_of_one_kind_keep_their_folders_names(tmp_path: Path) -> None:
    for horizon in ("16+2", "4+3"):
        folder = write_analyses(tmp_path / horizon)
        run = write_run(tmp_path / "runs" / horizon / "greedy")
        write_table(folder, Curves, Curves().compute([str(run)]))
    report = build_report([tmp_path / "16+2", tmp_path / "4+3"])
    blocks = [*report.tables, *drawings_of(report.sections)]
    names = [f"{type(block).__name__} {block.name}" for block in blocks]
    assert len(set(names)) == len(names) == 2 * (2 + 6)
    assert all(block.name.startswith(("16-2-", "4-3-")) for block in blocks)
    captions = [drawing.caption for drawing in drawings_of(report.sections)]
    assert all(caption.startswith(("16+2. ", "4+3. ")) for caption in captions)
    paths = write_report(report, tmp_path / "r.csv", form="csv")
    assert len(set(paths)) == 4


ORDER = np.zeros((2, 1, 7), dtype=np.int16)


@pytest.mark.parametrize(
    ("order", "name"),
    [
        (ORDER[0], "masks/a"),
        (ORDER[:0], "masks/a"),
        (np.full((2, 1, 7), np.nan), "masks/a"),
        (np.array(3), "masks/a"),
        (ORDER.astype(str), "masks/a"),
        (ORDER, "../a"),
        (ORDER, "masks/../../a"),
    ],
)
def test_masks_that_are_none_are_rejected(tmp_path: Path, order: np.ndarray, name: str) -> None:
    folder = tmp_path / "analyses"
    for place in (tmp_path, folder / "masks"):
        place.mkdir(exist_ok=True, parents=True)
        np.savez(place / "a.npz", order=order)
    write_table(folder, Masks, [MaskRow("base", "greedy", 0, 2, 1, 0.0, name)])
    with pytest.raises(DataError, match="holds no masks"):
        build_report([folder])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mask", np.full((1, 11), np.nan)),
        ("mask", np.ones((1, 3, 11), dtype=bool)),
        ("image", np.full((1, 9, 11), np.nan)),
        ("image", np.ones((1, 9, 12))),
        ("target", np.full((1, 9, 11), np.inf)),
        ("ssim", np.ones((1, 2))),
    ],
)
def test_damaged_examples_are_rejected(tmp_path: Path, name: str, value: np.ndarray) -> None:
    path = write_analyses(tmp_path) / "examples.npz"
    np.savez(path, **{**np.load(path), name: value})
    with pytest.raises(DataError, match=r"examples\.npz is damaged"):
        build_report([tmp_path])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", np.full((9, 7), np.nan)),
        ("target", np.ones((0, 0))),
        ("top", np.array(np.nan)),
        ("ssim_0", np.full(3, np.nan)),
        ("columns_0", np.array([10**12, 1])),
        ("start_columns", np.array([3, 3])),
        ("steps", np.array([0, 1, 10**12])),
    ],
)
def test_damaged_acquisitions_are_rejected(tmp_path: Path, name: str, value: np.ndarray) -> None:
    path = tmp_path / "acquisition.npz"
    save_acquisition(make_acquisition(), path)
    np.savez(path, **{**np.load(path), name: value})
    with pytest.raises(DataError, match="is not a recorded acquisition"):
        build_report([tmp_path])
