"""The demo in a few seconds: its page tells what was found, and its commands are its own."""

import html
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import active_children, get_context
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kscout.cli import app
from kscout.data.store import Store
from kscout.demo import DemoFolder, DemoResult, DemoSettings, run_demo
from kscout.demo.commands import commands_of, next_commands
from kscout.demo.oracles import StoredOracles, read_stored
from kscout.demo.paper_size import paper_size_section
from kscout.demo.settings import BASELINES, JOINT_SAMPLERS, LEARNED, REFERENCE, PaperSize
from kscout.demo.stages import (
    INPUTS,
    claim_all,
    evaluated,
    lead_over,
    silent,
    trained_beside,
    typical_slice,
)
from kscout.demo.worlds import worlds_of
from kscout.evaluation.compare import evaluate
from kscout.evaluation.records.results import read_scores
from kscout.evaluation.summaries.summary import read_summary
from kscout.figures.tables import Measured
from kscout.report.commands import as_shell
from kscout.report.page import tables_of
from undrawn import leave_undrawn

# One worker makes what all of these tests look at.
pytestmark = pytest.mark.slow

TINY = replace(
    DemoSettings.quick(),
    volumes=(3, 2, 3),
    unet_channels=2,
    unet_pools=2,
    network={"width": 8, "n_layers": 1, "n_heads": 2, "channels": [8], "image_channels": [8]},
    policy_epochs=1,
    n_best=2,
    n_random=2,
    batch_size=3,
    n_updates=6,
    n_prior_slices=1,
    n_fixed_slices=1,
    n_oracle_slices=2,
    seed=3,
    paper_size=replace(DemoSettings.quick().paper_size, n_unseen_slices=1),
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


@pytest.fixture(scope="module", autouse=True)
def undrawn_analyses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        leave_undrawn(patch)
        yield


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder, stages = DemoFolder(tmp_path_factory.mktemp("demo") / "out"), Stages()
    return folder, run_demo(folder.path, seed=3, settings=TINY, stage=stages), stages


def test_the_learned_policy_runs_beside_others_on_the_same_unseen_slices(demo: Demo) -> None:
    summary = demo[1].summary
    assert {entry.policy for entry in summary.policies} == {LEARNED, *BASELINES}
    assert not any(entry.is_oracle for entry in summary.policies)
    assert (summary.protocol, summary.reference, summary.split) == ("paper", "fixed", "test")
    assert (summary.n_slices, summary.n_volumes) == (6, 3)
    few = read_summary(demo[0].headroom)
    assert [entry.policy for entry in few.policies if entry.is_oracle] == ["oracle"]
    assert few.n_slices == TINY.n_oracle_slices


def test_the_oracle_is_compared_with_the_order_of_all_slices(demo: Demo) -> None:
    """Fitted once: a second fit would take as long as the oracle itself."""
    orders = [
        [one.read_text() for one in sorted((folder / "orders").iterdir())]
        for folder in (demo[0].evaluation, demo[0].headroom)
    ]
    assert orders[0] == orders[1] and len(orders[0]) == 1


def test_the_page_opens_with_one_sentence_the_player_and_one_chart(demo: Demo) -> None:
    text = demo[1].page.read_text()
    front = text[text.index('class="summary"') : text.index("<nav")]
    assert front.count("<p") == 1 and "no training saw" in front and "fixed order" in front
    assert "knee-base-column" in front and "trained elsewhere" in front
    assert demo[1].told in html.unescape(re.sub("<[^>]+>", "", front)), "the terminal tells it, too"
    assert "smallest sizes" in text[: text.index('class="summary"')], "no number here is a result"
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert titles[:5] == [
        "One acquisition, step by step",
        "The lead over the fixed order",
        "Trained here",
        "Two worlds: a frozen network, and one that learns as well",
        "What to try next",
    ]
    first = text.index("<h2")
    opening = text[first : text.index(">Trained here<", first)]
    here = text[text.index(">Trained here<", first) : text.index("Two worlds", first)]
    assert re.findall(r'id="figure-([^"]+)"', opening) == ["lead"]
    assert "<table" not in opening and "trained elsewhere" in opening
    for part, learned in ((opening, "column of the zoo"), (here, LEARNED)):
        assert part.count('class="player"') == 1
        player = part[part.index('class="player"') : part.index('class="cards"')]
        for name in (learned, "fixed", "oracle"):
            assert f">{name}<" in player, "every policy of the sentence can be chosen"
        assert "step 0 of 2" in player


def test_the_player_shows_what_policies_scored_and_what_the_oracle_scored_earlier(
    demo: Demo,
) -> None:
    (run,) = demo[1].zoo
    stored, ids = read_stored(run.acquisition.name), run.examples[0]
    assert stored is not None
    place = stored.slices.index((ids.volume, ids.slice))
    played = {one.name: one for one in run.played.policies}
    assert played["oracle"].is_oracle
    assert played["oracle"].columns == stored.columns[place]
    # The stored scores may come from another machine.
    assert played["oracle"].ssim == pytest.approx(stored.ssim["oracle"][place], abs=1e-3)
    table = {one.policy: one.metric("ssim")[place] for one in run.scores}
    for name in ("greedy", "column", "fixed", "center-out"):
        assert played[name].ssim == pytest.approx(table[name], abs=1e-5)


def test_page_is_self_contained_and_shows_all_parts(demo: Demo) -> None:
    text = demo[1].page.read_text()
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    for part in (
        "Scores",
        "SSIM by step",
        "How much is possible",
        "Images",
        "Reconstructions",
        "Training",
        "At the paper&#39;s size",
        "How this was made",
    ):
        assert part in titles
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    assert "kscout train joint" in text


def test_stages_tell_how_far_they_are(demo: Demo) -> None:
    stages = demo[2].told
    assert len(stages) == 15
    policy = stages["training a policy to choose columns for it"]
    assert policy[-1] == (2, 2)
    assert [done for done, _ in policy] == sorted(done for done, _ in policy)


def test_a_second_run_does_no_work_again(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, first, _ = demo
    monkeypatch.setattr("kscout.demo.write_demo_page", lambda *_: first.page)
    zoo = folder.zoo("knee-16-2")
    kept = [run / "weights.safetensors" for run in folder.runs]
    kept += [one / "results.csv" for one in (folder.evaluation, folder.headroom, folder.lead, zoo)]
    kept += [one / "results.csv" for one in folder.joint.values()]
    kept += [folder.zoo_store / "manifest.json"]
    before = [path.stat().st_mtime_ns for path in kept]
    stages = Stages()
    again = run_demo(folder.path, seed=3, settings=TINY, stage=stages)
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert again.summary == first.summary
    assert {title for title, told in stages.told.items() if told} <= {
        title for title in stages.told if title.startswith("drawing")
    }
    assert again.zoo[0].summary == first.zoo[0].summary


def begun_demo(demo: Demo, out: Path, monkeypatch: pytest.MonkeyPatch) -> DemoFolder:
    """Return a demo that has come as far as its U-Net; other processes need not import torch."""
    monkeypatch.setattr("kscout.demo.stages.get_context", lambda _: get_context("fork"))
    folder = DemoFolder(out)
    for name in (demo[0].store.name, demo[0].unet.name):
        shutil.copytree(demo[0].path / name, folder.path / name)
    return folder


def test_what_is_trained_beside_is_what_would_be_trained_in_its_turn(
    demo: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begun_demo(demo, tmp_path / "out", monkeypatch)
    with trained_beside(replace(TINY, is_quick=False), folder):
        assert len(active_children()) == 1
    runs = (folder.pairs[LEARNED], demo[0].pairs[LEARNED])
    found, expected = ((run / "weights.safetensors").read_bytes() for run in runs)
    assert found == expected


def test_what_is_trained_beside_ends_with_what_asked_for_it(
    demo: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begun_demo(demo, tmp_path / "out", monkeypatch)
    with pytest.raises(KeyboardInterrupt), trained_beside(replace(TINY, is_quick=False), folder):
        assert len(active_children()) == 1
        raise KeyboardInterrupt
    assert not active_children()


def test_notes_of_evaluations_are_kept_and_not_printed(
    demo: Demo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (one,), store = TINY.paper_size.acquisitions, Store.open(demo[0].unseen)
    plan = replace(TINY.paper_size.lead, limit=1)
    found = evaluated(one.pair, store, "zero-filled", plan, tmp_path / "out", {})
    assert found.note is not None and "trained" in found.note and not caplog.records
    evaluate(one.pair, store, "zero-filled", plan)
    assert [record.levelname for record in caplog.records].count("WARNING") > 0


def test_an_evaluation_of_other_weights_is_not_reused(demo: Demo) -> None:
    folder, first, _ = demo
    kept = folder.evaluation / INPUTS
    inputs = json.loads(kept.read_text())
    other = {**inputs, "weights": {**inputs["weights"], LEARNED: "0"}}
    kept.write_text(json.dumps(other))
    again = claim_all(TINY, folder, Store.open(folder.store), silent)
    assert json.loads(kept.read_text()) == inputs
    assert again == first.summary


def test_shown_commands_are_those_of_the_demo(demo: Demo) -> None:
    """A run folder refuses settings other than its own, so equal settings are proven by it."""
    folder, first, _ = demo
    files = [run / "weights.safetensors" for run in folder.runs]
    files += [one / "results.csv" for one in (folder.evaluation, *folder.joint.values())]
    before = [file.read_bytes() for file in files]
    for words in commands_of(TINY, folder).values():
        assert shlex.split(as_shell(words).replace("\\\n", "")) == words
        found = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert found.exit_code == 0, found.output
    assert [file.read_bytes() for file in files] == before
    assert read_summary(folder.evaluation) == first.summary
    assert read_summary(folder.zoo("knee-16-2")) == first.zoo[0].summary


def test_what_to_try_next_works_on_what_the_demo_left(demo: Demo) -> None:
    tried = next_commands(TINY, demo[0])
    assert [words[1] for words in tried.values()] == ["demo", "serve", "train", "evaluate"]
    steered = tried["Steer acquisitions yourself, in a browser"]
    assert {"knee-unet", "knee-base-column", "knee-base-fixed"} < set(steered)
    assert Store.open(steered[-1]).split("test").shape[1:] == (128, 128)
    for title in ("Let the policy learn longer", "Compare it"):
        found = CliRunner().invoke(app, tried[title][1:], catch_exceptions=False)
        assert found.exit_code == 0, found.output


def test_the_first_sentence_is_of_the_zoos_policy_on_knees_of_the_seed(demo: Demo) -> None:
    folder, found = demo[0], read_summary(demo[0].lead)
    assert {one.policy for one in found.policies} == {"fixed", "column"}
    assert (found.n_slices, found.n_volumes, found.reference) == (3, 3, "fixed")
    lead = lead_over(folder.lead, "column", "fixed")
    text = demo[1].page.read_text()
    assert f"{abs(lead.difference):.4f}" in text[text.index('class="summary"') : text.index("<nav")]
    others = [PaperSize().unseen(seed).seed for seed in range(5)]
    assert len({*others, PaperSize().making.seed}) == 6


def test_pairs_are_compared_with_orders_of_their_own_networks(demo: Demo) -> None:
    folder = demo[0]
    worlds = worlds_of(folder)
    assert [one.network for one in worlds] == 2 * ["frozen"] + 2 * ["trained together"]
    final = {
        out: {one.policy: one.metric("ssim")[:, -1].mean() for one in read_scores(out)}
        for out in (folder.evaluation, *folder.joint.values())
    }
    start = final[folder.evaluation][REFERENCE]
    for one, (out, name) in zip(
        worlds,
        [(folder.evaluation, name) for name in JOINT_SAMPLERS]
        + [(folder.joint[name], name) for name in JOINT_SAMPLERS],
        strict=True,
    ):
        assert one.ssim == pytest.approx(final[out][name])
        if name == LEARNED:
            assert one.over_order is not None
            ours = final[out][name] - final[out][REFERENCE]
            assert one.over_order.difference == pytest.approx(ours)
        if one.over_start is not None:
            assert one.over_start.difference == pytest.approx(final[out][name] - start)


def test_leads_are_paired_by_slice(demo: Demo) -> None:
    out = demo[0].evaluation
    final = {one.policy: one.metric("ssim")[:, -1] for one in read_scores(out)}
    lead = lead_over(out, LEARNED, REFERENCE)
    assert lead.difference == pytest.approx(np.mean(final[LEARNED] - final[REFERENCE]))
    assert lead.interval is not None and lead.interval[0] <= lead.difference <= lead.interval[1]


def test_pictures_at_the_papers_size_are_of_what_the_table_scores(demo: Demo) -> None:
    """Pictures are acquired anew, slice by slice; the table's scores come from whole batches."""
    (run,) = demo[1].zoo
    plain, *learned = run.examples
    assert [example.policy for example in learned] == ["center-out", "fixed", "greedy", "column"]
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
        columns=((0, 1),) * len(ssim),
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
    lead = final[LEARNED] - final["random"]
    place = typical_slice(folder.evaluation, LEARNED, "random")
    assert sum(lead < lead[place]) <= len(lead) // 2 <= sum(lead <= lead[place])
