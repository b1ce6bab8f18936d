"""`benchmarks/multicoil.py`: its commands exist, and a stage that is recorded is not run again."""

import importlib
import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from kscout.provenance import Provenance
from kscout.reconstruction import load, save
from kscout.reconstruction.varnet import VarNet
from kscout.weights import WEIGHTS_NAME
from kscout.zoo import zoo_card
from test_docs import check_parses

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def multicoil() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("multicoil")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def records(multicoil: ModuleType) -> ModuleType:
    return importlib.import_module("multicoil_records")


def test_every_command_of_every_stage_parses(multicoil: ModuleType) -> None:
    words = ["--set", "reconstructor.n_cascades=4", "--set", "training.n_random=8"]
    wanted = multicoil.parsed(["all", *words, "--limit", "9"])
    wanted.kind = "knee"
    found = multicoil.stages(wanted)
    for stage in found.values():
        check_parses(shlex.join(["kscout", *stage.command]))
    assert "reconstructor.n_cascades=4" in found["varnet"].command
    assert "training.n_random=8" in found["policy-4x"].command
    assert "training.n_random=4" not in found["policy-4x"].command


def test_every_stage_comes_after_those_whose_results_it_reads(multicoil: ModuleType) -> None:
    written: set[str] = set()
    for command in stages_of(multicoil, "knee").values():
        *read, out = [word.rpartition("=")[2] for word in command if "runs/multicoil" in word]
        assert set(read) <= written, command
        written.add(out)


def stages_of(module: ModuleType, kind: str) -> dict[str, list[str]]:
    wanted = module.parsed(["all", "--source", "a.nii.gz", "b.nii.gz"])
    wanted.kind = kind
    return {name: stage.command for name, stage in module.stages(wanted).items()}


def test_every_command_of_every_stage_parses_for_each_kind(multicoil: ModuleType) -> None:
    for kind in ("heads", "knee"):
        made = stages_of(multicoil, kind)["store"]
        assert ("a.nii.gz" in made) == (kind == "heads")
        check_parses(shlex.join(["kscout", *made]))


