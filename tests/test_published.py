"""What is published can be computed again, and tables of documents are those of the records."""

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kscout.errors import DataError
from kscout.zoo import ZOO

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SAMPLE = json.loads((BENCHMARKS / "recomputed.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def scripts() -> Any:
    """Return a function that imports a script of `benchmarks/`."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def computed(scripts: Any) -> dict[str, dict[str, str]]:
    """Return the tables of each document, from the records."""
    return scripts("tables").tables()


def test_tables_of_documents_are_written_from_records(
    scripts: Any, computed: dict[str, dict[str, str]]
) -> None:
    tables: ModuleType = scripts("tables")
    for file, own in computed.items():
        text = (tables.ROOT / file).read_text(encoding="utf-8")
        assert tables.written(text, own) == text, f"run `python benchmarks/tables.py`: {file}"


def test_times_of_the_readme_are_those_that_were_measured() -> None:
    told, speed, runs = (
        (BENCHMARKS.parent / name).read_text(encoding="utf-8")
        for name in ("README.md", "docs/speed.md", "benchmarks/RESULTS.md")
    )
    found = re.search(
        r"\*\*(\d+) minutes\*\* with\s+validation and checkpoints, five seeds together (\d+)\. "
        r"The authors' code would take (\d+)",
        told,
    )
    assert found is not None
    ours = re.search(r"greedy knee-base training: 21,750 .*\| \*\*(\d+) s\*\* \|", speed)
    seeds = re.search(r"five seeds in lockstep, all 50 epochs\*\* \| \*\*([\d.]+) minutes", speed)
    theirs = re.search(r"by the reference .*: (\d+) ms per batch.*times 21,750", speed)
    assert ours is not None and seeds is not None and theirs is not None
    minutes = (int(ours[1]) / 60, float(seeds[1]), int(theirs[1]) / 1000 * 21_750 / 60)
    assert [int(x) for x in found.groups()] == [round(x) for x in minutes]
    fast = re.search(
        r"on a CPU, ([\d.]+) to ([\d.]+) times as fast as a plain implementation", told
    )
    met = re.search(r"by ([\d.]+) to [\d.]+ at 64 pixels and ([\d.]+) at 128 since commit", runs)
    assert fast is not None and met is not None
    assert (met[1], f"{float(met[2]):.0f}") == fast.groups()


def test_the_zoo_is_listed_whole(computed: dict[str, dict[str, str]]) -> None:
    listed = computed["docs/zoo.md"]["zoo"]
    assert [line.split("`")[1] for line in listed.splitlines()[2:]] == list(ZOO)


def test_a_number_that_drifts_changes_its_document(scripts: Any) -> None:
    tables: ModuleType = scripts("tables")
    (row,) = [one for one in tables.read_leaderboard() if tables.ref_of(one) == "knee-base/greedy"]
    records = {"knee-base/greedy": replace(row, ssim_mean=0.1234)}
    assert tables.filled("a {ssim knee-base/greedy} b", records) == "a .1234 ± .0002 b"
    assert tables.filled("{minus knee-base/greedy}", records) == "+.0002 (-.0001 to .0005)"
    before = f"x\n{tables.marker('t')}\n\nold\n\n{tables.END}\ny"
    assert tables.written(before, {"t": "new\n"}) == before.replace("old", "new")


def test_no_table_ranks_joint_and_frozen_reconstructions_together(scripts: Any) -> None:
    tables: ModuleType = scripts("tables")
    frozen, joint = "{ssim knee-base/fixed}", "{ssim joint:knee-base/fixed}"
    tables.check_alike("t", [frozen, "{minus knee-base/random}", "{paper knee-base/random}"])
    tables.check_alike("t", [joint, "{minus joint:knee-base/dense}"])
    with pytest.raises(DataError, match="table t ranks joint and frozen"):
        tables.check_alike("t", [frozen, joint])
    row = tables.read_leaderboard()[0]
    assert tables.ref_of(replace(row, reconstruction="joint")).startswith("joint:")


def test_tolerances_are_of_samples_of_volumes(scripts: Any) -> None:
    recompute: ModuleType = scripts("recompute")
    values = np.array([0.5, 0.7, 0.1, 0.3])
    # Volumes a and b have means .6 and .2: a standard error of .2, and t of one degree of freedom.
    expected = 0.2 * 63.657 + recompute.ARITHMETIC
    assert recompute.tolerance_of(values, ["a", "a", "b", "b"]) == pytest.approx(expected, rel=1e-4)
    finding = recompute.Finding("h", "m", published=0.5, found=0.51, tolerance=0.009)
    assert finding.differs and "DIFFERS" in str(finding)
    assert not replace(finding, tolerance=0.011).differs
    assert replace(finding, tolerance=float("nan")).differs


def test_only_what_a_name_builds_or_the_zoo_has_is_computed_again(scripts: Any) -> None:
    recompute: ModuleType = scripts("recompute")
    methods = ["fixed", "random", "knee-base-greedy", "alphazero", "na-oracle", "greedy", "oracle"]
    wanted, reasons = recompute.sorted_out(methods, "knee-base")
    assert wanted == {
        **{"fixed": "fixed=knee-base-fixed", "random": "random"},
        "knee-base-greedy": "knee-base-greedy=knee-base-greedy",
    }
    # A network of that name is made by a training, and has no weights here.
    assert reasons == {
        **{"alphazero": "does not ship", "greedy": "does not ship", "oracle": "left out"},
        "na-oracle": "fitted on the whole test set",
    }


@pytest.mark.slow
def test_files_of_the_zoo_score_what_is_published(scripts: Any, tmp_path: Path) -> None:
    """On a few test slices: within the sample's tolerance, and what they gave when recorded."""
    recompute: ModuleType = scripts("recompute")
    rows = [
        row
        for row in recompute.frozen_rows()
        if row.method in recompute.SHIPPED and row.store == recompute.KNEES
    ]
    found = list(
        recompute.findings(
            rows,
            SAMPLE["n_slices"],
            tmp_path,
            data={},
            n_trajectories=SAMPLE["n_trajectories"],
            device="cpu",
        )
    )
    names = [(one["where"], one["what"]) for one in SAMPLE["findings"]]
    assert [(one.where, one.what) for one in found] == names
    for one, before in zip(found, SAMPLE["findings"], strict=True):
        assert not one.differs, str(one)
        # A policy that draws may meet a tie that rounding breaks otherwise elsewhere.
        rounding = 3e-3 if "greedy" in one.what else 3e-4
        assert one.found == pytest.approx(before["found"], abs=rounding), str(one)
