"""What is said of joint trainings follows from their records, and no more is said."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from joint_arms import MIRRORED, record
from kscout.config import to_table
from kscout.files import write_json

JOINT_PAGE = Path(__file__).parents[1] / "docs" / "joint.md"


@pytest.fixture(scope="module")
def records(scripts: Any) -> ModuleType:
    return scripts("joint_records")


@pytest.mark.parametrize(
    ("by_seed", "interval", "words"),
    [
        ([0.003, 0.0032], (0.001, 0.005), "adapting pays"),
        ([0.001, 0.00105], (0.001, 0.002), "adapting pays, by less than 0.002"),
        ([0.003, 0.0032], (-0.001, 0.005), "no difference is shown"),
        ([-0.003, -0.0032], (-0.005, -0.001), "adapting costs"),
        ([0.007, -0.001], (0.001, 0.005), "seeds differ too much to decide"),
        ([-0.007, 0.001], (-0.005, -0.001), "seeds differ too much to decide"),
        # Student's t of three seeds is 4.3.
        ([0.004, 0.001, 0.003], (0.001, 0.005), "seeds differ too much to decide"),
        ([0.003, 0.0026, 0.0034], (0.001, 0.005), "adapting pays"),
        ([0.003, 0.0032], None, "one volume decides nothing"),
        ([0.003], (0.001, 0.005), "adapting pays with this one seed"),
        ([-0.003], (-0.005, -0.001), "adapting costs with this one seed"),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_seeds(
    scripts: Any, by_seed: list[float], interval: tuple[float, float] | None, words: str
) -> None:
    seeds = tuple(range(len(by_seed)))
    found = scripts("paired").Paired(seeds, sum(by_seed) / len(by_seed), interval)
    verdict = scripts("joint_findings").verdict
    assert verdict(found, by_seed) == words
    alone = " with this one seed" if len(by_seed) == 1 else ""
    by_network = f"the arm leads by its network{alone}; that choosing anew adds to it is not shown"
    leads = words.startswith("adapting pays")
    assert verdict(found, by_seed, adds=False) == (by_network if leads else words)
    behind = f"the arm trails by its network{alone}, though choosing anew adds to it"
    trails = words.startswith("adapting costs")
    assert verdict(found, by_seed, adds=True) == (behind if trails else words)


def test_the_strongest_fixed_arm_is_the_reference_and_the_others_are_told_beside(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    fresh = {"sampler": {"fresh_pool": True}, "label": "fresh"}
    stale = [record(records, "fixed", seed, [0.7, 0.8, 0.6]) for seed in (0, 1)]
    strong = [record(records, "fixed", seed, [0.702, 0.802, 0.602], **fresh) for seed in (0, 1)]
    dense = [record(records, "dense", seed, [0.703, 0.803, 0.603]) for seed in (0, 1)]
    text, name = (
        _findings(scripts, tmp_path, [*stale, *strong, *dense]),
        "`fixed` (fresh_pool=true)",
    )
    assert f"`dense` minus {name} +.0010 (.0010 to .0010) over 2 seeds" in text
    assert "Over the weaker `fixed` it is +.0030 (.0030 to .0030), 2 seeds: " in text
    lead = f"{name} minus `fixed` is +.0020 (.0020 to .0020), by seed +.0020, +.0020; standard"
    assert lead in text and "below its best epoch" not in text
    fallen = [replace(one, validation=(0.7, 0.73, 0.72)) for one in strong]
    words = f"On validation slices {name} ends .0100, .0100 below its best epoch."
    assert words in _findings(scripts, tmp_path, [*stale, *fallen, *dense])
    told = records.table([*stale, *strong, *dense])
    assert f"| {name} | 0, 1 | .6853 ± .0000 | reference |" in told
    assert "| `fixed` | 0, 1 | .6833 ± .0000 | -.0020 (-.0020 to -.0020) |" in told
    # One of fewer seeds does not stand for all, and what it would change is said.
    text = _findings(scripts, tmp_path, [*stale, strong[0], *dense])
    assert "`dense` minus `fixed` +.0030" in text
    assert f"Over the stronger {name} it is +.0010 (.0010 to .0010), 1 seed: " in text


def _findings(scripts: Any, folder: Path, found: list[Any]) -> str:
    for file in folder.glob("*.json"):
        file.unlink()
    for one in found:
        write_json(folder / f"{one.stem}.json", to_table(one))
    text = scripts("joint_findings").findings(folder)
    assert isinstance(text, str)
    return text


def test_a_difference_is_parted_over_the_seeds_that_both_have(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    bounds = [records.Bounds(2, arm, arm - 0.01, 0.7, 0.9) for arm in (0.8, 0.85)]
    fixed = record(records, "fixed", 1, [0.7, 0.8, 0.6], bounds=bounds[0])
    dense = [
        record(records, "dense", seed, [0.702, 0.802, 0.602], bounds=bounds[seed])
        for seed in (0, 1)
    ]
    text = _findings(scripts, tmp_path, [fixed, *dense])
    assert "Of +.0500 on 2 slices, +.0100 (+.0100) is what choosing anew" in text
    assert "fitted for that network, and +.0400 (+.0400) is what that network leads by" in text
    close = replace(dense[1], bounds=records.Bounds(2, 0.85, 0.849, 0.7, 0.9))
    text = _findings(scripts, tmp_path, [fixed, close])
    assert "+.0010 (+.0010; less than 0.002) is what choosing anew is worth" in text
    assert "adapting pays with this one seed. In area" in text
    worse = replace(dense[1], bounds=records.Bounds(2, 0.85, 0.8501, 0.7, 0.9))
    assert "that choosing anew adds to it is not shown. In" in _findings(
        scripts, tmp_path, [fixed, worse]
    )


def test_a_difference_is_parted_by_volume_where_all_slices_were_scored(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    def after(*ssim: float) -> dict[str, Any]:
        counts = zip("abc", (1, 2, 3), ssim, strict=True)
        return {name: records.Volume(n, value, 30.0) for name, n, value in counts}

    fixed = [record(records, "fixed", seed, [0.7, 0.8, 0.6]) for seed in (0, 1)]
    dense = [record(records, "dense", seed, [0.706, 0.806, 0.606]) for seed in (0, 1)]
    told = [replace(one, fitted_after=after(0.701, 0.804, 0.604)) for one in dense]
    text = _findings(scripts, tmp_path, [*fixed, *told])
    chosen, network = (0.005 + 2 * 0.002 + 3 * 0.002) / 6, (0.001 + 2 * 0.004 + 3 * 0.004) / 6
    words = f"Of +.0060 on 6 slices, +{chosen:.4f} (.0020 to .0050) (+{chosen:.4f}, "
    words += f"+{chosen:.4f}) is what choosing anew".replace("+0.", "+.")
    assert words.replace("+0.", "+.") in text and "adapting pays. In area" in text
    assert f"+{network:.4f} (.0010 to .0040) (".replace("+0.", "+.") in text
    # Volumes that disagree decide nothing, whatever the seeds' means.
    unsure = [replace(one, fitted_after=after(0.709, 0.805, 0.604)) for one in dense]
    text = _findings(scripts, tmp_path, [*fixed, *unsure])
    assert "the arm leads by its network; that choosing anew adds to it is not shown. In" in text


def test_a_fixed_order_that_nothing_stands_beside_is_compared_with_its_other_settings(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    arms = [record(records, arm, 0, [0.7, 0.8, 0.6]) for arm in ("fixed", "dense")]
    turned = {"settings": {"a": 1, "training": {"flips": True, "turn": 8.0}}, "label": "varied"}
    ahead = record(records, "fixed", 0, [0.71, 0.81, 0.61], **turned)
    text = _findings(scripts, tmp_path, [*arms, ahead])
    assert (
        "mirrored, turned, 6,000 updates.** `fixed` alone was run, .6933 over 1 seed; whether"
        in text
    )
    assert "It is +.0100 (.0100 to .0100) from `fixed` under knee-base" in text
    assert "and above the best arm there with the same seed (.6833)." in text
    behind = record(records, "fixed", 0, [0.69, 0.79, 0.59], **turned)
    assert "below the best arm there" in _findings(scripts, tmp_path, [*arms, behind])


def test_an_oracle_below_the_fixed_order_is_told_to_be_no_bound(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    arms = [
        record(records, arm, 0, [0.87, 0.89, 0.88], horizon="knee-long")
        for arm in ("fixed", "dense")
    ]
    text = _findings(scripts, tmp_path, arms)
    assert "reaches .8817, above one with the frozen network (.8584). The oracle there" in text
    assert "no bound (.8195)" in text and "above the frozen network's oracle" not in text


def test_rises_are_those_of_validation_after_the_third_epoch(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    rising = {"validation": (0.7, 0.8, 0.81, 0.82, 0.83)}
    arms = [record(records, "dense", 0, [0.7, 0.8, 0.6], **rising)]
    arms += [record(records, "fixed", seed, [0.7, 0.8, 0.6]) for seed in (0, 1)]
    arms += [record(records, "random", 0, [0.7, 0.8, 0.6], validation=(0.7, 0.8))]
    wide = {**rising, "n_parameters": 3348131, "label": "32"}
    arms += [record(records, "dense", 0, [0.7, 0.8, 0.6], **wide, settings={"channels": 32})]
    for one in arms:
        write_json(tmp_path / f"{one.stem}.json", to_table(one))
    text = scripts("joint_headroom").rises(tmp_path)
    narrow, _, rest = text.partition("knee-base, 16 + 16 columns, 3.3 million parameters")
    for part in (narrow, rest):
        assert part.count("| `") == 1 and "| `dense` | 0 | +.0200 |" in part


def test_findings_and_headroom_are_those_of_the_records(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    findings = scripts("joint_findings")
    settings = {**MIRRORED, "start": "b211ad", "reconstructor": {"name": "unet", "n_channels": 16}}
    assert "has been run yet" in findings.findings(tmp_path)
    for arm, ssim in (("fixed", [0.88, 0.89, 0.87]), ("dense", [0.881, 0.891, 0.871])):
        for seed in (0, 1):
            command = f"kscout train joint --method {arm} --out runs/{arm} --seed {seed} --steps 16"
            changed = {"settings": settings, "commands": (f"{command} --set a.b=true", "")}
            one = record(records, arm, seed, ssim, **changed)
            write_json(tmp_path / f"{arm}-{seed}.json", to_table(one))
    text = findings.findings(tmp_path)
    words = "`dense` minus `fixed` +.0010 (.0010 to .0010) over 2 seeds (+.0010, +.0010; "
    words += "standard error .0000): "
    words += "adapting pays, by less"
    assert text.count("\n- ") == 0 and words in text
    assert "reaches .8783, above the frozen network's oracle, which sees the truth (.8696;" in text
    row = {"policy": "posterior", "step": 1, "ssim": 0.8, "gap_closed": 0.31, "difference": 0.1}
    other = {**row, "policy": "look-ahead dense", "gap_closed": 0.25}
    (tmp_path / "ceiling" / "knee-base-dense-0").mkdir(parents=True)
    rows = [{**one, "low": None, "high": None} for one in (row, other)]
    write_json(tmp_path / "ceiling" / "knee-base-dense-0" / "ceiling.json", rows)
    told = scripts("joint_headroom").headroom(tmp_path)
    measured = "| .8000 | .7900 | .7000 | .9000 | 50 % |"
    assert (
        f"| `dense` | 0, 1 {measured} 31 % (seed 0) |" in told
        and f"| `fixed` | 0, 1 {measured} - |" in told
    )
    sentence = scripts("joint_best").best(tmp_path)
    command = "kscout train joint --method dense --out runs/joint --set a.b=true"
    assert f"```bash\n{command}\n```" in sentence
    words = " ".join(sentence.split())
    assert "the 6,959 slices of `kscout data make knee --paper` it reaches SSIM .8793 (2 s" in words
    assert ".8793 (2 seeds), a fixed order with a network of its own .8783. The best" in words
    assert "(2 minutes on one cpu that others shared)" in words
    parted = (
        "Of +.0000 on 2 slices, +.0100 (+.0100, +.0100) is what choosing anew is worth on the "
        "network of `dense`"
    )
    assert parted in text and "and -.0100 (-.0100, -.0100) is what that network leads by" in text
    assert "adapting pays, by less than 0.002. In area +.0005, in PSNR +0.00 dB." in text


def test_the_answer_is_beside_the_strongest_fixed_order_of_each_horizon(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    answer, plain = scripts("joint_findings").answer, {"settings": {"a": 1}, "label": "plain"}
    weak = [record(records, "fixed", 0, [0.69, 0.79, 0.59], **plain)]
    weak += [record(records, "dense", 0, [0.72, 0.82, 0.62], **plain)]
    strong = [record(records, "fixed", seed, [0.7, 0.8, 0.6]) for seed in (0, 1)]
    strong += [record(records, "dense", seed, [0.701, 0.801, 0.601]) for seed in (0, 1)]
    # Nothing stands beside the fixed order of another horizon.
    alone = record(records, "fixed", 0, [0.9, 0.9, 0.9], horizon="knee-8x")
    for one in (*weak, *strong, alone):
        write_json(tmp_path / f"{one.stem}.json", to_table(one))
    (line,) = answer(tmp_path).splitlines()[2:]
    assert line == (
        "| `knee-base`, 16 + 16, mirrored | +.0010 (.0010 to .0010) | +.0010, +.0010 | +.0100 | "
        "-.0100 | adapting pays, by less than 0.002 |"
    )


def test_what_the_page_concludes_is_what_the_records_say(scripts: Any, records: ModuleType) -> None:
    answers = scripts("joint_findings").answer().splitlines()[2:]
    at_4x, at_8x = (
        next(x for x in answers if x.startswith(f"| `{h}`")) for h in ("knee-base", "knee-8x")
    )
    assert "mirrored | +.00" in at_4x and "adapting pays, by less than 0.002" in at_4x
    assert "mirrored |" in at_8x
    found = records.read_records()
    for horizon, group in records.hardest(found, "dense").items():
        if horizon not in ("knee-base", "knee-8x"):
            continue
        fixed, dense = (records.leading(group, arm) for arm in ("fixed", "dense"))
        assert len(fixed) == len(dense) == 3
        plain = [x for x in found if (x.horizon, x.arm, x.label) == (horizon, "fixed", "plain")]
        others = [x for x in found if (x.horizon, x.arm) == (horizon, "dense") and x not in dense]
        assert _mean(fixed) - _mean(plain) > _mean(dense) - _mean(fixed) > 0
        assert _mean(others) - _mean(plain) > _mean(dense) - _mean(fixed)
        assert _mean(fixed) > max(
            x.ssim for x in found if x.horizon == horizon and not x.slices["flips"]
        )
        chosen = [x.ssim - scripts("paired").mean_ssim(x.fitted_after) for x in dense]
        leads = [x.ssim - y.ssim for x, y in zip(dense, fixed, strict=True)]
        if horizon == "knee-8x":
            assert sum(chosen) / 3 < max(leads) - min(leads)


def _mean(arm: list[Any]) -> float:
    return sum(one.ssim for one in arm) / len(arm)


def test_the_answer_in_words_is_that_of_the_table(scripts: Any) -> None:
    lines = scripts("joint_findings").answer().splitlines()[2:]
    rows = {line.split("`")[1]: line.strip("| ").split(" | ") for line in lines}
    page = " ".join(JOINT_PAGE.read_text(encoding="utf-8").split())
    for words, horizon, verdict in (
        ("At 4x adapting pays on knees, though by less than", "knee-base", "by less than 0.002"),
        ("At 8x choosing anew adds less than seeds differ by", "knee-8x", "too much to decide"),
        ("no network has seen, no difference is shown", "heads-base", "no difference is shown"),
        ("the fixed order leads with the one seed", "knee-long", "adapting costs with this one"),
    ):
        assert words in page and verdict in rows[horizon][-1], horizon
    by_seed = [float(lead) for lead in rows["knee-8x"][2].split(", ")]
    assert abs(float(rows["knee-8x"][3])) < max(by_seed) - min(by_seed)


def test_the_page_in_short_is_what_the_records_say(scripts: Any, records: ModuleType) -> None:
    page = " ".join(JOINT_PAGE.read_text(encoding="utf-8").split())
    for words in (
        "a network that learns for the columns in use gains more than any policy does",
        "from a narrow start it gains more still. There a fixed order does as well as a policy",
        "from 16 central columns a policy adds a little",
    ):
        assert words in page
    groups, frozen = records.hardest(records.read_records(), "dense"), {}
    for row in scripts("leaderboard").frozen_rows():
        if row.store == "knee-paper-size" and row.horizon == "knee-base":
            frozen[row.method] = row.ssim_mean
    wide, narrow = (
        {arm: _mean(records.leading(groups[horizon], arm)) for arm in ("fixed", "dense")}
        for horizon in ("knee-base", "knee-long")
    )
    best = max(ssim for method, ssim in frozen.items() if "oracle" not in method)
    assert wide["fixed"] - frozen["fixed"] > best - frozen["fixed"] > 0
    assert narrow["fixed"] > wide["dense"] > wide["fixed"] and narrow["fixed"] >= narrow["dense"]
