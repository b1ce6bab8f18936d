"""A session takes the simulator's columns without the truth, in time, and survives a crash."""

import json
import re
import threading
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from coil_slices import coil_batch
from kscout.acquisition import Advisor, Scan, Session, Simulator, action_uniforms, graphs
from kscout.acquisition.rollout import NOT_ACQUIRED, Trajectory, rollout
from kscout.acquisition.session import rehearse
from kscout.core import Observation, Policy, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, DataError, KScoutError
from kscout.policies.center_out import CenterOut
from kscout.policies.column import ColumnPolicy
from kscout.policies.conv import ConvPolicy
from kscout.policies.equispaced import EquispacedOne
from kscout.policies.fixed import FixedOrder
from kscout.policies.oracle import Oracle
from kscout.policies.random import Random
from kscout.reconstruction.sense import Sense
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled

N_ROWS, N_COLS, N_INITIAL, HORIZON = 12, 16, 3, 6
SCAN = Scan(n_rows=N_ROWS, n_cols=N_COLS, budget=N_INITIAL + HORIZON, initial=N_INITIAL)


def column_policy() -> ColumnPolicy:
    policy = ColumnPolicy(
        n_cols=N_COLS,
        horizon=HORIZON,
        width=8,
        n_layers=1,
        n_heads=2,
        channels=(8,),
        image_channels=(8,),
    )
    for parameter in policy.parameters():  # its last layer is zero before training
        torch.nn.init.normal_(parameter, std=0.3)
    return policy


POLICIES = {
    "conv": lambda: ConvPolicy(n_cols=N_COLS, n_rows=N_ROWS, n_channels=2, n_hidden=5),
    "column": column_policy,
    "fixed": lambda: FixedOrder(n_cols=N_COLS, order=[0, 15, 4]),
    "center-out": lambda: CenterOut(n_cols=N_COLS),
    "equispaced-one": lambda: EquispacedOne(n_cols=N_COLS, n_initial=N_INITIAL, horizon=HORIZON),
    "random": Random,
}


def make_policy(name: str) -> Policy:
    torch.manual_seed(1)
    return POLICIES[name]().eval()


def unet(protocol: Any = "paper") -> Reconstructor:
    torch.manual_seed(0)
    network = UNet(n_channels=2, n_pools=1, protocol=protocol)
    return network.frozen(precision="fp32", n_rows=N_ROWS, n_cols=N_COLS, device="cpu")


@pytest.fixture
def batch(generator: torch.Generator) -> SliceBatch:
    images = torch.rand(1, N_ROWS, N_COLS, generator=generator).cumsum(dim=-1)
    return SliceSet.from_images(images, ["a"]).batch(torch.tensor([0]))


def data_of(batch: SliceBatch, columns: tuple[int, ...] | list[int]) -> Tensor:
    return batch.kspace[0, :, :, list(columns)].movedim(-1, 0)


def scanned(session: Session, batch: SliceBatch) -> list[Tensor]:
    """Follow the advice to the end; return what every choice of the policy was made by."""
    scores = []
    while (advice := session.advise()).columns:
        if advice.scores is not None:
            scores.append(advice.scores)
        session.measure(advice.columns, data_of(batch, advice.columns))
    return scores


def simulated(
    batch: SliceBatch, reconstructor: Reconstructor, policy: Policy, **settings: Any
) -> Trajectory:
    simulator = Simulator(batch, reconstructor, protocol="blind")
    given = {"n_initial": N_INITIAL, "horizon": HORIZON, "keep_images": True, **settings}
    return rollout(policy, simulator, **given)


def check_same(session: Session, found: Trajectory) -> None:
    n_initial = len(session.scan.start)
    taken = [column for column in found.columns[0, 0].tolist() if column != NOT_ACQUIRED]
    assert session.order[n_initial:] == taken
    assert found.images is not None
    assert torch.equal(session.image(), found.images[-1, 0, 0])


