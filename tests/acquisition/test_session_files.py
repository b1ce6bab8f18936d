"""A session survives a crash: it goes on from its file, and no damaged file is taken."""

import cmath
import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from begun_sessions import begun
from torch import Tensor

from coil_slices import disks, several_coils
from kscout.acquisition import Advisor, Scan, Session
from kscout.core import Policy, Reconstructor, SliceBatch
from kscout.errors import DataError, RunError
from kscout.physics import center_mask, fft2c
from kscout.physics.normalization import unit_of_kspace
from kscout.policies import load as load_policy
from kscout.reconstruction import load
from kscout.reconstruction.varnet import VarNet
from kscout.reconstruction.zero_filled import ZeroFilled
from tiny_sessions import FACTORS, SCAN, column_policy, data_of, make_policy, scanned, unet


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


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_cannot_be_kept_is_told_and_changes_nothing(
    batch: SliceBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy("column")
    with Advisor(ZeroFilled(), policy) as advisor:
        whole, session = Session(advisor, SCAN), Session(advisor, SCAN, file=tmp_path / "s.npz")
        scanned(whole, batch)
        while columns := session.advise().columns:
            data = data_of(batch, columns)
            before = session.advise(), list(session.order), session.measured
            with monkeypatch.context() as patched:
                patched.setattr("kscout.acquisition.scan.np.savez", full)
                with pytest.raises(RunError, match=r"No space left on device.*make room"):
                    session.measure(columns, data)
            assert (session.advise(), session.order, session.measured) == before
            session.measure(columns, data)
            kept = Session.read(tmp_path / "s.npz", advisor)
            assert kept.order == session.order == whole.order[: len(kept.order)]
        assert torch.equal(session.image(), whole.image())


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
    "no unit": lambda facts, _: facts.update(unit=[0.0, 0.0]),
    "unit of text": lambda facts, _: facts.update(unit="ab"),
    "smaller k-space": lambda _, arrays: arrays.update(kspace=arrays["kspace"][:, :, 1:]),
    "real k-space": lambda _, arrays: arrays.update(kspace=arrays["kspace"].real),
    "no image": lambda _, arrays: arrays.pop("zero_filled"),
    "other scores": lambda _, arrays: arrays.update(scores=arrays["scores"][1:]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused(batch: SliceBatch, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "session.npz"
    with Advisor(ZeroFilled(), make_policy("center-out")) as advisor:
        session = begun(advisor, batch, SCAN, file=file)
        session.advise()
        rewritten(file, DAMAGE[damage])
        with pytest.raises(DataError, match="no session that can be continued"):
            Session.read(file, advisor)
        file.write_bytes(file.read_bytes()[:100])
        with pytest.raises(DataError, match="no session that can be continued"):
            Session.read(file, advisor)


SIDE = 128


def acquired(
    kspace: Tensor, scan: Scan, reconstructor: Reconstructor, policy: Policy
) -> tuple[list[int], Tensor]:
    with Advisor(reconstructor, policy.eval()) as advisor:
        session = Session(advisor, scan)
        while columns := session.advise().columns:
            session.measure(columns, kspace[:, :, list(columns)].movedim(-1, 0))
        return session.order, session.image()


def trained_networks() -> tuple[Tensor, Scan, Reconstructor, Policy]:
    """Return a slice with a phase that varies, as that of a scanner does, and networks."""
    down, across = torch.meshgrid(*[torch.linspace(-1, 1, SIDE)] * 2, indexing="ij")
    phase = torch.polar(torch.ones(SIDE, SIDE), 0.5 * down + across.square())
    generator = torch.Generator().manual_seed(0)
    image = disks(SIDE, SIDE) * (1 + 0.2 * torch.rand(SIDE, SIDE, generator=generator))
    scan = Scan(n_rows=SIDE, n_cols=SIDE, budget=21, initial=16)
    networks = load("knee-general-unet"), load_policy("knee-general-16-column")
    return fft2c(image * phase)[None], scan, *networks


def networks_of_several_coils() -> tuple[Tensor, Scan, Reconstructor, Policy]:
    torch.manual_seed(0)
    network = VarNet(n_cascades=2, n_channels=4, n_pools=2, sensitivity_pools=2)
    scan = Scan(n_rows=12, n_cols=16, n_coils=4, budget=9, initial=6)
    network.eval().requires_grad_(False)
    return several_coils(12, 16)[0][0], scan, network, column_policy()


@pytest.mark.parametrize("make", [trained_networks, networks_of_several_coils])
def test_networks_are_independent_of_the_unit_of_kspace(make: Any) -> None:
    kspace, *others = make()
    order, image = acquired(kspace, *others)
    for factor in FACTORS:
        its_order, its_image = acquired(kspace * factor, *others)
        assert its_order == order
        assert (its_image / abs(factor) - image).abs().max() < 1e-4 * image.max()


@pytest.mark.parametrize("n_cols", [9, 12])
@pytest.mark.parametrize("n_center", [1, 2, 5])
def test_the_unit_of_a_positive_image_has_no_phase(n_cols: int, n_center: int) -> None:
    generator = torch.Generator().manual_seed(0)
    kspace = fft2c(torch.rand(1, 11, n_cols, generator=generator))
    unit = unit_of_kspace(kspace * center_mask(n_cols, n_center))
    assert unit.imag == 0 and unit.real > 0


@pytest.mark.parametrize("columns", [[5, 6, 7], [6], [0, 1, 2]])
def test_units_have_the_phase_of_the_factor(columns: list[int]) -> None:
    """Also if DC, or any column and its opposite, is not measured."""
    mask = torch.zeros(12)
    mask[columns] = 1
    generator = torch.Generator().manual_seed(0)
    kspace = fft2c(torch.rand(2, 11, 12, generator=generator)) * mask
    unit = unit_of_kspace(kspace)
    for factor in (*FACTORS, -1, 1e-25):
        found = unit_of_kspace(kspace * factor) / unit / factor
        assert abs(cmath.phase(found)) < 1e-5 and 0.49 < abs(found) < 2.01
    assert unit_of_kspace(kspace * 0) == 1
