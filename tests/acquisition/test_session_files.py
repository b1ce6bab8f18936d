"""A session survives a crash: it goes on from its file, and no damaged file is taken."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kscout.acquisition import Advisor, Session
from kscout.core import SliceBatch
from kscout.errors import DataError, RunError
from kscout.reconstruction.zero_filled import ZeroFilled
from tiny_sessions import SCAN, data_of, make_policy, scanned, unet


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
            data = batch.kspace[0, :, :, list(columns)].movedim(-1, 0)
            before = session.advise(), list(session.order), session.measured
            with monkeypatch.context() as patched:
                patched.setattr("kscout.acquisition.session_file.np.savez", full)
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
        session = Session(advisor, SCAN, file=file)
        session.measure(SCAN.start, data_of(batch, SCAN.start))
        session.advise()
        rewritten(file, DAMAGE[damage])
        with pytest.raises(DataError, match="no session that can be continued"):
            Session.read(file, advisor)
        file.write_bytes(file.read_bytes()[:100])
        with pytest.raises(DataError, match="no session that can be continued"):
            Session.read(file, advisor)
