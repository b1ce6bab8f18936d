"""The sentences of the demo's page: what an interval allows, what was recorded of other seeds."""

import json
from pathlib import Path
from typing import Any

import pytest

from kscout.demo import DemoSettings
from kscout.demo.page import tell_claim
from kscout.demo.seeds import SEEDS, tell_seeds
from kscout.demo.settings import LEARNED, REFERENCE
from kscout.demo.stages import CHOOSERS
from kscout.demo.worlds import World, tell_worlds
from kscout.evaluation.summaries.summary import Difference

RECORD = Path(__file__).parents[1] / "benchmarks" / "demo_seeds.json"


@pytest.mark.parametrize(
    ("difference", "interval", "told"),
    [
        (0.002, (0.001, 0.003), "0.0020 above"),
        (0.002, (0.001, 0.003), "the interval lies above zero"),
        (0.002, (-0.001, 0.005), "the interval includes zero, so that this run does not show"),
        (-0.002, (-0.003, -0.001), "0.0020 below"),
        (-0.002, (-0.003, -0.001), "worse than the fixed order"),
        (0.002, None, "does not show a lead"),
    ],
)
def test_the_sentence_says_what_the_interval_allows(
    difference: float, interval: tuple[float, float] | None, told: str
) -> None:
    lead, counts = Difference(difference, interval), {"n_slices": 10, "n_volumes": 5}
    common = {"n_columns": 12, "size": 64, **counts}
    assert told in tell_claim("claim_here", lead, learned=LEARNED, **common)
    assert told in tell_claim("claim", lead, policy="one", unet="other", **common)


def test_the_page_cites_the_record_of_seeds(tmp_path: Path) -> None:
    rows = [
        {"seed": 0, "lead": 0.0021, "interval": [0.001, 0.003]},
        {"seed": 1, "lead": -0.0004, "interval": [-0.001, 0.002]},
    ]
    path = tmp_path / "seeds.json"
    path.write_text(json.dumps({"seeds": rows}))
    assert "above zero in 1 of 2 recorded runs (leads: +0.0021, −0.0004" in tell_seeds(path)
    path.write_text(json.dumps({"seeds": []}))
    assert "No run with other seeds is recorded" in tell_seeds(path)


def test_the_cited_seeds_are_those_of_the_benchmark() -> None:
    cited, whole = (json.loads(path.read_text()) for path in (SEEDS, RECORD))
    assert cited["seeds"] == [
        {name: row[name] for name in ("seed", "lead", "interval")} for row in whole["seeds"]
    ]
    above = [row for row in whole["seeds"] if row["interval"][0] > 0]
    assert (whole["n_seeds"], whole["n_above_zero"]) == (len(whole["seeds"]), len(above))


def test_recorded_seeds_are_of_the_weights_that_ship(scripts: Any) -> None:
    told = scripts("demo_seeds").settings_told(DemoSettings())
    assert json.loads(RECORD.read_text())["settings"] == told
    assert set(told["weights"]) == {"knee-base-fixed", "knee-base-greedy", "knee-base-column"}


def test_a_policy_that_scores_as_the_order_does_is_said_to_have_learned_nothing_else() -> None:
    def told(*joint: float) -> str:
        leads = {("frozen", LEARNED): (0.01, 0.005, 0.02), ("trained together", LEARNED): joint}
        found = {key: Difference(lead[0], (lead[1], lead[2])) for key, lead in leads.items()}
        order = Difference(0.06, (0.05, 0.07))
        return tell_worlds(
            [
                World(network, CHOOSERS[name], 0.6, found.get((network, name)), order)
                for network in ("frozen", "trained together")
                for name in (REFERENCE, LEARNED)
            ]
        )

    assert "the policy scores as that order does" in told(0.0, 0.0, 0.0)
    assert "scores as that order" not in told(0.001, 0.0, 0.002)
