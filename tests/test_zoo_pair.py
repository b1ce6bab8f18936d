"""Cards of a pair say which seed it is and whose its gain is, where records tell."""

import importlib
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kscout.config import read

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def pair() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("zoo_pair")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def dense(pair: ModuleType) -> Any:
    text = (BENCHMARKS / "joint_results" / "knee-8x-dense-plain-2.json").read_text(encoding="utf-8")
    return read(pair.JointRecord, json.loads(text))


def test_a_seed_is_called_chosen_only_where_validation_chooses_it(
    pair: ModuleType, dense: Any
) -> None:
    arm, _ = pair.compared(dense, BENCHMARKS / "joint_results")
    assert [one.seed for one in arm] == [0, 1, 2]
    told = " ".join(pair.chosen_of(dense, arm).split())
    assert told.startswith("Of 3 seeds this is the one of the highest validation SSIM")
    assert pair.chosen_of(arm[0], arm) == pair.chosen_of(dense, [dense]) == ""
    assert pair.chosen_of(dense, [*arm[:2], replace(dense, validation=())]) == ""
    assert pair.chosen_of(dense, [replace(arm[0], validation=()), dense]) == ""


def test_a_lead_is_parted_by_what_a_fixed_order_reaches_on_the_same_network(
    pair: ModuleType, dense: Any
) -> None:
    def told(arm: float, fixed: float, beside: float | None, n_slices: int = 256) -> str:
        own = replace(dense, bounds=replace(dense.bounds, arm=arm, fixed=fixed))
        bounds = None if beside is None else replace(own.bounds, arm=beside, n_slices=n_slices)
        other = replace(dense, arm="fixed", bounds=bounds)
        return " ".join(pair.parted_of(own, [other]).split())

    words = told(0.795, 0.7952, 0.791)
    assert "does as well" in words and "worth -0.0002 here, no gain" in words
    assert "Of +0.0040 by which" in words and "-0.0002 comes from choosing and +0.0042" in words
    assert "worth +0.0020 with this network" in told(0.797, 0.795, 0.791)
    for nothing in (told(0.797, 0.795, None), told(0.797, 0.795, 0.791, n_slices=64)):
        assert "comes from choosing" not in nothing
    assert pair.parted_of(replace(dense, bounds=None), []) == ""
    assert pair.parted_of(replace(dense, arm="fixed"), []) == ""


def test_the_first_commands_of_a_card_make_its_store_from_nothing(pair: ModuleType) -> None:
    page = (BENCHMARKS.parent / "docs" / "joint.md").read_text(encoding="utf-8")
    makes = pair.MAKES["heads-coarse"]
    told = [" ".join(text.replace("\\\n", "").split()) for text in (page, "\n".join(makes))]
    assert told[1] in told[0]
    shown = pair.shown_commands(makes)
    assert "\npython benchmarks/small_heads.py ~/.cache/kscout/heads --out heads\n" in shown
    assert [shlex.split(one) for one in shown.replace("\\\n", "").splitlines()] == [
        shlex.split(one) for one in makes
    ]
    stores = {horizon.store for horizon in pair.HORIZONS.values()}
    assert stores == set(pair.MAKES)