@pytest.mark.parametrize(
    ("name", "protocol", "seed"),
    [
        *((name, "paper", None) for name in POLICIES),
        *((name, "blind", 5) for name in ("conv", "column", "fixed", "random")),
    ],
)
def test_a_session_takes_the_columns_of_the_simulator_bit_for_bit(
    batch: SliceBatch, name: str, protocol: str, seed: int | None
) -> None:
    policy, reconstructor = make_policy(name), unet(protocol)
    uniforms = None if seed is None else action_uniforms(1, 1, HORIZON, seed)
    found = simulated(batch, reconstructor, policy, uniforms=uniforms)
    scan = Scan(n_rows=N_ROWS, n_cols=N_COLS, budget=9, initial=N_INITIAL, seed=seed)
    with Advisor(reconstructor, policy) as advisor:
        session = Session(advisor, scan)
        assert len(scanned(session, batch)) == HORIZON
        check_same(session, found)


@pytest.mark.parametrize("name", ["conv", "column"])
def test_an_echo_train_takes_as_many_columns_as_it_asks_for(batch: SliceBatch, name: str) -> None:
    policy, reconstructor = make_policy(name), unet()
    found = simulated(batch, reconstructor, policy, columns_per_step=4)
    scan = Scan(n_rows=N_ROWS, n_cols=N_COLS, budget=9, initial=N_INITIAL, columns_per_step=4)
    with Advisor(reconstructor, policy) as advisor:
        session = Session(advisor, scan)
        assert len(scanned(session, batch)) == 2
        check_same(session, found)


def test_coils_and_their_sensitivities_are_those_of_the_simulator() -> None:
    whole = coil_batch()
    batch = whole.rows(torch.tensor([1]))
    _, n_coils, n_rows, n_cols = batch.kspace.shape
    policy, reconstructor = column_policy().eval(), Sense(n_iterations=3)
    found = simulated(batch, reconstructor, policy, n_initial=11, horizon=3)
    scan = Scan(n_rows=n_rows, n_cols=n_cols, n_coils=n_coils, budget=14, initial=11)
    with Advisor(reconstructor, policy) as advisor:
        session = Session(advisor, scan)
        scanned(session, batch)
        check_same(session, found)


def test_the_order_of_the_start_and_its_parts_do_not_matter(batch: SliceBatch) -> None:
    with Advisor(unet(), make_policy("conv")) as advisor:
        together, apart = Session(advisor, SCAN), Session(advisor, SCAN)
        together.measure(SCAN.start, data_of(batch, SCAN.start))
        first, *rest = SCAN.start[::-1]
        apart.measure(first, data_of(batch, [first])[0])
        assert apart.advise().columns == tuple(rest)[::-1] and apart.advise().source == "start"
        with pytest.raises(ConfigError, match="columns 7-8 of the start"):
            apart.image()
        apart.measure(np.array(rest).tolist(), data_of(batch, rest).numpy())
        assert torch.equal(together.image(), apart.image())
        assert together.advise().columns == apart.advise().columns


def test_columns_that_nobody_advised_count(batch: SliceBatch) -> None:
    """Columns outside of the advice may come before the start is complete, and after it."""
    with Advisor(unet(), make_policy("center-out")) as advisor:
        session = Session(advisor, SCAN)
        session.measure([0, *SCAN.start], data_of(batch, [0, *SCAN.start]))
        session.measure([15, 3], data_of(batch, [15, 3]))
        scanned(session, batch)
        assert session.order == [0, *SCAN.start, 15, 3, 6, 10, 5] and session.is_done


def test_sessions_that_wait_together_get_the_scores_of_one_alone(batch: SliceBatch) -> None:
    policy = make_policy("column")
    with Advisor(unet(), policy) as advisor:
        sessions = [Session(advisor, SCAN) for _ in range(3)]
        for at, session in enumerate(sessions):
            columns = [*SCAN.start, *range(at)]
            session.measure(columns, data_of(batch, columns))
        questions = [session.question() for session in sessions]
        together = advisor.answer(questions)
        for question, answer in zip(questions, together, strict=True):
            (alone,) = advisor.answer([question])
            torch.testing.assert_close(answer.scores, alone.scores, atol=1e-5, rtol=0)
            torch.testing.assert_close(answer.found.image, alone.found.image, atol=1e-5, rtol=0)


