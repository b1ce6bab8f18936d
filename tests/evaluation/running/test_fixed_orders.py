"""Orders that were fitted before are taken from a file, unless it is damaged."""

import json
from pathlib import Path

import pytest

from kscout.data.slices import SliceSet
from kscout.evaluation.running.fixed_orders import fitted_order
from kscout.evaluation.running.trajectories import AcquisitionPlan
from kscout.reconstruction.zero_filled import ZeroFilled

PLAN = AcquisitionPlan(n_initial=3, horizon=4, n_trajectories=1)


def rewritten(cache: Path, order: list[object]) -> None:
    (file,) = cache.glob("order-*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"order": order}))


def test_an_order_is_fitted_once(train_slices: SliceSet, tmp_path: Path) -> None:
    first = fitted_order(train_slices, ZeroFilled(), PLAN, cache=tmp_path)
    rewritten(tmp_path, first[::-1])
    assert fitted_order(train_slices, ZeroFilled(), PLAN, cache=tmp_path) == first[::-1] != first


@pytest.mark.parametrize(
    "damage",
    [
        lambda order: order[:2],
        lambda order: [order[0], *order[:3]],
        lambda order: [*order[:3], 6],
        lambda order: [*order[:3], 13],
        lambda order: [*order[:3], "1"],
        lambda order: [],
    ],
    ids=["short", "twice", "of the start", "outside", "text", "empty"],
)
def test_a_damaged_order_is_fitted_anew(
    train_slices: SliceSet, tmp_path: Path, damage: object
) -> None:
    first = fitted_order(train_slices, ZeroFilled(), PLAN, cache=tmp_path)
    rewritten(tmp_path, damage(first))  # type: ignore[operator]
    assert fitted_order(train_slices, ZeroFilled(), PLAN, cache=tmp_path) == first
