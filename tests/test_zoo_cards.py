"""The zoo's cards tell the measured scores, and what a user must know."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kscout import policies
from kscout.policies.fixed import FixedOrder
from kscout.policies.weighed import WeighedPolicy
from kscout.weights import read_weights
from kscout.zoo import ZOO, zoo_card, zoo_file, zoo_names

LEADERBOARD = Path(__file__).parents[1] / "benchmarks" / "leaderboard.json"
JOINT = {f"joint-{horizon}": f"{horizon}-dense-0" for horizon in ("knee-base", "knee-long")}
"""Records of `benchmarks/joint_results` that pairs of the zoo are from."""
RECORDED = {
    "heads-base-column": "heads_results/zoom-heads-without-colin27-knee-base-seed0",
    "heads-base-weighed": "zoo_results/heads-base-weighed",
    "heads-long-weighed": "zoo_results/heads-long-weighed",
}
"""Records of entries whose slices are not those of the leaderboard."""
ALONE = [
    name
    for name in zoo_names("policy")
    if not name.startswith(("joint-", "knee-sizes-"))
    and not name.endswith("-imagine")
    and name not in (*RECORDED, "heads-long-fixed")
]

MANTISSAS = {
    **{name: (6, "once more, to 6 bits") for name in ("knee-base-greedy", "knee-long-greedy")},
    "knee-base-imagine": (7, "multiplies them (bfloat16)"),
    "heads-base-imagine": (5, "mantissas have 5 bits"),
    "knee-sizes-unet": (6, "their mantissas in 6"),
    "knee-sizes-column": (6, "mantissas have 6 bits"),
}
"""Entries of shorter mantissas than 16-bit floats have, and how cards say it."""

ROWS = {
    **{name: name for name in ("oracle", "center-out", "random")},
    **{"NA oracle": "na-oracle", "fixed order": "fixed"},
    **{"equispaced, one-sided": "equispaced-one", "equispaced, two-sided": "equispaced-two"},
    "greedy on the paper's number of slices, five seeds, best epochs": "greedy-best",
    "greedy on the paper's number of slices, five seeds, last epoch": "greedy",
    "gamma .9 on the paper's number of slices, one seed, last epoch": "gamma-0.9",
    "its last epoch": "greedy",
    **{f"`{name}`": name for name in ("knee-base-column", "knee-base-greedy", "knee-long-greedy")},
}
"""How cards call the methods of the leaderboard."""

Records = list[dict[str, Any]]


@pytest.fixture(scope="module")
def leaderboard() -> Records:
    return json.loads(LEADERBOARD.read_text(encoding="utf-8"))


def _field(name: str, leaderboard: Records) -> dict[str, dict[str, Any]]:
    """Return the records of the acquisition that an entry was trained for, by method."""
    horizon = name.rpartition("-")[0]
    place = (horizon, "frozen")
    return {
        record["method"]: record
        for record in leaderboard
        if (record["horizon"], record["reconstruction"]) == place
    }


@pytest.mark.parametrize("name", ALONE)
def test_cards_tell_the_scores_of_the_leaderboard(name: str, leaderboard: Records) -> None:
    field = _field(name, leaderboard)
    record = field["fixed" if name.endswith("-fixed") else name]
    card = " ".join(zoo_card(name).split())
    assert f"{record['ssim_mean']:.4f}" in card
    for end in record["interval"] or ():
        assert f"{end:+.4f}" in card
    if name.endswith("-fixed"):
        assert f"test slices themselves: {field['na-oracle']['ssim_mean']:.4f}." in card


@pytest.mark.parametrize("name", [name for name in ALONE if not name.endswith("-fixed")])
def test_tables_of_cards_are_those_of_the_leaderboard(name: str, leaderboard: Records) -> None:
    lines = zoo_card(name).partition("| policy |")[2].splitlines()[2:]
    told = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    assert len(told) >= 7
    field = _field(name, leaderboard)
    for label, ssim, difference, interval in told:
        record = field[ROWS.get(label, name)]
        assert ssim.strip("*").startswith(f"{record['ssim_mean']:.4f}")
        if record["interval"] is None:
            assert (difference, interval) == ("0", "")
            continue
        low, high = record["interval"]
        assert difference == f"{record['difference_to_fixed']:+.4f}"
        assert interval == f"{low:+.4f} to {high:+.4f}"


def _told(name: str) -> list[list[str]]:
    lines = zoo_card(name).partition("| policy |")[2].splitlines()[2:]
    return [[cell.strip("* ") for cell in line.split("|")[1:-1]] for line in lines if "|" in line]


@pytest.mark.parametrize("name", RECORDED)
def test_cards_of_other_slices_tell_their_record(name: str) -> None:
    file = LEADERBOARD.parent / f"{RECORDED[name]}.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    told = {label: cells for label, *cells in _told(name)}
    assert set(told) == {"this policy", "oracle", "NA oracle", "fixed order"}
    low, high = record["interval"]
    lead = f"{record['difference_to_fixed']:+.4f}"
    assert told["this policy"] == [f"{record['ssim']:.4f}", lead, f"{low:+.4f} to {high:+.4f}"]
    for label, mark in (("oracle", "oracle"), ("NA oracle", "na-oracle"), ("fixed order", "fixed")):
        apart = record["marks"][mark] - record["marks"]["fixed"]
        words = f"{apart:+.4f}" if apart else "0"
        assert told[label] == [f"{record['marks'][mark]:.4f}", words, ""]
    card = " ".join(zoo_card(name).split())
    assert f"{record['n_slices']} slices" in card
    assert f"{record['train_s']:.0f} s on one NVIDIA H200" in card
    if record["gap_closed"] is not None:
        assert f"It closes {record['gap_closed']:.2f} of the gap" in card


def test_cards_tell_what_their_records_say_of_plain_imports_and_of_one_member() -> None:
    files = LEADERBOARD.parent.glob("heads_results/plain-*-by-zoom-heads-without-colin27-*.json")
    gains = [json.loads(x.read_text(encoding="utf-8"))["difference_to_fixed"] for x in files]
    n_above = sum(gain > 0 for gain in gains)
    card = " ".join(zoo_card("heads-base-column").split())
    assert f"on {n_above} of {len(gains)}, by {min(gains):+.4f} to {max(gains):+.4f}" in card
    file = LEADERBOARD.with_name("heads_column.json")
    made = json.loads(file.read_text(encoding="utf-8"))[0]
    lead, (low, high) = made["column"]["ssim"] - made["fixed"], made["column"]["interval"]
    words = f"{made['n_slices']} slices of the same head, ends {lead:.4f} above `heads-base-fixed`"
    assert f"{words} ({low:.4f} to {high:.4f};" in card
    alone = LEADERBOARD.parent / "dense_results" / "imagine-knee-knee-base-seed0.json"
    record = json.loads(alone.read_text(encoding="utf-8"))
    card = " ".join(zoo_card("knee-base-imagine").split())
    assert f"closes {record['gap_closed']:.2f} of the gap" in card
    assert f"alone, on {record['n_slices']} slices" in card
    whole = LEADERBOARD.parent / "dense_results" / "weighed-4x-all-knee-knee-base-seed0.json"
    ssim = json.loads(whole.read_text(encoding="utf-8"))["ssim"]
    assert f"`knee-base-column` does, reaches {ssim:.4f} on 1715 test slices" in card


def test_the_card_of_a_long_order_tells_the_record_of_the_policy_beside_it() -> None:
    marks = _zoo_result("heads-long-weighed")["marks"]
    card = " ".join(zoo_card("heads-long-fixed").split())
    assert f"examinations of one head: {marks['fixed']:.4f}." in card
    assert f"test slices themselves: {marks['na-oracle']:.4f}." in card
    order, weighed = policies.load("heads-long-fixed"), policies.load("heads-long-weighed")
    assert isinstance(order, FixedOrder) and isinstance(weighed, WeighedPolicy)
    assert f"Columns {', '.join(map(str, order.order))}." in card
    # What the weighed policy begins with is the same order, fitted in another run.
    assert list(weighed.order) == order.order[:12]


@pytest.mark.parametrize("name", ["knee-base-greedy", "knee-long-greedy"])
def test_cards_of_greedy_tell_what_shorter_mantissas_changed(name: str) -> None:
    record = _zoo_result(name)
    low, high = record["interval"]
    card = " ".join(zoo_card(name).split())
    slices = f"{record['n_slices']} test slices, {record['n_trajectories']} acquisitions each"
    told = f"{record['difference_to_before']:.5f}, {low:.5f} to {high:.5f}:"
    assert f"{slices}, through 16-bit kernels, this moves its mean SSIM by {told}" in card


@pytest.mark.parametrize("name", MANTISSAS)
def test_mantissas_are_as_short_as_cards_say(name: str) -> None:
    n_bits, words = MANTISSAS[name]
    assert words in " ".join(zoo_card(name).split())
    found = read_weights(zoo_file(name)).state.values()
    assert all(_has_mantissas_of(n_bits, x) for x in found if x.is_floating_point())


@pytest.mark.parametrize("name", ["knee-sizes-column", "heads-base-imagine"])
def test_cards_tell_of_a_training_what_it_recorded(name: str) -> None:
    record, card = _zoo_result(name), " ".join(zoo_card(name).split())
    assert f"{record['train_s']:.0f} s on one NVIDIA H200" in card
    assert MANTISSAS[name][0] == record["n_bits"]
    if name == "knee-sizes-column":
        began = f"{record['val_ssim_at_start']:.4f} where it began from, with mean gains of its own"
        assert f"{began}, and {record['val_ssim'][-1]:.4f} after these epochs" in card
        assert f"**{record['n_epochs']} epochs of 30**" in card


def _has_mantissas_of(n_bits: int, values: torch.Tensor) -> bool:
    mantissa, _ = torch.frexp(values.double())
    steps = mantissa * 2 ** (n_bits + 1)
    return values.numel() == 1 or torch.equal(steps, steps.round())


def _zoo_result(name: str) -> Any:
    file = LEADERBOARD.parent / "zoo_results" / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_card_of_imagined_heads_tells_what_it_is_for() -> None:
    card = " ".join(zoo_card("heads-base-imagine").split())
    own, other = (_zoo_result(f"heads-base-weighed{x}")["ssim"] for x in ("", "-knee"))
    assert f"reaches {own:.4f} on 320 test slices" in card
    assert f"`knee-base-imagine` in its place reaches {other:.4f}" in card


def test_the_card_of_weighed_heads_tells_of_imports() -> None:
    lines = json.loads(LEADERBOARD.with_name("heads_weighed.json").read_text(encoding="utf-8"))
    gains = [one["weighed"]["ssim"] - one["fixed"] for one in lines]
    n_above, n_better = (
        sum(one["weighed"]["ssim"] > least for one, least in zip(lines, limits, strict=True))
        for limits in ([x["fixed"] for x in lines], [x["column"]["ssim"] for x in lines])
    )
    card = " ".join(zoo_card("heads-base-weighed").split())
    told = f"on {n_above} of {len(lines)}, by {min(gains):+.4f} to {max(gains):+.4f}"
    assert f"{told}, and above `heads-base-column` on {n_better} (" in card


def test_the_card_of_several_sizes_tells_their_records() -> None:
    lines = json.loads(LEADERBOARD.with_name("sizes.json").read_text(encoding="utf-8"))
    card, told = zoo_card("knee-sizes-unet"), []
    for own in (one for one in lines if one["label"] == "knee-sizes-unet"):
        (beside,) = (x for x in lines if (x["label"], x["n_cols"]) == ("knee-unet", own["n_cols"]))
        cells = (own["zero_filled"], own["ssim"], beside["ssim"])
        told.append(f"| {own['n_cols']} | {' | '.join(f'{x:.4f}' for x in cells)} |")
        assert own["n_slices"] == beside["n_slices"] and f"{own['n_slices']} test slices" in card
    assert len(told) == 6 and "\n".join(told) in card


def test_the_card_of_a_policy_of_several_sizes_tells_their_records() -> None:
    lines = json.loads(LEADERBOARD.with_name("sizes.json").read_text(encoding="utf-8"))
    own = [one for one in lines if one["label"] == "knee-sizes-column"]
    card, told = zoo_card("knee-sizes-column"), []
    for one in own:
        share, (low, high) = one["n_cols"] // 8, one["interval"]
        fixed = (str(one["n_train"]), f"{one['fixed']:.4f}")
        cells = (f"{share} + {share}", *fixed, f"{one['difference']:+.4f}")
        told.append(f"| {one['n_cols']} | {' | '.join(cells)} | {low:+.4f} to {high:+.4f} |")
        assert f"{one['n_slices']} slices" in card
    words, single = " ".join(card.split()), [x["n_cols"] for x in own if x["precision"] == "fp32"]
    assert single == [96] and "through 16-bit kernels, at 96 columns in single precision" in words
    assert len(told) == 6 and "\n".join(told) in card
    above = [one["n_cols"] for one in own if one["interval"][0] > 0]
    level = [one["n_cols"] for one in own if one["interval"][0] < 0 < one["interval"][1]]
    assert (above, level) == ([96, 128, 192, 256], [64, 320])
    assert "leads at 96, 128, 192 and 256 columns, and does not at 64 and 320" in words
    *few, many = _zoo_result("knee-sizes-column")["fixed_orders_of_64_columns"]
    assert [x["n_train"] for x in (*few, many)] == [64, 64, 64, 256]
    first, second, third = sorted(one["ssim"] for one in few)
    ends = f"64 slices each end at {first:.4f}, {second:.4f} and {third:.4f}"
    assert f"{ends}, and the one of 256 slices at {many['ssim']:.4f}." in words


def _joint(stem: str) -> Any:
    file = LEADERBOARD.with_name("joint_results") / f"{stem}.json"
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [name for name in ZOO if name.startswith("joint-")])
def test_cards_of_a_pair_tell_its_record_and_whose_the_gain_is(name: str) -> None:
    record = _joint(JOINT[name.rpartition("-")[0]])
    card = " ".join(zoo_card(name).replace("\\\n", " ").split())
    # Of all test slices where the record tells of them.
    n_slices, arm, fixed = (record["bounds"][key] for key in ("n_slices", "arm", "fixed"))
    if after := record.get("fitted_after"):
        arm, n_slices = record["ssim"], sum(one["n_slices"] for one in after.values())
        fixed = sum(one["n_slices"] * one["ssim"] for one in after.values()) / n_slices
    for command in record["commands"]:
        assert command in card
    n_steps = len(record["curve"]) - 1
    columns = f"{32 - n_steps} + {n_steps} columns"
    assert f"Test SSIM after {columns} {record['ssim']:.4f}," in card
    alike = "**A fixed order does as well with this network**" in card
    assert alike == (arm < fixed)
    told = f"scores {fixed:.4f} on {n_slices:,} test slices, and the pair's own policy"
    apart = f"{arm:.4f} on {n_slices:,} test slices, where a fixed order that was fitted for it "
    assert (told if alike else f"{apart}afterwards scores {fixed:.4f}.") in card
    assert "/work" not in card and " /" not in card


def test_a_pair_is_of_the_seed_that_validation_chose() -> None:
    ends = [_joint(f"knee-base-dense-{seed}")["validation"][-1] for seed in (0, 1, 2)]
    assert ends[0] == max(ends)
    words = f"highest validation SSIM at the last epoch, {ends[0]:.4f}; the others have"
    for half in ("unet", "column"):
        assert words in " ".join(zoo_card(f"joint-knee-base-{half}").split())


@pytest.mark.parametrize("name", ZOO)
def test_cards_say_what_a_user_must_know(name: str) -> None:
    card = zoo_card(name)
    for word in ("## Data", "## Commands", "## Scores", "protocol", "H200", "MIT", "not clinical"):
        assert word in card, word


def test_the_card_of_weighed_heads_tells_what_imports_of_other_people_gave() -> None:
    file = LEADERBOARD.with_name("heads_weighed.json")
    lines = json.loads(file.read_text(encoding="utf-8"))
    ssim = [[*(one[name]["ssim"] for name in ("weighed", "column")), one["fixed"]] for one in lines]
    leads = [mine - fixed for mine, _, fixed in ssim]
    n_above, n_better = sum(lead > 0 for lead in leads), sum(a > b for a, b, _ in ssim)
    told = (
        f"`heads-base-fixed` on {n_above} of {len(lines)}, by {min(leads):+.4f} to "
        f"{max(leads):+.4f}, and above `heads-base-column` on {n_better} ("
    )
    assert told in zoo_card("heads-base-weighed")
