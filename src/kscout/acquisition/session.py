"""Acquisitions without ground truth: measured columns come in, advice comes out.

    with Advisor(reconstructor, policy) as advisor:
        session = Session(advisor, Scan(n_rows=128, n_cols=128, budget=32, initial=16))
        while advice := session.advise().columns:
            session.measure(advice, scanner.measure(advice))
        session.image()

It takes the steps of a `Simulator` that holds the same slice, with the same arithmetic.
"""

import logging
import math
import operator
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsIndex, final, get_args

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from kscout.acquisition.advisor import AdviceRequest, AdviceResponse, Advisor
from kscout.acquisition.choose import check_chosen, choose_several, draws_columns, is_any_blocked
from kscout.acquisition.loop import action_uniforms
from kscout.acquisition.scan import (
    Advice,
    NotSavedError,
    SavedSession,
    Scan,
    Source,
    damaged,
    matching,
    read_session,
    unit_of,
    write_session,
)
from kscout.columns import columns_text, whole_order
from kscout.config.records import read, to_table
from kscout.core import Measurement
from kscout.device import check_memory
from kscout.errors import ConfigError, DataError, KScoutError
from kscout.json_types import JsonObject
from kscout.physics.fourier import column_ramps, ifft_rows
from kscout.physics.measurement import Pairs, measure_columns
from kscout.physics.normalization import denormalize, unit_of_kspace
from kscout.physics.sampling import apply_mask

_LOG = logging.getLogger(__name__)


