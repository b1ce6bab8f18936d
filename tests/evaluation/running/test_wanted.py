"""What an evaluation may be asked for, and what files of policies tell it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from kscout import policies, reconstruction
from kscout.acquisition.plan import Plan
from kscout.apps.cli import app
from kscout.compatibility import Use, acquisition_note
from kscout.config import AcquisitionSetting
from kscout.core import Observation, Policy
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, KScoutError, WeightsError
from kscout.evaluation.compare import evaluate
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.entries import budgets_of, resolve, trained_budget
from kscout.evaluation.running.prepare import fitted_order
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.weights import WEIGHTS_NAME, fingerprint, save_component
from kscout.zoo import zoo_names

SETTING = EvaluationSetting(n_initial=3, steps=2, trajectories=1)


class Brightest(Policy):
    is_stochastic = False

    def forward(self, seen: Observation) -> torch.Tensor:
        return seen.image.sum(dim=1)


def test_an_evaluation_prints_as_its_table(test_slices: SliceSet) -> None:
    found = evaluate([Brightest(), "random", "oracle"], test_slices, ZeroFilled(), SETTING)
    # A policy without a label is called by its class.
    assert [one.policy for one in found.found.policies] == ["Brightest", "random", "oracle"]
    title, head, *rows, foot = str(found).splitlines()
    assert "after 2 acquired columns" in title and head.split()[:2] == ["policy", "SSIM"]
    assert [row.split()[:2] for row in rows] == [
        [one.policy, "*" if one.is_oracle else f"{one.ssim:.4f}"] for one in found.found.ranked
    ]
    assert foot.startswith("* uses the ground truth")


@pytest.mark.parametrize("wanted", [Brightest, 3, None, ("a", "random"), ("a", Brightest), ("a",)])
def test_what_is_no_policy_is_rejected_with_a_sentence(test_slices: SliceSet, wanted: Any) -> None:
    with pytest.raises(ConfigError, match=r'is no policy to evaluate; .*\("label", policy\)'):
        evaluate(["random", wanted], test_slices, ZeroFilled(), SETTING)


@pytest.mark.parametrize("wanted", ["random", Path("runs/greedy"), Brightest()])
def test_one_policy_in_place_of_a_list_is_rejected(test_slices: SliceSet, wanted: Any) -> None:
    with pytest.raises(ConfigError, match="policies are a list; write "):
        evaluate(wanted, test_slices, ZeroFilled(), SETTING)


@pytest.mark.parametrize("name", zoo_names("policy"))
def test_every_policy_of_the_zoo_states_its_columns_and_protocol(name: str) -> None:
    n_initial, horizon = (4, 28) if "-4-" in name or "-long-" in name else (16, 16)
    trained, here = ("paper", "blind") if "-base-" in name else ("blind", "paper")
    assert budgets_of([name]) == {AcquisitionSetting(n_initial, horizon): [name]}
    if not name.endswith("-fixed"):
        (one,) = resolve(name, (128, 128), Plan(16, 16))
        note = acquisition_note(name, one.policy, Use((1, 128, 128), 10, 4, here))
        assert note is not None
        assert f"{n_initial} + {horizon} columns under protocol {trained}" in note
        assert f"runs here with 10 + 4 under {here}" in note


def test_policies_of_different_budgets_are_named(tmp_path: Path) -> None:
    order = tmp_path / "order.safetensors"
    extra = {"seed": 0, "protocol": "paper", "n_initial": 3, "horizon": 5}
    save_component(order, FixedOrder(n_cols=13, order=[1]), kind="policy", extra=extra)
    assert budgets_of([str(order)]) == {AcquisitionSetting(3, 5): [str(order)]}
    assert trained_budget(["random", "mine=knee-base-greedy"]) == AcquisitionSetting(16, 16)
    sentence = rf"mine={order}: 3 \+ 5 columns; knee-base-greedy, knee-base-fixed: 16 \+ 16 columns"
    with pytest.raises(ConfigError, match=rf"have different ones \({sentence}\); add --n-initial"):
        trained_budget([f"mine={order}", "knee-base-greedy", "random", "knee-base-fixed"])
    with pytest.raises(ConfigError, match="no policy has them; add --n-initial and --steps"):
        trained_budget(["random"])


@pytest.mark.parametrize(
    "extra",
    [
        *({}, {"n_initial": 3}, {"n_initial": "3", "horizon": 5}),
        *({"n_initial": True, "horizon": 5}, {"n_initial": 3, "horizon": 5, "initial": [1]}),
    ],
)
def test_a_file_without_columns_has_no_budget(tmp_path: Path, extra: dict[str, Any]) -> None:
    order = tmp_path / "order.safetensors"
    save_component(order, FixedOrder(n_cols=13, order=[1]), kind="policy", extra=extra)
    assert budgets_of([str(order)]) == {}


@pytest.mark.parametrize(
    ("wanted", "reconstructor", "complaint"),
    [
        ("network", "zero-filled", r"holds a reconstructor \(unet\), not a policy; give it as the"),
        ("random", "policy", r"holds a policy \(fixed\), not a reconstructor; give it as a policy"),
        ("random", "fixed", "fixed is neither a file nor a run folder"),
        (".", "zero-filled", r"^\. holds several runs; give one of network, policy"),
        ("random", ".", r"^\. holds several runs; give one of network, policy"),
    ],
)
def test_what_is_of_the_other_kind_or_several_runs_is_rejected(
    test_slices: SliceSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    reconstructor: str,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("network", "policy"):
        Path(name).mkdir()
    reconstruction.save(Path("network") / WEIGHTS_NAME, UNet(n_channels=2, n_pools=1))
    policies.save(Path("policy") / WEIGHTS_NAME, FixedOrder(n_cols=9, order=[3, 1]))
    with pytest.raises(KScoutError, match=complaint):
        evaluate([wanted], test_slices, reconstructor, SETTING)


PLAN = Plan(start=3, horizon=4, n_trajectories=1)


def rewritten(cache: Path, order: list[object]) -> None:
    (file,) = cache.glob("order-*.json")
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "arguments": {**record["arguments"], "order": order}}))


def test_an_order_is_fitted_once_for_the_same_slices(
    train_slices: SliceSet, test_slices: SliceSet, tmp_path: Path
) -> None:
    first = fitted_order(train_slices, ZeroFilled(), PLAN, cache=tmp_path)
    rewritten(tmp_path, first[::-1])
    assert fitted_order(train_slices, ZeroFilled(), PLAN, cache=tmp_path) == first[::-1] != first
    fitted_order(test_slices, ZeroFilled(), PLAN, cache=tmp_path)
    assert len([*tmp_path.glob("order-*.json")]) == 2


def test_a_fitted_order_records_the_network_and_not_its_faster_form(
    train_slices: SliceSet, tmp_path: Path
) -> None:
    network = UNet(n_channels=2, n_pools=1).eval()
    _, n_rows, n_cols = train_slices.shape
    frozen = network.frozen(precision="auto", n_rows=n_rows, n_cols=n_cols, device="cpu")
    assert fingerprint(frozen) != fingerprint(network)
    fitted_order(train_slices, frozen, PLAN, cache=tmp_path)
    (file,) = tmp_path.glob("order-*.json")
    assert policies.load(file).recorded["reconstructor"] == fingerprint(network)


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
