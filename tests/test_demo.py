"""The demo at its smallest sizes: it is stopped, continues to its page, and repeats nothing."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fuzz.forks import load_modules, run_task
from kscout.apps.campaign import task
from kscout.apps.campaign.grid import parse_grid, read_grid
from kscout.apps.campaign.plan import CampaignPlan, make_plan
from kscout.apps.campaign.state import node_state
from kscout.apps.cli import app
from kscout.apps.demo import CORES, DemoResult, campaign_table, next_commands, run_demo
from kscout.errors import RunError
from undrawn import leave_undrawn

# One worker makes what all of these tests look at.
pytestmark = pytest.mark.slow

Demo = tuple[Path, DemoResult]


@pytest.fixture(scope="module", autouse=True)
def without_processes() -> Iterator[None]:
    """Run the commands of campaigns in forks, which have imported torch, and draw nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "_run_command", run_task)
        leave_undrawn(patch)
        load_modules()
        yield


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A demo that was stopped before it trains a policy, and what it had written."""
    out = tmp_path_factory.mktemp("demo") / "out"

    def stop(one: task.Task, lock: int) -> int:
        if one.node.kind == "policy":
            raise KeyboardInterrupt
        return run_task(one, lock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "_run_command", stop)
        with pytest.raises(KeyboardInterrupt):
            run_demo(out, seed=3, is_quick=True)
    return out, products(out)


@pytest.fixture(scope="module")
def demo(stopped: tuple[Path, dict[str, bytes]]) -> Demo:
    out, _ = stopped
    return out, run_demo(out, seed=3, is_quick=True)


def products(out: Path) -> dict[str, bytes]:
    """Return the weights and scores of a demo by their places in its folder."""
    names = ("weights.safetensors", "results.csv", "reconstructions.json")
    files = (file for name in names for file in out.rglob(name))
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def plan_of(out: Path, name: str) -> CampaignPlan:
    return make_plan(parse_grid(name, campaign_table(name, seed=3, is_quick=True)), out / name)


def test_trained_policies_run_beside_others_on_the_same_unseen_slices(demo: Demo) -> None:
    ready, oracle, trained = demo[1].summaries.values()
    policies = [{entry.policy for entry in one.policies} for one in (ready, oracle, trained)]
    assert policies[0] == {"fixed", "column"}
    assert policies[1] == {"random", "center-out", "fixed", "column", "oracle"}
    assert policies[2] == {"random", "equispaced-two", "center-out", "fixed", "dense"}
    assert {(one.reference, one.split) for one in (ready, oracle, trained)} == {("fixed", "test")}
    assert [one.protocol for one in (ready, oracle, trained)] == ["blind", "blind", "paper"]
    assert (ready.n_volumes, oracle.n_volumes, trained.n_volumes) == (3, 2, 4)


def test_the_page_is_self_contained_and_opens_with_the_comparison_and_a_player(demo: Demo) -> None:
    text = demo[1].page.read_text()
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    front = text[text.index('class="summary"') : text.index("<nav")]
    assert demo[1].headline.replace("**", "") in unescape(re.sub("<[^>]+>", "", front))
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert titles[:3] == [
        "One acquisition, step by step",
        "The lead over the fixed order",
        "Trained here",
    ]
    assert {"Reconstructions", "Images", "How this was made"} < set(titles)
    played = {titles[0]: ("column", "fixed", "oracle"), titles[2]: ("dense", "fixed", "random")}
    for title, names in played.items():
        part = text[text.index(f"<h2>{title}</h2>") :]
        player = part[part.index('class="player"') : part.index('class="cards"')]
        assert all(f">{name}<" in player for name in names)
    links = re.findall(r'id="([^"]+)"', text)
    assert len(links) == len(set(links))


def test_a_second_run_starts_nothing(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise AssertionError("a run that is done was started again")

    monkeypatch.setattr(task, "_run_command", refuse)
    before = products(demo[0])
    assert run_demo(demo[0], seed=3, is_quick=True) == demo[1]
    assert products(demo[0]) == before


def test_a_demo_that_was_stopped_keeps_what_was_done(
    stopped: tuple[Path, dict[str, bytes]], demo: Demo
) -> None:
    kept = stopped[1]
    assert kept and kept.items() < products(demo[0]).items()


def test_a_run_that_fails_ends_the_demo_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(one: task.Task, lock: int) -> int:
        (one.folder / "log.txt").write_text("no space left\n")
        return 1

    monkeypatch.setattr(task, "_run_command", fail)
    with pytest.raises(RunError, match=r"make knee failed: no space left; its log is .*log\.txt"):
        run_demo(tmp_path / "out", is_quick=True)


def test_the_written_campaigns_are_those_that_ran(demo: Demo) -> None:
    out, _ = demo
    for name in CORES:
        plan = make_plan(read_grid(out / f"{name}.toml"), out / name)
        assert {node_state(node) for node in plan.nodes.values()} == {"done"}
        assert plan.nodes.keys() == plan_of(out, name).nodes.keys()


def test_seeds_change_all_that_is_drawn_and_nothing_else() -> None:
    for name in CORES:
        one, other = (campaign_table(name, seed=seed) for seed in (0, 1))
        stores = zip(one["stores"].values(), other["stores"].values(), strict=True)
        assert all(second["seed"] == first["seed"] + 1 for first, second in stores)
        assert other["grid"]["seeds"] == [1]
        assert one["evaluation"] == other["evaluation"]


def test_what_to_try_next_works_on_what_the_demo_left(demo: Demo) -> None:
    plans = {name: plan_of(demo[0], name) for name in CORES}
    again, served, *others = (words for _, words in next_commands(demo[0], plans, 3))
    assert again[:3] == ("demo", "--seed", "4")
    assert Path(served[-1]).is_dir()
    for words in others:
        short = ("--epochs", "1") if words[0] == "train" else ()
        found = CliRunner().invoke(app, [*words, *short], catch_exceptions=False)
        assert found.exit_code == 0, found.output
