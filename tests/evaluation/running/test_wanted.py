"""What an evaluation may be asked for, and what files of policies tell it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kscout.acquisition.plan import Plan
from kscout.compatibility import Use, acquisition_note
from kscout.config import AcquisitionSetting
from kscout.core import Observation, Policy
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.evaluation.compare import Evaluation, evaluate
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.entries import budgets_of, resolve
from kscout.evaluation.running.setting import trained_budget
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.weights import save_component
from kscout.zoo import zoo_names

SETTING = EvaluationSetting(n_initial=3, steps=2, trajectories=1)
OTHER = {"long": (4, 28), "8x": (8, 8), "sizes": (40, 40)}
"""Start and steps of the zoo's policies that are not trained for 16 + 16."""


class Brightest(Policy):
    is_stochastic = False

    def forward(self, seen: Observation) -> torch.Tensor:
        return seen.image.sum(dim=1)


@pytest.fixture(scope="module")
def found(test_slices: SliceSet) -> Evaluation:
    return evaluate([Brightest(), "random", "oracle"], test_slices, ZeroFilled(), SETTING)


def test_a_policy_without_a_label_is_called_by_its_class(found: Evaluation) -> None:
    assert [one.policy for one in found.found.policies] == ["Brightest", "random", "oracle"]


def test_an_evaluation_prints_as_its_table(found: Evaluation) -> None:
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
    expected = next((x for word, x in OTHER.items() if f"-{word}-" in name), (16, 16))
    n_initial, horizon = expected
    # Of several matrix sizes no number of columns is the one.
    is_one = "-sizes-" not in name
    assert budgets_of([name]) == (
        {AcquisitionSetting(n_initial, horizon): [name]} if is_one else {}
    )
    (one,) = resolve(name, (128, 128), Plan(16, 16))
    # Where columns of another matrix were counted, it is told.
    own, here = ("", "") if is_one else (" of 320", " of 128")
    if not name.endswith("-fixed"):
        use = Use((1, 128, 128), 10, 4, "blind")
        note = acquisition_note(name, one.policy, None, use)
        assert note is not None
        protocol = "blind" if "-general-" in name else "paper"
        assert f"{n_initial} + {horizon}{own} columns under protocol {protocol}" in note
        assert f"runs here with 10 + 4{here} under blind" in note


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
