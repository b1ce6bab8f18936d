"""The demo in a few seconds: its page tells what was found, and its commands are its own."""

import json
import re
import shlex

import numpy as np
import pytest
from typer.testing import CliRunner

from kscout.cli import app
from kscout.data.store import Store
from kscout.demo import DemoFolder, DemoResult, DemoSettings, run_demo
from kscout.demo.commands import commands_of, untrained_script
from kscout.demo.oracles import StoredOracles
from kscout.demo.page import tell_claim
from kscout.demo.paper_size import paper_size_section
from kscout.demo.settings import BASELINES, CLAIMED, PaperSize, ZooAcquisition
from kscout.demo.stages import INPUTS, evaluate_all, leads_of, typical_slice
from kscout.evaluation.results import read_scores
from kscout.evaluation.summary import Difference, read_summary
from kscout.figures.tables import Measured
from kscout.report.commands import as_shell
from kscout.report.page import tables_of

# One worker makes what all of these tests look at.
pytestmark = pytest.mark.slow

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
    policy_epochs={"greedy": 2, "ngreedy": 2},
    batch_size=3,
    n_trajectories=2,
    n_fixed_slices=2,
    seed=3,
    paper_size=PaperSize(
        acquisitions=(
            ZooAcquisition(
                "knee-16-2", 16, 2, {"fixed": "knee-base-fixed", "greedy": "knee-base-greedy"}
            ),
        ),
        n_volumes=2,
        n_slices=2,
        limit=3,
    ),
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
    marks = {entry.policy: entry.is_oracle for entry in summary.policies}
    assert set(marks) == {"greedy", "ngreedy", "untrained", *BASELINES}
    assert {name for name, is_oracle in marks.items() if is_oracle} == {
        "na-oracle",
        "oracle",
        "spectral-oracle",
    }
    assert (summary.protocol, summary.reference) == ("paper", "fixed")
    assert (summary.n_slices, summary.n_volumes) == (6, 3)


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
        "At the paper&#39;s size",
        "How this was made",
    ):
        assert part in titles
    assert 'id="figure-learning-curves"' in text
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    assert "kscout train policy" in text


def test_stages_tell_how_far_they_are(demo: Demo) -> None:
    stages = demo[2].told
    assert len(stages) == 9
    greedy = stages["training the greedy policy"]
    assert greedy[-1] == (4, 4)
    assert [done for done, _ in greedy] == sorted(done for done, _ in greedy)


