"""A session takes the simulator's columns without the truth."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from begun_sessions import begun
from jaxtyping import Float
from torch import Tensor

from coil_slices import coil_batch
from kscout.acquisition import Advisor, Scan, Session, action_uniforms
from kscout.core import Observation, Policy, SliceBatch
from kscout.errors import ConfigError, DataError
from kscout.physics import apply_mask, center_mask
from kscout.physics.normalization import unit_of_kspace
from kscout.policies import build
from kscout.policies.random import Random
from kscout.reconstruction import load
from kscout.reconstruction.sense import Sense
from kscout.reconstruction.zero_filled import ZeroFilled
from tiny_sessions import (
    HORIZON,
    N_COLS,
    N_INITIAL,
    N_ROWS,
    POLICIES,
    SCAN,
    check_same,
    column_policy,
    data_of,
    make_policy,
    scanned,
    simulated,
    unet,
)


@pytest.mark.parametrize(
    ("name", "protocol", "seed", "argmax", "columns_per_step"),
    [
        *((name, "paper", None, False, 1) for name in POLICIES),
        *((name, "blind", 5, False, 1) for name in ("conv", "column", "fixed", "random")),
        *((name, "blind", None, True, 1) for name in ("conv", "column")),
        *((name, "paper", None, False, 4) for name in ("conv", "column")),
    ],
)
def test_a_session_takes_the_columns_of_the_simulator_bit_for_bit(
    batch: SliceBatch,
    name: str,
    protocol: str,
    seed: int | None,
    argmax: bool,
    columns_per_step: int,
) -> None:
    policy, reconstructor = make_policy(name), unet(protocol)
    uniforms = None if seed is None else action_uniforms(1, 1, HORIZON, seed)
    how = {"is_argmax": argmax, "columns_per_step": columns_per_step}
    found = simulated(batch, reconstructor, policy, uniforms=uniforms, **how)
    with Advisor(reconstructor, policy) as advisor:
        scan = replace(SCAN, seed=seed, argmax=argmax, columns_per_step=columns_per_step)
        session = Session(advisor, scan)
        assert len(scanned(session, batch)) == -(-HORIZON // columns_per_step)
        check_same(session, found)


@pytest.mark.parametrize("name", ["random", "variable-density"])
def test_random_columns_are_random_without_a_seed_and_the_same_every_time(
    batch: SliceBatch, name: str
) -> None:
    policy = build(name, n_cols=N_COLS, n_initial=N_INITIAL, horizon=HORIZON)
    orders = []
    with Advisor(ZeroFilled(), policy) as advisor:
        for seed in (None, None, 0, 1):
            session = Session(advisor, replace(SCAN, seed=seed, columns_per_step=2))
            scanned(session, batch)
            orders.append(session.order[N_INITIAL:])
    assert orders[0] == orders[1] == orders[2] != orders[3]
    assert sorted(orders[0]) != list(range(HORIZON)), "ties go to the lowest column"
    assert orders[0] != [6, 10, 5, 11, 4, 12], "the most probable are the most central"


def test_coils_and_their_sensitivities_are_those_of_the_simulator() -> None:
    batch = coil_batch().rows(torch.tensor([1]))
    _, n_coils, n_rows, n_cols = batch.kspace.shape
    scan = Scan(n_rows=n_rows, n_cols=n_cols, n_coils=n_coils, budget=14, initial=11)
    # A simulator does not remove the phase that all coils have in common.
    unit = unit_of_kspace(apply_mask(batch.kspace[0], center_mask(n_cols, 11)))
    batch = replace(batch, kspace=batch.kspace / unit)
    policy, reconstructor = column_policy().eval(), Sense(n_iterations=3)
    policy.is_stochastic = False
    found = simulated(batch, reconstructor, policy, start=11, horizon=3)
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


@final
class Words(Policy):
    """Gives the scores that it was told."""

    is_stochastic = False
    scores: Tensor

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return self.scores.expand(seen.mask.shape)


def test_scores_that_are_not_numbers_count_where_a_column_is_left_alone(batch: SliceBatch) -> None:
    policy, scan = Words(), replace(SCAN, columns_per_step=4, selectable=tuple(range(1, N_COLS)))
    policy.scores = -torch.arange(N_COLS).float()
    policy.scores[[0, *SCAN.start]] = torch.nan
    with Advisor(ZeroFilled(), policy) as advisor:
        session = begun(advisor, batch, scan)
        assert session.advise().columns == (1, 2, 3, 4)
        policy.scores = torch.full((N_COLS,), torch.nan)
        session = begun(advisor, batch, scan)
        with pytest.raises(ConfigError, match="Words left no column to choose"):
            session.advise()


def test_the_page_of_the_documents_runs(batch: SliceBatch, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "session.md").read_text(
        encoding="utf-8"
    )
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    code = code.replace('"session.npz"', repr(str(tmp_path / "session.npz")))
    large = torch.nn.functional.pad(batch.kspace, (56, 56, 58, 58))
    names: dict[str, Any] = {"scanner": lambda columns: large[0, :, :, columns].movedim(-1, 0)}
    exec(code, names)
    assert names["session"].is_done and names["image"].shape == (128, 128)
    assert not torch.isnan(names["image"]).any()


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
    scan = replace(SCAN, selectable=tuple(range(15)))
    with Advisor(ZeroFilled(), make_policy("center-out")) as advisor:
        session = begun(advisor, batch, scan)
        before = session.image()
        with pytest.raises(DataError, match=words):
            session.measure(*WRONG[words])
        assert session.order == list(scan.start) and torch.equal(session.image(), before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_rows": 0}, "n_rows"),
        ({"budget": 2}, "cannot hold a start of 3"),
        ({"budget": 17}, "lower the budget to 16 or less"),
        ({"initial": 0}, "cannot hold a start of 0"),
        ({"initial": (3, 3)}, "twice"),
        ({"initial": (0, 15), "selectable": tuple(range(15))}, "outside the matrix"),
        ({"initial": 8, "selectable": tuple(range(6, 16))}, "start from 5 or fewer"),
        ({"deadline_s": 0.0}, "deadline_s"),
        ({"fallback": (16,)}, "not one of the 16"),
        ({"columns_per_step": 0}, "columns_per_step"),
        ({"n_coils": 4096, "n_rows": 4096, "n_cols": 4096}, "memory"),
    ],
)
def test_a_scan_that_cannot_be_done_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words), Advisor(ZeroFilled(), Random()) as advisor:
        Session(advisor, replace(SCAN, **change))


@pytest.mark.parametrize(
    ("size", "budget", "words"),
    [
        (128, 20, "the zoo has knee-general-unet, heads-general-unet for protocol blind"),
        (100, 20, "train one with kscout train reconstructor --protocol blind"),
    ],
)
def test_a_reconstruction_for_protocol_paper_gives_one_warning_that_names_what_fits(
    size: int, budget: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    network = load("knee-unet")
    frozen = network.frozen(precision="fp32", n_rows=size, n_cols=size, device="cpu")
    scan = Scan(n_rows=size, n_cols=size, budget=budget, initial=16)
    for reconstructor in (frozen, network):
        with Advisor(reconstructor, Random()) as advisor:
            Session(advisor, scan), Session(advisor, scan)
    begin = "the reconstruction was trained for protocol paper"
    (message,) = [one for one in caplog.messages if one.startswith(begin)]
    assert message.endswith(words)


@pytest.mark.parametrize("name", ["knee-cotrained-16-unet", "total-variation"])
def test_a_reconstruction_for_protocol_blind_or_any_gives_no_warning(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Advisor(load(name), Random()) as advisor:
        Session(advisor, Scan(n_rows=128, n_cols=128, budget=32, initial=16))
    assert not caplog.messages
