"""From folders to one page that needs nothing else, or to tables and figures."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import kscout
from kscout.apps.player import save_acquisition
from kscout.apps.report.build import build_report, search, write_report
from kscout.apps.report.evaluations import facts_html
from kscout.apps.report.page import Front, write_page
from kscout.errors import DataError
from kscout.evaluation.analyses import run_analysis
from kscout.evaluation.analyses.curves import Curves
from kscout.evaluation.summaries.summary import policy_table
from kscout.figures.blocks import Drawing, Prose, Section, Widget
from kscout.figures.tables import Table
from synthetic_results import make_acquisition, make_summary, write_evaluation, write_run


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    save_acquisition(make_acquisition(), write_evaluation(folder / "base") / "acquisition.npz")
    for seed in range(2):
        write_run(folder / f"greedy-seed{seed}", seed=seed)
    return folder


@pytest.fixture(scope="module")
def page(results: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the text of a page of all results."""
    path = tmp_path_factory.mktemp("page") / "deep" / "report.html"
    (page,) = write_report(build_report([results]), path)
    return page.read_text()


def titles(folder: Path | str) -> list[str]:
    return [section.title for section in build_report([folder]).sections]


def test_a_section_appears_only_where_there_is_data(results: Path) -> None:
    scores = ["Difference to fixed", "Scores", "SSIM by step"]
    assert titles(results) == ["One acquisition, step by step", *scores, "Training"]
    assert titles(str(results / "greedy-seed0")) == ["Training"]


def test_the_page_reaches_for_nothing_outside_itself(results: Path, page: str) -> None:
    links = set(re.findall(r'(?:src|href)="([^"#][^"]{0,30})', page))
    assert all(link.startswith("data:") for link in links)
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest", page)
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert "not for clinical use" in page
    assert str(results) not in page, "no path of this machine in the page"


@pytest.mark.usefixtures("undrawn")
def test_policies_that_are_shown_at_first_have_colors_of_their_own(tmp_path: Path) -> None:
    summary = make_summary()
    extra = [replace(summary.policies[0], policy=f"own-{number}") for number in range(12)]
    many = replace(summary, policies=(*extra, *summary.policies), reference="fixed")
    assert set(many.shown_first) == {"greedy", "fixed", "random", "oracle"}
    names = tuple(one.policy for one in many.policies)
    record = replace(make_acquisition(names), shown=many.shown_first)
    folder = write_evaluation(tmp_path / "many", policies=many.policies, reference="fixed")
    save_acquisition(record, folder / "acquisition.npz")
    (page,) = write_report(build_report([folder]), tmp_path / "report.html")
    found = re.findall(r'data-kind="([^"]+)"><input type="checkbox" checked>', page.read_text())
    assert len(found) == len(set(found)) == 4


@pytest.mark.usefixtures("undrawn")
def test_recorded_slices_of_many_evaluations_share_the_bytes_of_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kscout.apps.report.build.PICTURE_BYTES", 120_000)
    acquisition = make_acquisition()
    for number in range(3):
        folder = write_evaluation(tmp_path / f"e{number}")
        save_acquisition(acquisition, folder / "acquisition-1.npz")
        save_acquisition(acquisition.thinned(1), folder / "acquisition-2.npz")
    (page,) = write_report(build_report([tmp_path]), tmp_path / "r.html")
    text = page.read_text()
    assert text.count('class="player"') == 6
    taken = sum(map(len, re.findall(r'class="(?:shot|error)"[^>]*src="([^"]+)"', text)))
    # Targets are shown, too, and policies differ a little in size.
    assert 60_000 < taken < 160_000


def test_the_page_names_protocol_paper_and_provenance(page: str) -> None:
    assert "depends on the data" in page and "scores are comparable" not in page
    assert "Protocol <strong>paper</strong>" in page and "arXiv:2010.16262" in page
    assert "not shown: they are for 16 + 16" in page and 'class="paper"' not in page
    assert "0123456789abcdef" in page and "kscout train policy --method greedy" in page
    assert page.index('class="summary"') < page.index('id="scores"')