def test_a_second_run_does_no_work_again(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, first, _ = demo
    monkeypatch.setattr("kscout.demo.write_demo_page", lambda *_: first.page)
    zoo = folder.zoo("knee-16-2")
    kept = [folder.evaluation / "results.csv", folder.unet / "weights.safetensors"]
    kept += [zoo / "results.csv", folder.zoo_store / "manifest.json"]
    before = [path.stat().st_mtime_ns for path in kept]
    stages = Stages()
    again = run_demo(folder.path, seed=3, settings=TINY, stage=stages)
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert again.summary == first.summary
    assert not stages.told["training the greedy policy"]
    assert not stages.told["evaluating all policies on test slices"]
    assert not stages.told["running the zoo's policies, 16 + 2 of 128 columns"]
    assert again.zoo[0].summary == first.zoo[0].summary


def test_an_evaluation_of_other_weights_is_not_reused(demo: Demo) -> None:
    folder, first, _ = demo
    kept = folder.evaluation / INPUTS
    inputs = json.loads(kept.read_text())
    other = {**inputs, "weights": {**inputs["weights"], "untrained.safetensors": "0"}}
    kept.write_text(json.dumps(other))
    told: list[int] = []
    store = Store.open(folder.store)
    again = evaluate_all(TINY, folder, store, lambda done, total, words: told.append(done))
    assert told
    assert json.loads(kept.read_text()) == inputs
    assert again == first.summary


def test_shown_commands_are_those_of_the_demo(demo: Demo) -> None:
    """A run folder refuses settings other than its own, so equal settings are proven by it."""
    folder, first, _ = demo
    weights = folder.runs["ngreedy"] / "weights.safetensors"
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
    assert read_summary(folder.evaluation) == first.summary
    assert read_summary(folder.zoo("knee-16-2")) == first.zoo[0].summary


def test_claim_is_told_only_where_every_interval_excludes_zero() -> None:
    def told(*lowest: float) -> str:
        leads = {
            name: Difference(0.02, (low, 0.03))
            for name, low in zip((*CLAIMED, "fixed"), lowest, strict=True)
        }
        return tell_claim(leads, n_slices=10, n_volumes=5)

    clear = (0.01, 0.01, 0.01)
    assert "all of them exclude zero" in told(*clear, 0.01)
    assert "does not show a lead over a good fixed order" in told(*clear, -0.01)
    assert "not every interval" in told(0.01, -0.001, 0.01, 0.01)
    assert "0.0200 above (+0.0100 to +0.0300) random" in told(*clear, 0.01)


def test_the_page_opens_with_one_sentence_the_player_and_the_chart(demo: Demo) -> None:
    text = demo[1].page.read_text()
    front = text[text.index('class="summary"') : text.index("<nav")]
    assert front.count("<p") == 1 and "test knees" in front and "fixed" in front
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert titles[:2] == ["One acquisition, step by step", "Difference to fixed"]
    player = text[text.index('class="player"') : text.index('class="cards"')]
    for name in ("greedy", "ngreedy", "fixed", "random", "oracle"):
        assert f">{name}<" in player, "every evaluated policy can be chosen"


def test_leads_are_paired_by_slice(demo: Demo) -> None:
    folder = demo[0]
    final = {one.policy: one.metric("ssim")[:, -1] for one in read_scores(folder.evaluation)}
    leads = leads_of(folder.evaluation)
    assert set(leads) == set(final) - {"greedy"}
    for name, lead in leads.items():
        assert lead.difference == pytest.approx(np.mean(final["greedy"] - final[name]))


def test_untrained_network_is_the_start_of_the_trained_ones() -> None:
    assert TINY.policy("greedy").policy == TINY.policy("ngreedy").policy == TINY.network


def test_pictures_at_the_papers_size_are_of_what_the_table_scores(demo: Demo) -> None:
    """Pictures are acquired anew, slice by slice; the table's scores come from whole batches."""
    (run,) = demo[1].zoo
    plain, *learned = run.examples
    assert [example.policy for example in learned] == ["center-out", "fixed", "greedy"]
    table = {scores.policy: scores for scores in run.scores}
    for example in learned:
        scores = table[example.policy]
        place = list(zip(scores.volumes, scores.slices, strict=True)).index(
            (example.volume, example.slice)
        )
        assert example.ssim == pytest.approx(scores.metric("ssim")[place, -1], abs=1e-5)
        assert example.mask.sum() == 16 + 2
    assert np.array_equal(plain.mask, learned[0].mask)
    assert plain.ssim == pytest.approx(run.zero_filled.metric("ssim")[place, -1], abs=1e-5)


@pytest.mark.parametrize("is_same", [True, False])
def test_stored_oracles_are_shown_for_their_own_slices_only(
    demo: Demo, monkeypatch: pytest.MonkeyPatch, is_same: bool
) -> None:
    (run,) = demo[1].zoo
    ssim = run.scores[0].metric("ssim") + 0.03 * np.arange(3)
    stored = StoredOracles(
        command="python compute.py",
        date="2026-01-02",
        fingerprint=run.fingerprint if is_same else "another",
        slices=tuple(zip(run.scores[0].volumes, run.scores[0].slices, strict=True)),
        ssim={"oracle": ssim if is_same else ssim + 0.01},
        whole_test={"random": {"ssim": 0.8427, "interval": None, "is_argmax": False}},
        test_set={"n_slices": 1715, "n_volumes": 96},
    )
    monkeypatch.setattr("kscout.demo.paper_size.read_stored", lambda name: stored)
    section = paper_size_section([run])
    (table,) = tables_of([section])
    rows = {row.cells[0]: row for row in table.rows}
    assert ("oracle (stored)" in rows) is is_same
    assert ("are not shown" in table.note) is not is_same
    assert "python compute.py on 2026-01-02" in table.note
    assert rows["random"].cells[3] == Measured(0.8427)
    if is_same:
        (measured,) = [row.cells[1] for row in table.rows if row.is_oracle]
        assert isinstance(measured, Measured)
        assert measured.value == pytest.approx(ssim[:, -1].mean())


def test_slice_shown_is_the_median_lead(demo: Demo) -> None:
    folder = demo[0]
    final = {s.policy: s.metric("ssim")[:, -1] for s in read_scores(folder.evaluation)}
    lead = final["greedy"] - final["random"]
    place = typical_slice(folder.evaluation, "greedy", "random")
    assert sum(lead < lead[place]) <= len(lead) // 2 <= sum(lead <= lead[place])