@final
class Session:
    """The acquisition of one slice, for one thread at a time.

    Args:
        advisor: reconstruction and policy, which other sessions may share.
        scan: matrix, start and budget.
        file: file to which the session is saved whenever it changes, so that `Session.read`
            continues it after a crash; by default none.
    """

    def __init__(self, advisor: Advisor, scan: Scan, *, file: Path | None = None) -> None:
        self.advisor, self.scan, self.file = advisor, scan, file
        advisor.check(scan)
        shape = (1, scan.n_coils, scan.n_rows, scan.n_cols)
        what = f"a session of {scan.n_coils} coils, {scan.n_rows} rows, {scan.n_cols} columns"
        check_memory(32 * math.prod(shape), advisor.device, what, "measure a smaller matrix")
        self.kspace = torch.zeros(shape, dtype=torch.complex64, device=advisor.device)
        """Measured k-space, zero elsewhere."""
        self._unit: complex = 1
        self.order: list[int] = []
        """Columns in the order of measurement."""
        self.record: list[JsonObject] = []
        """Advice so far: number of measured columns, advised columns, and source."""
        self.measured: Measurement | None = None
        """The measured k-space over the unit of the start's; None until the start is complete."""
        self._advice: Advice | None = None
        self._pending: Future[AdviceResponse] | None = None
        self._is_allowed: list[bool] = scan.allowed().tolist()
        plan = scan.plan
        is_drawn = draws_columns(advisor.policy, is_argmax=plan.is_argmax)
        self._uniforms = action_uniforms(1, 1, plan.horizon, plan.seed)[0] if is_drawn else None

    @property
    def n_measured(self) -> int:
        return len(self.order)

    @property
    def is_done(self) -> bool:
        """Whether the budget is spent."""
        return self.n_measured >= self.scan.budget

    @property
    def missing(self) -> tuple[int, ...]:
        """Columns of the start that were not measured yet."""
        known = set(self.order)
        return tuple(column for column in self.scan.start if column not in known)

    def measure(
        self,
        columns: SupportsIndex | Sequence[SupportsIndex],
        data: Any,  # noqa: ANN401 - whatever becomes a tensor
    ) -> None:
        """Add measured columns of k-space, in any order.

        Args:
            columns: one column, or several that cost one reconstruction.
            data: k-space as `fft2c` returns it: complex, [coil, row] of one column, or
                [column, coil, row] of several.
        """
        values = torch.as_tensor(data)
        if not isinstance(columns, Sequence):
            columns, values = [columns], values[None]
        several = [_number(column) for column in columns]
        self._check(several, values)
        kspace = self.kspace.clone()
        kspace[0, :, :, several] = values.to(kspace).movedim(0, -1)
        # A computation for the older state may still run, on its own tensors.
        measured = self._grown(kspace, several)
        before, pending = (self.kspace, self.measured, self.order, self._advice), self._pending
        self.kspace, self.measured, self.order = kspace, measured, [*self.order, *several]
        self._advice = self._pending = None
        try:
            self._save()
        except NotSavedError:
            self.kspace, self.measured, self.order, self._advice = before
            self._pending = pending
            raise
        if pending is not None:
            pending.cancel()

    def advise(self) -> Advice:
        """Return the columns to measure next; repeated calls return the same advice."""
        if self._advice is None:
            begin = time.perf_counter()
            advice = self._advised()
            self._advice = replace(advice, duration_s=time.perf_counter() - begin)
            entry = {"n_measured": self.n_measured, "columns": list(advice.columns)}
            self.record.append({**entry, "source": advice.source})
            # Advice that is not saved is computed again.
            with suppress(NotSavedError):
                self._save()
        return self._advice

    def image(self) -> Float[Tensor, "row col"]:
        """Return the reconstruction in the units of the measured k-space.

        Brightness is estimated from the measurement, as by protocol `blind`.
        """
        pending = self._submit()
        if pending.exception() is None:
            found = pending.result().reconstruction
        else:
            # The policy alone may have failed, and the image does not need it.
            found = self.advisor.reconstruct(self.request()).result()
        return denormalize(found.image.float(), found.mean, found.std)[0] * abs(self._unit)

    def request(self) -> AdviceRequest:
        """Return the request for the advisor."""
        if self.measured is None:
            raise ConfigError(
                f"columns {columns_text(self.missing)} of the start are not measured yet; there is "
                "no image before they are"
            )
        step = self.n_measured - len(self.scan.start)
        return AdviceRequest(self.measured, step, self.scan.budget - self.n_measured)

    def _submit(self) -> "Future[AdviceResponse]":
        """Submit one request for the measured columns; a failed one is submitted again."""
        pending = self._pending
        if pending is None or (pending.done() and (pending.cancelled() or pending.exception())):
            pending = self._pending = self.advisor.submit(self.request())
        return pending

    def _advised(self) -> Advice:
        if self.missing:
            return Advice(self.missing, "start")
        if self.is_done:
            return Advice((), "end")
        n_wanted = min(self.scan.columns_per_step, self.scan.budget - self.n_measured)
        pending = self._submit()
        try:
            # Not `result`: a policy may raise a TimeoutError itself.
            pending.exception(timeout=self.scan.deadline_s)
        except TimeoutError:
            return self._fallback(n_wanted)
        try:
            return self._decided(pending.result(), n_wanted)
        except Exception as error:
            if not self.scan.has_fallback:
                raise
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            message = "the fallback answers after %d columns, as the policy failed: %s"
            _LOG.warning(message, self.n_measured, reason)
            return self._fallback(n_wanted)

    def _fallback(self, n_wanted: int) -> Advice:
        order = whole_order(self.scan.n_cols, self.scan.fallback)
        left = [column for column in order if self._is_free(column)]
        return Advice(tuple(left[:n_wanted]), "fallback")

    def _decided(self, response: AdviceResponse, n_wanted: int) -> Advice:
        policy, scores, uniforms = self.advisor.policy, response.scores, None
        if self._uniforms is None:
            # One transfer instead of several.
            scores = scores.cpu()
        else:
            # Samples are those of a simulator on the device.
            begin = self.n_measured - len(self.scan.start)
            uniforms = self._uniforms[:, begin : begin + n_wanted].to(scores.device)
        blocked = ~torch.tensor([self._is_allowed])
        blocked[:, self.order] = True
        blocked = blocked.to(scores.device)
        columns = choose_several(policy, scores, blocked, uniforms, n_wanted)
        check_chosen(is_any_blocked(columns, blocked), type(policy).__name__)
        return Advice(tuple(columns[0].tolist()), "policy", scores[0])

    def _is_free(self, column: int) -> bool:
        return self._is_allowed[column] and column not in self.order

    @torch.no_grad()
    def _grown(
        self, kspace: Complex[Tensor, "1 coil row col"], columns: list[int]
    ) -> Measurement | None:
        known, device = [*self.order, *columns], kspace.device
        if not set(self.scan.start) <= set(known):
            return None
        before = self.measured
        if before is None:
            is_start = torch.zeros(self.scan.n_cols, dtype=torch.bool, device=device)
            is_start[list(self.scan.start)] = True
            self._unit = unit_of_kspace(apply_mask(kspace[0], is_start))
        kspace = kspace * (1 / self._unit)
        if before is not None and len(columns) == self.scan.columns_per_step == 1:
            # All columns are transformed, so that the result is bitwise that of `Simulator`.
            column_images = ifft_rows(kspace).transpose(-2, -1).contiguous()
            first = torch.zeros(1, dtype=torch.long, device=device)
            pairs = Pairs(first, torch.tensor(columns, device=device), first)
            ramps = column_ramps(self.scan.n_cols, device)
            given = (before.zero_filled, before.mask, column_images, ramps, pairs)
            return measure_columns(*given, before.maps)
        mask = torch.zeros(1, self.scan.n_cols, dtype=torch.bool, device=device)
        mask[:, known] = True
        measured = Measurement.of(kspace, mask)
        maps = self.advisor.reconstructor.calibrate(measured) if before is None else before.maps
        return measured if maps is None else replace(measured, maps=maps)

    def _check(self, columns: list[int], values: Tensor) -> None:
        """Raise an error unless the values are complex [column, coil, row] of free columns."""
        if not columns:
            raise DataError("no column was given; measure 1 or more")
        for at, column in enumerate(columns):
            self._check_column(column, columns[:at])
        n_left = self.scan.budget - self.n_measured
        if len(columns) > n_left:
            raise DataError(
                f"{len(columns)} columns came in, and the budget of {self.scan.budget} leaves "
                f"{n_left}; open the session with a larger budget"
            )
        expected = (len(columns), self.scan.n_coils, self.scan.n_rows)
        if tuple(values.shape) != expected or not values.is_complex():
            raise DataError(
                f"the data are {values.dtype} of shape {tuple(values.shape)}; expected complex "
                f"numbers of shape {expected}: columns, coils, rows"
            )
        if not torch.isfinite(torch.view_as_real(values.to(torch.complex64))).all():
            raise DataError(
                f"the data of columns {columns_text(columns)} hold NaN or infinite values; measure "
                "them again"
            )

    def _check_column(self, column: int, others: list[int]) -> None:
        if not 0 <= column < self.scan.n_cols:
            raise DataError(
                f"column {column} is not one of the {self.scan.n_cols} columns; the first is 0"
            )
        if not self._is_allowed[column]:
            raise DataError(
                f"column {column} lies outside of the matrix that can be measured; send those that "
                "were requested"
            )
        if column in self.order or column in others:
            raise DataError(f"column {column} was measured already; send every column once")

    def _save(self) -> None:
        if self.file is not None:
            self.write(self.file)

    def write(self, path: Path) -> None:
        """Write the session to a file, atomically; `Session.read` continues it."""
        measured, advice = self.measured, self._advice
        scores = None if advice is None else advice.scores
        found = {
            "kspace": self.kspace,
            "zero_filled": None if measured is None else measured.zero_filled,
            "maps": None if measured is None else measured.maps,
            "scores": scores,
        }
        facts = {
            "scan": to_table(self.scan),
            "advisor": self.advisor.fingerprint,
            "order": self.order,
            "record": self.record,
            "is_advised": advice is not None,
            "unit": [self._unit.real, self._unit.imag],
        }
        arrays = {name: x.cpu().numpy() for name, x in found.items() if x is not None}
        write_session(path, SavedSession(facts, arrays))

    @classmethod
    def read(cls, path: Path, advisor: Advisor) -> "Session":
        """Continue a session from its file, to which it is saved further on."""
        saved = read_session(path)
        if saved.facts.get("advisor") != advisor.fingerprint:
            raise DataError(
                f"{path} is a session of another reconstruction or policy than "
                f"{type(advisor.reconstructor).__name__} and {type(advisor.policy).__name__} as "
                "given; continue it with its own"
            )
        try:
            scan = saved.facts["scan"]
            # In version 0.2 only a seed let trained policies sample.
            scan = {"argmax": scan.get("seed") is None, **scan}
            session = cls(advisor, read(Scan, scan), file=path)
            session._restore(saved)
        except (KScoutError, ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
            raise damaged(path, error) from error
        return session

    def _restore(self, saved: SavedSession) -> None:
        arrays = {
            name: torch.from_numpy(x).to(self.advisor.device) for name, x in saved.arrays.items()
        }
        for column in saved.facts["order"]:
            self._check_column(_number(column), [])
            self.order.append(column)
        if self.n_measured > self.scan.budget:
            raise ValueError("more columns than its budget")
        self.record = [dict(entry) for entry in saved.facts["record"]]
        self.kspace = matching(self.kspace, arrays["kspace"])
        if not self.missing:
            mask = torch.zeros(1, self.scan.n_cols, dtype=torch.bool, device=self.advisor.device)
            mask[:, self.order] = True
            maps = matching(self.kspace, arrays["maps"]) if "maps" in arrays else None
            zero_filled = matching(self.kspace, arrays["zero_filled"])
            self._unit = unit_of(saved)
            self.measured = Measurement(zero_filled, mask, maps=maps)
        if saved.facts["is_advised"]:
            last = self.record[-1]
            columns = tuple(_number(column) for column in last["columns"])
            if not all(self._is_free(column) for column in columns):
                raise ValueError("it advises columns that cannot be measured")
            if last["source"] not in get_args(Source):
                raise ValueError(f"advice of {last['source']!r}")
            scores = arrays.get("scores")
            if scores is not None and scores.shape != (self.scan.n_cols,):
                raise ValueError("scores of other columns")
            self._advice = Advice(columns, last["source"], scores)


def _number(column: object) -> int:
    try:
        if isinstance(column, bool):
            raise TypeError
        return operator.index(column)  # type: ignore[arg-type]
    except TypeError as error:
        raise DataError(f"{column!r} is not a column; give whole numbers") from error


def warm_up(advisor: Advisor, scan: Scan) -> None:
    """Let an advisor with graphs compute the first two decisions of a scan of ones."""

    def work() -> None:
        session = Session(advisor, scan)
        left = [x for x in scan.allowed().nonzero()[:, 0].tolist() if x not in scan.start]
        n_more = min(scan.columns_per_step, scan.budget - len(scan.start))
        for columns in (scan.start, left[:n_more]):
            session.measure(columns, torch.ones(len(columns), scan.n_coils, scan.n_rows) + 0j)
            advisor.respond([session.request()])

    advisor.warm_up(work)
