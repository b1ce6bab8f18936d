"""Orders that were fitted before are taken from a file, unless it is damaged."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kscout import policies
from kscout.acquisition.plan import Plan
from kscout.apps.cli import app
from kscout.data.slices import SliceSet
from kscout.errors import KScoutError, WeightsError
from kscout.evaluation import EvaluationSetting, evaluate
from kscout.evaluation.running.fixed_orders import fitted_order
from kscout.reconstruction.zero_filled import ZeroFilled

PLAN = Plan(start=3, horizon=4, n_trajectories=1)


def rewritten(cache: Path, order: list[object]) -> None:
    (file,) = cache.glob("order-*.json")
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "arguments": {**record["arguments"], "order": order}}))


def test_an_order_is_fitted_once(train_slices: SliceSet, tmp_path: Path) -> None:
    first = fitted_order(train_slices, ZeroFilled(), PLAN, cache=tmp_path)
    rewritten(tmp_path, first[::-1])
    assert fitted_order(train_slices, ZeroFilled(), PLAN, cache=tmp_path) == first[::-1] != first


def test_a_fitted_order_is_a_policy_of_its_own(
    train_slices: SliceSet, test_slices: SliceSet, tmp_path: Path
) -> None:
    setting = EvaluationSetting(n_initial=3, steps=4, fixed_slices=4)
    first = evaluate(
        ["fixed"], test_slices, "zero-filled", setting, train=train_slices, out=tmp_path / "first"
    )
    (file,) = (tmp_path / "first").rglob("order-*.json")
    # Start and budget follow from the order.
    again = evaluate(
        [f"mine={file}"], test_slices, "zero-filled", EvaluationSetting(), out=tmp_path / "again"
    )
    assert [x.final["ssim"].mean for x in again.found.policies] == [
        x.final["ssim"].mean for x in first.found.policies
    ]
    record = json.loads(file.read_text())
    assert policies.load(file).order == tuple(record["arguments"]["order"])
    words = ["export", "order", str(file), "--out", str(tmp_path / "table.json")]
    assert CliRunner().invoke(app, words).exit_code == 0
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert tuple(x["column"] for x in rows if x["step"]) == policies.load(file).order
    for damage in ({"order": ["a", "b"]}, {"order": [10**12]}, {"n_cols": -1}, {"n_cols": "x"}):
        arguments = {**record["arguments"], **damage}
        file.write_text(json.dumps({**record, "arguments": arguments}))
        with pytest.raises(KScoutError):
            policies.load(file)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(WeightsError, match="has an invalid description of its component"):
        policies.load(tmp_path / "other.json")


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
def test_a_damaged_order_is_fitted_again(
    train_slices: SliceSet, tmp_path: Path, damage: object
) -> None:
    first = fitted_order(train_slices, ZeroFilled(), PLAN, cache=tmp_path)
    rewritten(tmp_path, damage(first))  # type: ignore[operator]
    assert fitted_order(train_slices, ZeroFilled(), PLAN, cache=tmp_path) == first