def test_every_figure_table_and_player_of_a_report_names_its_protocol(
    results: Path, tmp_path: Path
) -> None:
    write_run(tmp_path / "run")
    run_analysis(Curves(), [str(tmp_path / "run")], out=tmp_path)
    for folder in (results, tmp_path):
        sections = build_report([folder]).sections
        blocks = [block for section in sections for block in section.blocks]
        texts = [block.note for block in blocks if isinstance(block, Table)]
        texts += [block.caption for block in blocks if isinstance(block, Drawing)]
        texts += [block.caption for block in blocks if isinstance(block, Widget) and block.caption]
        assert texts
        assert all("rotocol paper" in text for text in texts), texts


@pytest.mark.usefixtures("undrawn")
def test_the_papers_numbers_stand_next_to_an_evaluation_of_its_size(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "base", n_cols=128, n_initial=16, steps=16)
    (page,) = write_report(build_report([folder]), tmp_path / "report.html")
    text = page.read_text()
    assert '<td class="paper">0.7230' in text and "not our measurement" in text
    write_evaluation(tmp_path / "small")
    overview = build_report([tmp_path]).tables[0]
    assert [column.name for column in overview.columns if column.is_paper] == [
        "paper: knee, base horizon"
    ]
    assert "of the same size, budget and protocol only" in overview.note


def test_the_papers_columns_without_a_number_are_left_out(tmp_path: Path) -> None:
    changes = {"n_cols": 128, "n_initial": 16, "steps": 16}
    names = [column.name for column in policy_table(make_summary(**changes)).columns]
    assert names[-1] == "paper: PSNR (dB)"
    feasible = tuple(one for one in make_summary().policies if not one.is_oracle)
    without = policy_table(make_summary(**changes, policies=feasible))
    assert [column.name for column in without.columns if column.is_paper] == names[-2:-1]
    assert all(len(row.cells) == len(without.columns) for row in without.rows)


@pytest.mark.parametrize(
    ("store", "anatomy", "is_shown"),
    [
        ("heads", "heads", False),
        ("mine", "knee", True),
        ("fastmri-knee", None, True),
        ("mine", None, False),
        ("knees", "brain", False),
    ],
)
def test_the_papers_knees_stand_next_to_knees_only(
    tmp_path: Path, store: str, anatomy: str | None, is_shown: bool
) -> None:
    changes = {"n_cols": 128, "n_initial": 16, "steps": 16, "store": store, "anatomy": anatomy}
    table = build_report([write_evaluation(tmp_path / "base", **changes)]).tables[0]
    assert any(column.is_paper for column in table.columns) is is_shown
    assert ("are not shown" in table.note) is not is_shown


@pytest.mark.slow
def test_ids_and_names_of_several_evaluations_are_unique(results: Path, tmp_path: Path) -> None:
    write_evaluation(tmp_path / "more" / "base", n_initial=2)
    report = build_report([results, tmp_path / "more"])
    assert report.sections[0].title == "Overview"
    labels = [column.name for column in report.tables[0].columns[1:3]]
    assert labels == [f"{results.name}/base (paper)", "more/base (paper)"]
    (page,) = write_report(report, tmp_path / "report.html")
    ids = re.findall(r'\bid="([^"]+)"', page.read_text())
    repeated = {one for one in ids if ids.count(one) > 1}
    # Matplotlib repeats the id of a marker's outline inside one figure; the outlines are equal.
    assert not {one for one in repeated if not re.search(r"-[mCp][0-9a-f]{10}", one)}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("n_evaluations", [1, 2])