class FakeGraph:
    """Computes in memory that stays in place, as a CUDA graph does, without a device."""

    captured: ClassVar[list[int]] = []

    def __init__(self, function: Any, given: tuple[Tensor, ...], pool: object) -> None:
        if len(given[0]) > 4:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        self.captured.append(len(given[0]))
        self.function, self.given = function, [x.clone() for x in given]

    def __call__(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        for own, value in zip(self.given, given, strict=True):
            own.copy_(value)
        return self.function(*self.given)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of questions for which graphs are captured."""
    monkeypatch.setattr(graphs, "_Graph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(FakeGraph, "captured", [])
    return FakeGraph.captured


@pytest.mark.parametrize("coils", [1, 3])
def test_graphs_of_few_sizes_answer_any_number_of_questions(
    captured: list[int], caplog: pytest.LogCaptureFixture, coils: int
) -> None:
    batch = coil_batch().rows(torch.tensor([1]))
    _, n_coils, n_rows, n_cols = batch.kspace.shape
    scan = Scan(n_rows=n_rows, n_cols=n_cols, n_coils=n_coils, budget=20, initial=11)
    reconstructor = ZeroFilled() if coils == 1 else Sense(n_iterations=3)
    with Advisor(reconstructor, make_policy("column")) as advisor:
        sessions = [Session(advisor, scan) for _ in range(6)]
        for at, session in enumerate(sessions):
            columns = [*scan.start, *range(at)]
            session.measure(columns, data_of(batch, columns))
        questions = [session.question() for session in sessions]
        alone = [advisor.answer([question])[0] for question in questions]
        advisor._graphs = graphs.Graphs(advisor._computed)
        for n in (1, 2, 3, 4, 3, 6):
            for answer, wanted in zip(advisor.answer(questions[:n]), alone[:n], strict=True):
                torch.testing.assert_close(answer.scores, wanted.scores, atol=1e-5, rtol=0)
                found, expected = answer.found.image, wanted.found.image
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert captured == [1, 2, 4], "six are more than the fake takes"
    assert "no CUDA graph (operation not permitted when stream is capturing)" in caplog.text


def test_graphs_are_captured_before_the_first_advice_and_the_oldest_makes_room(
    captured: list[int], batch: SliceBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    policy, reconstructor = make_policy("conv"), unet()
    with Advisor(reconstructor, policy) as advisor:
        advisor._graphs = graphs.Graphs(advisor._computed)
        rehearse(advisor, SCAN)
        session = Session(advisor, SCAN)
        scanned(session, batch)
        check_same(session, simulated(batch, reconstructor, policy))
        assert captured == [1]
        questions = [session.question()] * 4
        for n in (2, 4, 1, 4):
            advisor.answer(questions[:n])
        assert captured == [1, 2, 4, 1]


@final
class Held(Policy):
    """Scores columns when it is let."""

    is_stochastic = False

    def __init__(self) -> None:
        super().__init__()
        self.started, self.released = threading.Event(), threading.Event()
        self.n_seen: list[int] = []

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        self.started.set()
        assert self.released.wait(60)
        self.n_seen.append(len(seen.mask))
        return -torch.arange(seen.mask.shape[1]).float().expand(seen.mask.shape)


def test_a_late_policy_is_answered_for_by_the_fallback_and_the_record_says_so(
    batch: SliceBatch,
) -> None:
    policy = Held()
    with Advisor(ZeroFilled(), policy) as advisor:
        scan = Scan(
            n_rows=N_ROWS, n_cols=N_COLS, budget=9, initial=3, deadline_s=0.01, fallback=(9, 5, 12)
        )
        session = Session(advisor, scan)
        session.measure(scan.start, data_of(batch, scan.start))
        late = [session.advise()]
        session.measure(5, data_of(batch, [5])[0])
        late.append(session.advise())
        assert [advice.columns for advice in late] == [(5,), (12,)]
        assert all(advice.is_late and advice.scores is None for advice in late)
        policy.released.set()
        session.image()
        assert session.advise() is late[-1], "what was answered stays"
        assert [entry["source"] for entry in session.record] == ["fallback", "fallback"]
        assert session.record[-1] == {"n_measured": 4, "columns": [12], "source": "fallback"}


def test_questions_that_wait_are_answered_together_and_dropped_when_outdated(
    batch: SliceBatch,
) -> None:
    policy = Held()
    with Advisor(ZeroFilled(), policy) as advisor:
        sessions = [Session(advisor, SCAN) for _ in range(4)]
        for session in sessions:
            session.measure(SCAN.start, data_of(batch, SCAN.start))
        futures = [advisor.ask(session.question()) for session in sessions[:1]]
        assert policy.started.wait(60)
        futures += [advisor.ask(session.question()) for session in sessions[1:]]
        assert futures[2].cancel()
        policy.released.set()
        for future in (futures[0], futures[1], futures[3]):
            future.result(60)
        assert policy.n_seen == [1, 2]


def test_a_policy_that_fails_tells_whoever_asked(batch: SliceBatch) -> None:
    policy = ConvPolicy(n_cols=N_COLS + 1, n_rows=N_ROWS, n_channels=2, n_hidden=5)
    with Advisor(unet(), policy) as advisor:
        session = Session(advisor, SCAN)
        session.measure(SCAN.start, data_of(batch, SCAN.start))
        with pytest.raises(KScoutError):
            session.advise()


def test_the_page_of_the_documents_runs(batch: SliceBatch, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "session.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    code = code.replace('"session.npz"', repr(str(tmp_path / "session.npz")))
    large = torch.nn.functional.pad(batch.kspace, (56, 56, 58, 58))
    names: dict[str, Any] = {"scanner": lambda columns: large[0, :, :, columns].movedim(-1, 0)}
    exec(code, names)
    assert names["session"].is_done and names["image"].shape == (128, 128)
    assert not torch.isnan(names["image"]).any()


def test_an_oracle_is_refused() -> None:
    with pytest.raises(ConfigError, match="truth, which no scanner has"):
        Advisor(ZeroFilled(), Oracle())


@pytest.mark.parametrize("n_before", [0, 2, 3, 5, 9])
def test_a_session_goes_on_from_its_file_with_the_same_bits(
    batch: SliceBatch, tmp_path: Path, n_before: int
) -> None:
    reconstructor, policy = unet(), make_policy("column")
    file = tmp_path / "session.npz"
    with Advisor(reconstructor, policy) as advisor:
        whole = Session(advisor, SCAN)
        scanned(whole, batch)
        expected = whole.image()
        begun = Session(advisor, SCAN, file=file)
        for column in whole.order[:n_before]:
            begun.measure(column, data_of(batch, [column])[0])
        before = begun.advise()
    with Advisor(unet(), make_policy("column")) as advisor:
        session = Session.read(file, advisor)
        after = session.advise()
        assert after.columns == before.columns and session.record == begun.record
        assert (after.scores is None) == (before.scores is None)
        assert before.scores is None or torch.equal(before.scores, after.scores)
        scanned(session, batch)
        assert session.order == whole.order
        assert torch.equal(session.image(), expected)
    with Advisor(unet(), make_policy("conv")) as advisor, pytest.raises(DataError, match="another"):
        Session.read(file, advisor)


def rewritten(path: Path, change: Any) -> None:
    arrays = dict(np.load(path, allow_pickle=False))
    facts = json.loads(arrays["session"].tobytes())
    change(facts, arrays)
    arrays["session"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    np.savez(path, **arrays)


DAMAGE = {
    "another format": lambda facts, _: facts.update(format=2),
    "no scan": lambda facts, _: facts.pop("scan"),
    "unknown key": lambda facts, _: facts["scan"].update(secret=1),
    "columns outside": lambda facts, _: facts.update(order=[99]),
    "columns twice": lambda facts, _: facts.update(order=[7, 8, 9, 7]),
    "no order": lambda facts, _: facts.update(order=None),
    "too many columns": lambda facts, _: facts.update(order=list(range(16))),
    "advice of nothing": lambda facts, _: facts.update(record=[]),
    "wrong advice": lambda facts, _: facts["record"][-1].update(columns=[8]),
    "unknown source": lambda facts, _: facts["record"][-1].update(source="me"),
    "smaller k-space": lambda _, arrays: arrays.update(kspace=arrays["kspace"][:, :, 1:]),
    "real k-space": lambda _, arrays: arrays.update(kspace=arrays["kspace"].real),
    "no image": lambda _, arrays: arrays.pop("zero_filled"),
    "other scores": lambda _, arrays: arrays.update(scores=arrays["scores"][1:]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused(batch: SliceBatch, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "session.npz"
    with Advisor(ZeroFilled(), make_policy("center-out")) as advisor:
        session = Session(advisor, SCAN, file=file)
        session.measure(SCAN.start, data_of(batch, SCAN.start))
        session.advise()
        rewritten(file, DAMAGE[damage])
        with pytest.raises(DataError, match="no session that can be continued"):
            Session.read(file, advisor)
        file.write_bytes(file.read_bytes()[:100])
        with pytest.raises(DataError, match="no session that can be continued"):
            Session.read(file, advisor)


ONE = np.ones((1, N_ROWS), dtype=np.complex64)
WRONG = {
    "not one of the 16": (16, ONE),
    "not one of": (-1, ONE),
    "is not a column": (True, ONE),
    "is not a column;": ([1.5], ONE[None]),
    "no column was given": ([], ONE[None][:0]),
    "measured already": (8, ONE),
    "send every column once": ([0, 0], np.stack([ONE, ONE])),
    "shape \\(1, 1, 11\\)": (0, ONE[:, 1:]),
    "shape \\(2, 1, 12\\)": ([0], np.stack([ONE, ONE])),
    "float32": (0, ONE.real),
    "NaN or infinite": (0, ONE * np.nan),
    "infinite values": (0, ONE.astype(np.complex128) * 1e300),
    "leaves 6": (list(range(7)), np.stack([ONE] * 7)),
    "outside of the matrix": (15, ONE),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_measured_is_refused_and_changes_nothing(
    batch: SliceBatch, words: str, unchecked: None
) -> None:
    allowed = tuple(range(15))
    scan = Scan(n_rows=N_ROWS, n_cols=N_COLS, budget=9, initial=3, selectable=allowed)
    with Advisor(ZeroFilled(), make_policy("center-out")) as advisor:
        session = Session(advisor, scan)
        session.measure(scan.start, data_of(batch, scan.start))
        before = session.image()
        with pytest.raises(DataError, match=words):
            session.measure(*WRONG[words])
        assert session.order == list(scan.start) and torch.equal(session.image(), before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_rows": 0}, "n_rows"),
        ({"budget": 2}, "cannot hold a start of 3"),
        ({"budget": 17}, "no column left"),
        ({"initial": 0}, "cannot hold a start of 0"),
        ({"initial": (3, 3)}, "twice"),
        ({"initial": (0, 15), "selectable": tuple(range(15))}, "outside the matrix"),
        ({"deadline_s": 0.0}, "deadline_s"),
        ({"fallback": (16,)}, "not one of the 16"),
        ({"columns_per_step": 0}, "columns_per_step"),
        ({"n_coils": 4096, "n_rows": 4096, "n_cols": 4096}, "memory"),
    ],
)
def test_a_scan_that_cannot_be_done_is_refused(change: dict[str, Any], words: str) -> None:
    settings = {"n_rows": N_ROWS, "n_cols": N_COLS, "budget": 9, "initial": 3, **change}
    with pytest.raises(ConfigError, match=words), Advisor(ZeroFilled(), Random()) as advisor:
        Session(advisor, Scan(**settings))