def test_a_stage_that_fails_keeps_no_other_from_being_tried(
    multicoil: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_stores = []

    def run(name: str, stage: object, record: Path, *, until: float) -> None:
        n_stores.append(multicoil.ONE_STORE.locked() and name.endswith("store"))
        if name == "knee unet":
            raise SystemExit("knee unet: ended")
        record.write_text("{}")

    monkeypatch.setattr(multicoil, "run", run)
    with pytest.raises(SystemExit, match="knee unet: ended"):
        multicoil.main(["all", "--kind", "knee", "heads", "--records", str(tmp_path)])
    for kind, missing in (("heads", set()), ("knee", {"unet"})):
        found = {path.stem.split("-", 2)[2] for path in tmp_path.glob(f"{kind}8-*.json")}
        assert found == set(stages_of(multicoil, kind)) - missing
    assert sum(n_stores) == 2


def test_the_page_has_the_numbers_of_the_record_of_a_large_import() -> None:
    found = json.loads((BENCHMARKS / "large_import.json").read_text(encoding="utf-8"))
    page = (BENCHMARKS.parent / "docs" / "raw.md").read_text(encoding="utf-8")
    told = (
        f"{found['n_slices']} slices of 16 coils and 640 x 368, a `.cfl` of "
        f"{found['file_bytes'] / 1e9:.2f} GB, imported with `{found['options']}`, peaked at "
        f"{found['peak_bytes'] / 1e6:.0f} MB, a single one of them at "
        f"{found['peak_bytes_of_one_slice'] / 1e6:.0f} MB ({found['machine']}, Python "
        f"{found['python']}, torch {found['torch']}; `benchmarks/large_import.py`)"
    )
    assert told in " ".join(page.split())


def test_a_card_of_the_zoo_tells_what_was_recorded(
    multicoil: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo_varnet = importlib.import_module("zoo_varnet")
    told = Provenance(date="2026-11-16T08", device="cuda: X", versions={"torch": "2.11"})
    run = SimpleNamespace(provenance=told, metrics=[{"time_s": 41.0}, {"time_s": 1.5}])
    monkeypatch.setattr(zoo_varnet, "read_run", lambda _: run)
    model = VarNet(n_cascades=1, n_channels=2, n_pools=1)
    save(tmp_path / "run" / WEIGHTS_NAME, model, extra={"seed": 3, "store": "0123456789abcdef"})
    score = {"reconstruction": "sense", "acceleration": "4.0", "n_slices": "9", "n_volumes": "2"}
    score["nmse"] = ".04"
    found = {
        "store": {"splits": {"train": 7, "test": 9}, "sources": {"train": ["head a (CC0)"]}},
        "varnet": {"val_ssim": 0.75},
        "reconstructions-4x": [{**score, "ssim": ".9", "ssim_low": "", "ssim_high": ""}],
    }
    for stage, results in found.items():
        record = {"commands": [f"kscout {stage}"], "seconds": 5.0, "results": results}
        (tmp_path / f"heads8-seed3-{stage}.json").write_text(json.dumps(record))
    words = ["--records", str(tmp_path), "--out", str(tmp_path)]
    zoo_varnet.main([str(tmp_path / "run"), *words])
    assert "after it" not in (tmp_path / "heads8-varnet.md").read_text()
    asked = []
    monkeypatch.setattr(multicoil, "_ended", lambda command, _: asked.append(command) or 0)
    rows = [{**score, "reconstruction": name, "ssim": "0.5"} for name in ("varnet", "rounded")]
    monkeypatch.setattr(multicoil, "rows", lambda _: rows)
    zoo_varnet.main([str(tmp_path / "run"), *words, "--data", "few"])
    check_parses(shlex.join(["kscout", *asked[0]]))
    card = (tmp_path / "heads8-varnet.md").read_text()
    for words in (
        "7 / 9 slices",
        "0123456789ab...",
        "head a (CC0)",
        "kscout varnet",
        "on X",
        ".7500",
        "On 9 slices of 2 volumes it was .5000 before rounding and .5000 after it.",
        "docs/coils.md",
    ):
        assert words in card
    assert "| heads8 | sense | .9000 | .0400 |" in card
    rounded = load(tmp_path / "heads8-varnet.safetensors.xz")
    for one, two in zip(rounded.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, two.half().float())


def test_the_card_of_the_zoos_network_has_the_tables_of_the_records(records: ModuleType) -> None:
    card, brain13 = zoo_card("heads8-varnet"), importlib.import_module("brain13")
    assert f"\n{records.image_table(of='heads8-seed0')}\n" in card
    assert f"\n{brain13.words()}" in card


def test_the_center_outwards_is_worse_than_random_columns_on_coils(records: ModuleType) -> None:
    """As docs/coils.md says: by their distance from the fixed order apart at 4x, and not at 8x."""
    found = sorted(records.RECORDS.glob("*-policies-*.json"))
    assert len(found) == 4
    for path in found:
        told = json.loads(path.read_text(encoding="utf-8"))["results"]["comparisons"]
        rows = {row["policy"]: row for row in told}
        center, random = (rows[name] for name in ("center-out", "random"))
        assert center["difference"] < random["difference"]
        is_apart = center["interval"][1] < random["interval"][0]
        assert is_apart == path.name.endswith("4x.json")


def test_a_recorded_stage_is_run_once(
    multicoil: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A machine that is lent for an hour may have no git.
    monkeypatch.setenv("PATH", "")
    n_asked = []
    monkeypatch.setattr(multicoil, "_ended", lambda *_: 0)
    (tmp_path / "fitted").mkdir()
    (tmp_path / "fitted" / "order.json").write_text("[]")
    orders = (tmp_path / "fitted", tmp_path / "results" / "orders")
    stage = multicoil.Stage([], lambda: n_asked.append(1) or [{"found": 1}], orders)
    for _ in range(2):
        multicoil.run("none", stage, tmp_path / "deep" / "none.json")
    record = json.loads((tmp_path / "deep" / "none.json").read_text())
    assert len(n_asked) == 1 and record["results"] == [{"found": 1}]
    assert (tmp_path / "results" / "orders" / "order.json").is_file()
    assert "recorded in" in capsys.readouterr().out


@pytest.mark.parametrize(("second", "message"), [(0, ""), (7, "kscout evaluate ended with 7")])
def test_a_stage_that_fails_is_tried_once_more_without_a_compiler(
    second: int,
    message: str,
    multicoil: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    def ended(_: object, __: float, **changes: str) -> int:
        tried.append(changes)
        return second if changes else 1

    monkeypatch.setattr(multicoil, "_ended", ended)
    stage = multicoil.Stage(["evaluate", "--device", "cuda"], list)
    with pytest.raises(SystemExit, match=message) if message else nullcontext():
        multicoil.run("judge", stage, tmp_path / "judge.json")
    assert tried == [{}, {"TORCH_COMPILE_DISABLE": "1"}]
    assert (tmp_path / "judge.json").exists() == (second == 0)


def test_tables_have_a_column_per_acceleration(records: ModuleType, tmp_path: Path) -> None:
    for table in (records.image_table, records.policy_table, records.findings, records.room):
        assert table(tmp_path) == "Not recorded yet.\n"
    ssim = {"ssim": ".9", "ssim_low": ".8", "ssim_high": ".95", "nmse": ".03"}
    paired = {"difference": 0.002, "interval": [-0.001, 0.004]}
    headroom = {"oracle_minus_na_oracle": paired, "na_oracle_minus_fixed": None}

    def row(name: str, mean: float) -> dict[str, object]:
        final = {"ssim": {"mean": mean, "interval": [0.1, 0.9]}}
        return {"policy": name, "is_oracle": name == "oracle", "final": final}

    def write(stage: str, results: object) -> None:
        (tmp_path / f"knee8-seed0-{stage}.json").write_text(json.dumps({"results": results}))

    for x in ("4x", "8x"):
        write(f"reconstructions-{x}", [{"reconstruction": "sense", "acceleration": x[0], **ssim}])
        beside = [{"policy": "oracle", **paired}]
        found = {"policies": [row("fixed", 0.5), row("oracle", 0.9)], "comparisons": beside}
        write(f"policies-{x}", {**found, "headroom": headroom})
        told = records.policy_table(tmp_path)
        assert told.endswith("\nNo policy was run at 8x.\n") == (x == "4x")
    # What is cut off is told, and the rest of the table is whole.
    found = {"policies": [row("fixed", 0.4), row("dense-4x", 0.75)]}
    write("dense-4x", {**found, "comparisons": [{"policy": "dense-4x", **paired}]})
    cell = ".9000 (.8000 to .9500) | .0300"
    assert records.image_table(tmp_path).splitlines() == [
        "| store | reconstruction | SSIM, 4x | NMSE, 4x | SSIM, 8x | NMSE, 8x |",
        "|---|---|---|---|---|---|",
        f"| knee8 | sense | {cell} | {cell} |",
    ]
    lines = records.policy_table(tmp_path).splitlines()
    assert (
        lines[0] == "| store | policy | SSIM, 4x | minus fixed, 4x | SSIM, 8x | minus fixed, 8x |"
    )
    gain = "+.0020 (-.0010 to +.0040)"
    assert lines[2:6] == [
        "| knee8 | fixed | .5000 | | .5000 | |",
        f"| knee8 | dense | .7500 | {gain} | not run | |",
        f"| knee8 | oracle * | .9000 | {gain} | .9000 | {gain} |",
        "",
    ]
    assert lines[-1] == f"| knee8 | oracle minus NA oracle | {gain} | {gain} |"
    assert f"gains {gain} on knees\n" in records.room(tmp_path)


@pytest.mark.parametrize(
    ("ssim", "told"),
    [
        ((0.9, 0.6, 0.7, 0.5), "`sense` comes before `unet`, by NMSE too."),
        ((0.9, 0.8, 0.6, 0.7), "`zero-filled` comes before `sense`, by NMSE after it."),
        ((0.9, 0.8, 0.7, 0.6), "`varnet` is first, .1000 above `unet`. Expected was the order "),
        ((0.9, 0.8, 0.7, 0.6), "so it came"),
        ((0.9, 0.6, 0.7, 0.5), "`varnet` is first, .2000 above `sense`."),
        ((0.9, 0.6, 0.7, 0.5), "`zero-filled`: `sense` comes before `unet`, "),
        ((0.6, 0.5, 0.7, 0.4), "by NMSE too; `sense` comes before `unet`, by NMSE too."),
    ],
)
def test_it_is_told_whether_reconstructions_come_in_the_expected_order(
    ssim: tuple[float, ...], told: str, records: ModuleType, tmp_path: Path
) -> None:
    rows = zip(records.EXPECTED, ssim, strict=True)
    nmse = {"varnet": 0.2, "unet": 0.3, "sense": 0.1, "zero-filled": 0.4}
    results = [{"reconstruction": x, "ssim": str(y), "nmse": str(nmse[x])} for x, y in rows]
    path = tmp_path / "heads8-seed0-reconstructions-8x.json"
    path.write_text(json.dumps({"results": results}))
    found = records.findings(tmp_path)
    assert found.startswith("- **heads8, 8x**: ") and told in found


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ([0.001, 0.003], "it pays"),
        ([-0.001, 0.003], "no difference is shown"),
        ([-0.003, -0.001], "it costs"),
        (None, "one volume decides nothing"),
    ],
)
def test_it_is_told_whether_a_learned_policy_pays(
    interval: list[float] | None, verdict: str, records: ModuleType, tmp_path: Path
) -> None:
    room = {"oracle_minus_na_oracle": {"difference": 0.02, "interval": None}}
    learned = [{"policy": "dense", "difference": 0.002, "interval": interval}]
    random = {"policy": "random", "difference": -0.03, "interval": None}
    found = {"headroom": room, "comparisons": [random], "n_slices": 9, "n_volumes": 2}
    for stage, own in (("policies", found), ("dense", {"comparisons": learned})):
        (tmp_path / f"knee8-seed0-{stage}-4x.json").write_text(json.dumps({"results": own}))
        line, *others = records.findings(tmp_path).splitlines()
        assert line.startswith("- **knee8, 4x**") and line.endswith("the truth gains +.0200.")
        assert "9 slices of 2 volumes, from the fixed order: `random` -.0300" in line
        assert ("`dense` was not run." in line) == (stage == "policies")
    assert "`random` -.0300, `dense` +.0020" in line and f": {verdict}." in line
    counts = [int(verdict == "it pays"), int(verdict == "it costs")]
    assert others == [
        "- **In all**: of 1 trainings of `dense`, {} pay and {} cost.".format(*counts)
    ]
    effort = {"results": {"epoch": 2, "n_decisions": 25600}}
    (tmp_path / "knee8-seed0-policy-4x.json").write_text(json.dumps(effort))
    assert "`dense` (2 epochs of 25,600 decisions each) +.0020" in records.findings(tmp_path)


def test_room_for_adapting_is_compared_where_both_accelerations_were_run(
    records: ModuleType, tmp_path: Path
) -> None:
    found = {"comparisons": [], "n_slices": 9, "n_volumes": 2}
    for x, gain in (("4x", 0.004), ("8x", 0.01)):
        assert "times as much" not in records.findings(tmp_path)
        own = {"oracle_minus_na_oracle": {"difference": gain, "interval": None}}
        path = tmp_path / f"knee8-seed0-policies-{x}.json"
        path.write_text(json.dumps({"results": {**found, "headroom": own}}))
    told = records.findings(tmp_path).splitlines()[-1]
    assert told == "- **knee8**: adapting by the truth gains 2.5 times as much at 8x."


def test_words_about_the_brain_rank_the_network_among_the_others(
    multicoil: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brain13 = importlib.import_module("brain13")
    own = {"sense": {"nmse": 0.2, "ssim": 0.5}}
    for name, scores in (("sense", own["sense"]), ("varnet", {"nmse": 0.1, "ssim": 0.4})):
        own[name] = scores
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"found": {"rss": own, "weighted": own}}))
        monkeypatch.setattr(brain13, "RECORD", path)
        told = " ".join(brain13.words().split())
        ranks = "number 1 by NMSE and number 2 by SSIM with target"
        known = f"{ranks} `rss`, {ranks} `weighted`. Where it is not first, `sense` is." in told
        assert known == (name == "varnet") != ("not been tried" in told)


@pytest.mark.parametrize("left_s", [0.0, 0.02])
def test_a_stage_that_runs_out_of_time_leaves_no_record(
    left_s: float, multicoil: ModuleType, tmp_path: Path
) -> None:
    stage = multicoil.Stage(["data", "make", "--help"], list)
    with pytest.raises(SystemExit, match="late: stopped, time is up"):
        multicoil.run("late", stage, tmp_path / "late.json", until=time.monotonic() + left_s)
    assert not any(tmp_path.iterdir())
