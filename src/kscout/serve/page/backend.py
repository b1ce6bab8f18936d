"""What the page shows: a slice acquired by policies, and by whoever looks, side by side."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, final

import torch

from kscout.acquisition.advisor import session_note
from kscout.acquisition.episode import Simulator
from kscout.compatibility import Use, check_matrix
from kscout.config.bounds import AtLeast
from kscout.config.records import check
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, DataError, RunError
from kscout.evaluation.records.acquisitions import Acquisition, PolicySteps
from kscout.evaluation.running.entries import EvaluationEntry, Sizes
from kscout.evaluation.running.trajectories import AcquisitionPlan, check_fits, check_start
from kscout.names import Protocol
from kscout.serve.page.catalog import Catalog
from kscout.serve.page.interactive import InteractiveAcquisition, Verdict, drawn_kspace
from kscout.serve.page.models import Models
from kscout.serve.sessions import TooManyError

YOU = "you"
_MOST_REMEMBERED = 2**26
"""Pixels of acquisitions that are kept, so that one more column of one's own runs no policy again:
256 MiB."""
_N_WAITING = 4
"""Requests that may wait for each other, so that sessions find threads."""
_MOST_PIXELS = 2**25
"""Of the images of one acquisition by one policy: 128 MiB."""


@final
@dataclass(frozen=True)
class Shown:
    """What the page offers, as the command line names it."""

    reconstructors: tuple[str, ...]
    policies: tuple[str, ...]
    data: Path | None = None
    argmax: bool = False
    """Trained policies acquire the columns with the highest scores."""


@final
@dataclass(frozen=True, kw_only=True)
class PageState:
    """One state of the page, as its address tells it."""

    source: str
    slice: Annotated[int, AtLeast(0)]
    """Position among the slices of the source."""
    reconstruction: str
    policies: tuple[str, ...]
    """One, or two to be compared."""
    n_initial: Annotated[int, AtLeast(1)]
    n_steps: Annotated[int, AtLeast(1)]
    own: tuple[int, ...] = ()
    """Columns that whoever looks at the page took, in order."""

    def __post_init__(self) -> None:
        check(self)
        if not 1 <= len(set(self.policies)) == len(self.policies) <= 2:
            raise ConfigError("the page shows one policy or two different ones; choose such")


class GoneError(RunError):
    """Nobody waits for the answer any more."""


@final
class PageBackend:
    """Acquires the slices of the page, one request at a time.

    Every request comes with an event that is set where nobody waits for its answer any more; it
    then ends before its next step.
    """

    def __init__(self, shown: Shown, *, device: torch.device) -> None:
        self.models = Models(shown.reconstructors, shown.policies, device=device)
        self.catalog = Catalog(shown.data, self.models.size)
        self._check_sizes(shown.data)
        self.is_argmax = shown.argmax
        self._remembered: OrderedDict[PageState, PolicySteps] = OrderedDict()
        self._is_closed = False
        self._lock, self._waiting = threading.Lock(), threading.BoundedSemaphore(_N_WAITING)

    def choices(self) -> dict[str, Any]:
        """Return all that can be chosen, and what is noted about the reconstruction of sessions."""
        n_initial, n_steps = self._budget
        return {
            "sources": [source.table() for source in self.catalog.sources()],
            "reconstructions": self.models.reconstructions,
            "policies": self.models.policies,
            "fixed": self.models.fixed,
            "n_initial": n_initial,
            "n_steps": n_steps,
            "session_note": self.session_note(),
        }

    def session_note(self) -> str | None:
        """Return a sentence if the reconstruction of sessions was trained for something else."""
        use = Use((1, *self.catalog.size), *self._budget)
        return session_note(self.models.network(self.models.reconstructions[0]), use)

    @property
    def _budget(self) -> tuple[int, int]:
        default = max(1, self.catalog.size[1] // 8)
        n_initial, n_steps, *_ = self.models.budget or (default, default)
        return n_initial, n_steps

    def acquired(self, state: PageState, gone: threading.Event) -> Acquisition:
        """Return a slice acquired by the policies, and by whoever took columns."""
        with self._turn():
            slices = self._slice(state)
            acquisition = self._acquisition(state, slices, gone)
            steps = []
            for name in state.policies:
                entry = self._entry(name, state, slices)
                steps.append(self._run(state, entry, acquisition))
            if state.own:
                steps.append(acquisition.replay(YOU, state.own))
            batch = acquisition.simulator.batch
            return Acquisition(
                batch.target[0].float().cpu().numpy(),
                acquisition.start_columns,
                tuple(steps),
                title=f"{slices.volumes[0]}, slice {slices.slices[0]}",
                shown=tuple(one.name for one in steps),
                kspace=drawn_kspace(batch),
            )

    def judged(self, state: PageState, gone: threading.Event) -> Verdict:
        """Return how the last column of one's own compares with what others would have taken."""
        if not state.own:
            raise ConfigError("no column was selected manually; select one")
        with self._turn():
            slices = self._slice(state)
            names = dict.fromkeys((*state.policies, self.models.fixed))
            others = [self._entry(name, state, slices) for name in names if name != "oracle"]
            return self._acquisition(state, slices, gone).compare(YOU, state.own, others)

    def close(self) -> None:
        """End what is being computed, before its next step."""
        self._is_closed = True

    def _check_sizes(self, data: Path | None) -> None:
        """Refuse a store of which some policy fits no slice."""
        sizes = [one.slices.shape[1:] for one in self.catalog.sources()]
        for name, policy in self.models.loaded.items():
            if sizes and all(policy.misfit(*size) for size in sizes):
                have, without = f"slices of {data} have", "leave --data out"
                check_matrix(policy, (0, *sizes[0]), name=name, images=have, size=without)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._waiting.acquire(blocking=False):
            raise TooManyError("the page is computing for others; try again in a moment")
        try:
            with self._lock:
                yield
        finally:
            self._waiting.release()

    def _slice(self, state: PageState) -> SliceSet:
        slices = self.catalog.find(state.source).slices
        if state.slice >= len(slices):
            raise DataError(f"there are {len(slices)} slices there; choose one of them")
        _, n_rows, n_cols = slices.shape
        if (state.n_steps + 1) * n_rows * n_cols > _MOST_PIXELS:
            raise ConfigError(
                f"{state.n_steps} steps are too many for images of {n_rows}x{n_cols}; ask for fewer"
            )
        return slices.subset(torch.tensor([state.slice])).to(self.models.device)

    def _entry(self, name: str, state: PageState, slices: SliceSet) -> EvaluationEntry:
        _, n_rows, n_cols = slices.shape
        sizes = Sizes(n_rows, n_cols, state.n_initial, state.n_steps)
        found = self.models.entry(name, sizes)
        check_fits(found.policy, slices, _plan(state), name=found.name)
        return found

    def _acquisition(
        self, state: PageState, slices: SliceSet, gone: threading.Event
    ) -> InteractiveAcquisition:
        def before_step() -> None:
            if gone.is_set() or self._is_closed:
                raise GoneError("no client waits for this response any more")

        before_step()
        _, n_rows, n_cols = slices.shape
        reconstructor = self.models.reconstructor(state.reconstruction, n_rows, n_cols)
        check_start(slices, reconstructor, state.n_initial)
        (batch,) = slices.batches(1)
        own = reconstructor.protocol_for()
        protocol: Protocol = "blind" if slices.kind == "kspace" else own
        simulator = Simulator(batch, reconstructor, protocol=protocol)
        given = {"n_initial": state.n_initial, "horizon": state.n_steps}
        how = {"is_argmax": self.is_argmax, "before_step": before_step}
        return InteractiveAcquisition(simulator, **given, **how)  # type: ignore[arg-type]

    def _run(
        self, state: PageState, entry: EvaluationEntry, acquisition: InteractiveAcquisition
    ) -> PolicySteps:
        """Let a policy acquire, or remember how it did."""
        key = replace(state, policies=(entry.name,), own=())
        found = self._remembered.pop(key, None) or acquisition.run(entry)
        self._remembered[key] = found
        while sum(old.images.size for old in self._remembered.values()) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)
        return found


def _plan(state: PageState) -> AcquisitionPlan:
    return AcquisitionPlan(n_initial=state.n_initial, horizon=state.n_steps)