def test_notes_on_an_evaluation_follow_its_first_sentence(
    tmp_path: Path, n_evaluations: int
) -> None:
    note = "the reconstruction is worse than zero-filled images"
    for number in range(n_evaluations):
        write_evaluation(tmp_path / f"results-{number}", note=note)
    report = build_report([tmp_path])
    if n_evaluations == 1:
        assert report.front.summary[1] == f"Note: {note}."
    else:
        for section in report.sections[1:]:
            assert section.blocks[1] == Prose(f"Note: {note}.")


@pytest.mark.parametrize("form", ["csv", "latex", "markdown"])
def test_tables_alone_are_written_in_other_forms_and_nothing_is_drawn(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matplotlib.figure.Figure.subplots", None)
    for name in "ab":
        write_evaluation(tmp_path / name)
    paths = write_report(build_report([tmp_path]), tmp_path / "tables.txt", form=form)
    text = "".join(path.read_text() for path in paths)
    assert "greedy" in text and "0.761" in text
    assert len(paths) == (3 if form == "csv" else 1)


def test_nothing_to_report_and_damaged_summaries_are_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing to report"):
        build_report([tmp_path])
    with pytest.raises(DataError, match="not a folder"):
        build_report([str(tmp_path / "missing")])
    (tmp_path / "summary.json").write_text('{"policies": [{"policy": "x"}]}')
    with pytest.raises(DataError, match="not the summary of an evaluation"):
        build_report([tmp_path])
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        build_report([tmp_path])


@pytest.mark.parametrize("content", ["{}", "[]", '{"policies": {}}'])
def test_a_summary_without_scores_is_rejected_next_to_results(tmp_path: Path, content: str) -> None:
    folder = write_evaluation(tmp_path / "base")
    save_acquisition(make_acquisition(), folder / "acquisition.npz")
    (folder / "summary.json").write_text(content)
    (folder / "results.csv").touch()
    with pytest.raises(DataError, match="not the summary of an evaluation"):
        build_report([tmp_path])
    # Without results it is a file of somebody else's, of which nothing is asked.
    (folder / "results.csv").unlink()
    assert build_report([tmp_path]).sections


@pytest.mark.parametrize("content", [b'kind = "\xff"', b"kind = [", b"x" * 9])
def test_damaged_settings_of_a_run_are_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "provenance.json").write_text("{}")
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(DataError, match=r"config\.toml is damaged \(.*\); generate it again"):
        build_report([tmp_path])


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    assert "<x>" not in facts_html({"<x>": "<u>"}) and "<u>" not in facts_html({"<x>": "<u>"})
    front = Front("<i>t</i>", ("a **b** <script>",), facts={"<x>": "&"})
    page = write_page(front, [Section("S", (Prose("<u>"),))], tmp_path / "p.html")
    text = page.read_text()
    assert "<i>t" not in text and "<u>" not in text and "<x>" not in text
    assert "a <strong>b</strong> &lt;script&gt;" in text


def test_each_folder_is_read_once_although_links_lead_to_it_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "greedy-seed0", seed=0)
    for name in ("parent", "self"):
        (run / name).symlink_to(tmp_path if name == "parent" else run)
    (tmp_path / "other").symlink_to(run)
    assert len(search([tmp_path, tmp_path / "runs"]).runs) == 1


def test_a_folder_of_figures_that_is_a_file_leaves_no_page(results: Path, tmp_path: Path) -> None:
    (tmp_path / "figures").touch()
    with pytest.raises(FileExistsError):
        write_report(
            build_report([results]), tmp_path / "report.html", figures=tmp_path / "figures"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["figures"]


@pytest.mark.slow
def test_the_command_writes_page_and_figures(tmp_path: Path) -> None:
    results = write_run(tmp_path / "greedy-seed0", seed=0)
    out, figures = tmp_path / "r.html", tmp_path / "figures"
    written = json.loads(kscout("report", results, "-o", out, "--figures", figures, "--json"))[
        "written"
    ]
    assert str(out) in written and out.exists()
    names = {path.name for path in figures.iterdir()}
    assert names == {"learning-curves.png", "learning-curves.svg", "learning-curves.pdf"}
