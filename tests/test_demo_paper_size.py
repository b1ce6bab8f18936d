"""What the demo shows at the paper's size: the zoo's own test knees, and scores stored for them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kscout.data.generate import paper_settings
from kscout.demo.oracles import StoredOracles, read_stored
from kscout.demo.paper_size import tell_handful
from kscout.demo.settings import ZOO_ACQUISITIONS, PaperSize, ZooAcquisition
from kscout.evaluation.records.results import Scores
from kscout.evaluation.summaries.summary import Comparison
from kscout.figures.pictures import draw_reconstructions
from kscout.zoo import ZOO
from synthetic_results import make_summary

LEADERBOARD = Path(__file__).parents[1] / "benchmarks" / "leaderboard.json"
NAMES = [one.name for one in ZOO_ACQUISITIONS]


def stored_of(name: str) -> StoredOracles:
    stored = read_stored(name)
    assert stored is not None, f"run benchmarks/demo_oracles.py: nothing is stored for {name}"
    return stored


def scores_like(stored: StoredOracles, by: float = 0.0) -> Scores:
    """Scores of a policy on the stored slices, whose start differs by so much."""
    ssim = stored.ssim["oracle"] + by
    volumes, numbers = zip(*stored.slices, strict=True)
    return Scores("any", 0, volumes, numbers, np.stack([ssim, ssim, ssim], axis=-1), 1)


def test_knees_are_drawn_as_those_of_the_zoos_test_set() -> None:
    """A volume depends on kind, seed, number, slices, size and variant alone."""
    ours, whole = PaperSize().making, paper_settings("knee")
    assert (ours.kind, ours.seed, ours.variant) == (whole.kind, whole.seed, whole.variant)
    assert (ours.slices, ours.size) == (whole.slices, 128)
    assert ours.volumes[:2] == (0, 0)
    # The last volume of the whole set is cut short.
    assert ours.volumes[2] < whole.volumes[2]


@pytest.mark.parametrize("one", ZOO_ACQUISITIONS, ids=NAMES)
def test_every_policy_of_the_table_is_in_the_zoo(one: ZooAcquisition) -> None:
    assert {ZOO[name] for name in one.policies.values()} == {"policy"}
    assert one.wanted == [
        "random",
        "center-out",
        "fixed=knee-base-fixed",
        "greedy=knee-base-greedy",
        "column=knee-base-column",
    ]
    assert (one.reference, one.told) == ("fixed", "column")


@pytest.mark.parametrize("name", NAMES)
def test_stored_oracles_are_of_the_demos_slices(name: str) -> None:
    settings, stored = PaperSize(), stored_of(name)
    (budget,) = [one for one in settings.acquisitions if one.name == name]
    n_whole = settings.n_volumes * settings.n_slices
    places = [number * n_whole // settings.limit for number in range(settings.limit)]
    expected = [divmod(place, settings.n_slices) for place in places]
    assert stored.slices == tuple((f"test-knee-{v:05d}", s) for v, s in expected)
    na_oracle, oracle = stored.ssim["na-oracle"], stored.ssim["oracle"]
    assert oracle.shape == na_oracle.shape == (settings.limit, budget.horizon + 1)
    assert np.allclose(oracle[:, 0], na_oracle[:, 0], atol=1e-6)
    starts = range((128 - budget.n_initial) // 2, (128 + budget.n_initial) // 2)
    for order in stored.columns:
        assert len({*order, *starts}) == budget.horizon + budget.n_initial
    # The first column of the oracle is the best one for each slice; later ones may lead astray.
    assert (oracle[:, 1] >= na_oracle[:, 1] - 1e-6).all()


@pytest.mark.parametrize("name", NAMES)
def test_stored_scores_of_the_whole_test_set_are_the_leaderboards(name: str) -> None:
    records = [
        record
        for record in json.loads(LEADERBOARD.read_text())
        if (record["store"], record["horizon"]) == ("knee-paper-size", name)
        and record["reconstruction"] == "frozen"
    ]
    stored = stored_of(name).whole_test
    assert {"random", "oracle", "na-oracle"} <= set(stored)
    by_method = {one["method"]: one for one in records}
    (acquisition,) = [one for one in ZOO_ACQUISITIONS if one.name == name]
    weights = {title: own for title, own in acquisition.policies.items() if own in by_method}
    # The leaderboard's own `greedy` are other seeds than the zoo's.
    assert weights["greedy"] == "knee-base-greedy"
    for title, entry in stored.items():
        own = by_method[weights.get(title, title)]
        assert (entry["ssim"], entry["interval"]) == (own["ssim_mean"], own["interval"])


def test_other_rounding_is_told_and_other_slices_are_refused() -> None:
    stored = stored_of(NAMES[0])
    assert stored.check(stored.fingerprint, scores_like(stored))[0]
    is_same, why = stored.check("0123456789abcdef", scores_like(stored, by=3e-5))
    assert is_same
    assert "0123456789ab" in why and "the same within 0.0001" in why
    # Also in the same store: another U-Net may have been put into the zoo.
    is_same, why = stored.check(stored.fingerprint, scores_like(stored, by=3e-4))
    assert not is_same
    assert "differs by up to 3e-04" in why
    moved = replace(stored, slices=stored.slices[::-1])
    assert not moved.check(stored.fingerprint, scores_like(stored))[0]


def test_a_handful_is_said_to_settle_nothing_beside_the_whole_test_set() -> None:
    where = ("greedy", "fixed", 0.0013, (-0.0007, 0.0028))
    compared = Comparison(*where, 1.0, 1.0, "", "", None)
    summary = replace(make_summary(), n_slices=7, n_volumes=6, comparisons=(compared,))
    text = tell_handful(summary, "greedy", stored_of("knee-base"))
    assert "7 slices of 6 knees settle nothing" in text
    assert "greedy minus fixed is +0.0013 (95 % interval −0.0007 to +0.0028)" in text
    assert "whole test set, it is +0.0023 (95 % interval +0.0019 to +0.0027)" in text
    assert "whole" not in tell_handful(summary, "greedy", None)


def test_masks_stand_between_images_and_errors() -> None:
    target = np.random.default_rng(0).random((9, 11))
    mask = np.arange(11) % 3 == 0
    figure = draw_reconstructions(target, {"one": target / 2}, masks={"one": mask})
    image, strip, error = (axes.get_images()[0].get_array() for axes in figure.axes[1::2])
    assert np.array_equal(image, target / 2)
    assert (np.asarray(strip) == mask).all()
    assert np.allclose(error, target / 2)
