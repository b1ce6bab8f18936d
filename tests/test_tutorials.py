"""The tutorials run as they stand, show what they say, and are the notebooks beside them."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuzz.forks import in_child, load_modules, run_task
from website.tutorials import PAGES, cells_of, notebook_of, recorded, run, with_markers, write
from website.tutorials import with_outputs as shown_on_the_site


def first_policy(names: dict[str, Any]) -> None:
    from kscout.evaluation import read_summary

    ssim = {one.policy: one.ssim for one in read_summary("results/knee").policies}
    assert ssim["random"] < ssim["greedy"] < ssim["oracle"]
    assert Path("report.html").is_file()


def own_classes(names: dict[str, Any]) -> None:
    from kscout.evaluation import read_summary

    found = read_summary("results/own").comparison("trained")
    assert found is not None and found.interval is not None and found.interval[0] > 0


def reading(names: dict[str, Any]) -> None:
    from kscout.evaluation import confidence_interval

    difference, volumes = names["difference"], names["volumes"]
    over_volumes = confidence_interval(difference, volumes)
    over_slices = confidence_interval(difference, [str(i) for i in range(len(volumes))])
    assert over_volumes is not None and over_slices is not None
    assert over_slices[1] - over_slices[0] < over_volumes[1] - over_volumes[0]
    room = names["found"].headroom
    assert (
        0 < 5 * abs(room.na_oracle_minus_fixed.difference) < room.oracle_minus_na_oracle.difference
    )


CLAIMS: dict[str, Callable[[dict[str, Any]], None]] = {
    "1-first-policy": first_policy,
    "4-your-own-classes": own_classes,
    "8-reading-a-result": reading,
}


@pytest.mark.tutorial
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a child of this process, and so are the runs of its campaign: torch is loaded once."""
    monkeypatch.setattr("kscout.apps.campaign.task._run_command", run_task)

    def work() -> int:
        warnings.resetwarnings()
        names: dict[str, Any] = {"__name__": "__main__"}
        run(notebook_of(page), names)
        CLAIMS.get(page.stem, lambda _: None)(names)
        return 0

    load_modules()
    done = in_child(work, tmp_path, tmp_path / "log")
    assert done.code == 0, done.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_notebook_beside_a_page_is_the_page(page: Path) -> None:
    """Else: python -m website.tutorials."""
    wanted, found = notebook_of(page), recorded(page)
    assert [cell.source for cell in found.cells] == [cell.source for cell in wanted.cells]
    assert [cell.cell_type for cell in found.cells] == [cell.cell_type for cell in wanted.cells]
    assert found.metadata == wanted.metadata


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_site_shows_what_was_recorded(page: Path) -> None:
    cells = cells_of(recorded(page))
    assert all(cell.execution_count for cell in cells), "python -m website.tutorials --run"
    text = with_markers(page.read_text(encoding="utf-8"))
    assert text.count("<!-- output ") == len(cells)
    shown = shown_on_the_site(text, page)
    assert "<!-- output " not in shown
    assert shown.count('class="output"') == sum(len(cell.outputs) for cell in cells)


def test_a_notebook_written_anew_keeps_what_each_cell_showed(tmp_path: Path) -> None:
    (page,) = (page for page in PAGES if page.stem == "5-the-paper")
    cells = cells_of(recorded(page))
    asked = [cell for cell in cells if "campaign status" in cell.source]
    assert len(asked) == 2
    before, after = (cell.outputs[0].text for cell in asked)
    assert "0 of 4 done" in before and "4 of 4 done" in after
    copied = tmp_path / page.name
    for suffix in (".md", ".ipynb"):
        copied.with_suffix(suffix).write_bytes(page.with_suffix(suffix).read_bytes())
    write(copied, is_run=False)
    assert [cell.outputs for cell in cells_of(recorded(copied))] == [x.outputs for x in cells]


def test_notebooks_are_small_and_name_no_machine() -> None:
    for page in PAGES:
        text = page.with_suffix(".ipynb").read_text(encoding="utf-8")
        assert len(text) < 200_000
        told = json.dumps([cell.outputs for cell in cells_of(recorded(page))])
        assert not any(place in told for place in ("/tmp", "/work", "/root", "/home"))
