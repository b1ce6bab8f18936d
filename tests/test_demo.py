"""The demo in a few seconds: its page tells what was found, and its commands are its own."""

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

from kscout.cli import app
from kscout.demo import DemoFolder, DemoResult, DemoSettings, run_demo
from kscout.demo.commands import as_shell, commands_of, untrained_script
from kscout.demo.page import tell_claim
from kscout.demo.settings import BASELINES, CLAIMED
from kscout.demo.stages import typical_slice
from kscout.evaluation.results import read_scores

# One worker makes what all of these tests look at.
pytestmark = pytest.mark.xdist_group("demo")

TINY = DemoSettings(
    volumes=(3, 2, 3),
    slices=2,
    n_initial=5,
    horizon=2,
    unet_channels=2,
    unet_pools=2,
    unet_epochs=2,
    policy_channels=1,
    policy_hidden=7,
    policy_epochs=(2, 2),
    batch_size=3,
    n_trajectories=2,
    n_fixed_slices=2,
    seed=3,
)


class Stages:
    """Counts what a demo tells of its progress."""

    def __init__(self) -> None:
        self.told: dict[str, list[tuple[int, int]]] = {}

    def __call__(self, title: str) -> "Stages":
        self.told[title] = []
        self.title = title
        return self

    def __enter__(self):  # noqa: ANN204 - a callback
        return lambda done, total, words: self.told[self.title].append((done, total))

    def __exit__(self, *_: object) -> None:
        pass


Demo = tuple[DemoFolder, DemoResult, Stages]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder, stages = DemoFolder(tmp_path_factory.mktemp("demo") / "out"), Stages()
    return folder, run_demo(folder.path, seed=3, settings=TINY, stage=stages), stages


def test_every_policy_has_a_row_and_oracles_are_marked(demo: Demo) -> None:
    summary = demo[1].summary
    marks = {entry["policy"]: entry["is_oracle"] for entry in summary["policies"]}
    assert set(marks) == {"greedy", "ngreedy", "untrained", *BASELINES}
    assert {name for name, is_oracle in marks.items() if is_oracle} == {
        "na-oracle",
        "oracle",
        "spectral-oracle",
    }
    assert (summary["protocol"], summary["reference"]) == ("paper", "greedy")
    assert (summary["n_slices"], summary["n_volumes"]) == (6, 3)


def test_page_is_self_contained_and_shows_all_parts(demo: Demo) -> None:
    text = demo[1].page.read_text()
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    for part in (
        "Images",
        "Reconstructions",
        "Scores",
        "SSIM by step",
        "One acquisition, step by step",
        "Average policy",
        "Training",
        "How this was made",
    ):
        assert part in titles
    assert 'id="figure-learning-curves"' in text
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    assert "kscout train policy" in text


def test_stages_tell_how_far_they_are(demo: Demo) -> None:
    stages = demo[2].told
    assert len(stages) == 8
    greedy = stages["training the greedy policy"]
    assert greedy[-1] == (4, 4)
    assert [done for done, _ in greedy] == sorted(done for done, _ in greedy)


def test_a_second_run_does_no_work_again(demo: Demo) -> None:
    folder, first, _ = demo
    kept = [folder.evaluation / "results.csv", folder.unet / "weights.safetensors"]
    before = [path.stat().st_mtime_ns for path in kept]
    stages = Stages()
    again = run_demo(folder.path, seed=3, settings=TINY, stage=stages)
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert again.summary == first.summary
    assert not stages.told["training the greedy policy"]
    assert not stages.told["evaluating all policies on test slices"]


def test_an_evaluation_of_other_weights_is_not_reused(demo: Demo) -> None:
    folder, first, _ = demo
    inputs = json.loads(folder.inputs.read_text())
    other = {**inputs, "weights": {**inputs["weights"], "untrained.safetensors": "0"}}
    folder.inputs.write_text(json.dumps(other))
    stages = Stages()
    again = run_demo(folder.path, seed=3, settings=TINY, stage=stages)
    assert stages.told["evaluating all policies on test slices"]
    assert json.loads(folder.inputs.read_text()) == inputs
    assert again.summary == first.summary


def test_shown_commands_are_those_of_the_demo(demo: Demo) -> None:
    """A run folder refuses settings other than its own, so equal settings are proven by it."""
    folder, first, _ = demo
    weights = folder.policy("ngreedy") / "weights.safetensors"
    before = weights.read_bytes()
    results = (folder.evaluation / "results.csv").read_text()
    untrained = folder.untrained.read_bytes()
    folder.untrained.unlink()
    exec(untrained_script(TINY, folder), {})
    assert folder.untrained.read_bytes() == untrained
    for words in commands_of(TINY, folder).values():
        assert shlex.split(as_shell(words).replace("\\\n", "")) == words
        found = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert found.exit_code == 0, found.output
    assert weights.read_bytes() == before
    assert (folder.evaluation / "results.csv").read_text() == results
    summary = json.loads((folder.evaluation / "summary.json").read_text())
    assert summary == first.summary


def test_claim_is_told_only_where_every_interval_excludes_zero() -> None:
    def summary(*highest: float) -> dict[str, object]:
        pairs = zip(CLAIMED, highest, strict=True)
        return {
            "n_volumes": 5,
            "comparisons": [
                {"policy": name, "difference": -0.02, "interval": [-0.03, high]}
                for name, high in pairs
            ],
        }

    assert "every interval excludes zero" in tell_claim(summary(-0.01, -0.01, -0.01))
    assert "not every interval" in tell_claim(summary(-0.01, 0.001, -0.01))
    assert "+0.0200 against random [0.0100, 0.0300]" in tell_claim(summary(-0.01, -0.01, -0.01))


def test_untrained_network_is_the_start_of_the_trained_ones() -> None:
    assert TINY.policy("greedy").policy == TINY.policy("ngreedy").policy == TINY.network


def test_slice_shown_is_the_median_lead(demo: Demo) -> None:
    folder = demo[0]
    final = {s.policy: s.metric("ssim")[:, -1] for s in read_scores(folder.evaluation)}
    lead = final["greedy"] - final["random"]
    place = typical_slice(folder.evaluation)
    assert sum(lead < lead[place]) <= len(lead) // 2 <= sum(lead <= lead[place])
