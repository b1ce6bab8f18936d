"""Backend of the page: its slices and models, acquired by policies and by columns of the user."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, final

import torch

from kscout import reconstruction
from kscout.acquisition.advisor import session_note
from kscout.acquisition.episode import Simulator
from kscout.acquisition.plan import Plan
from kscout.apps.serve.page.interactive import InteractiveAcquisition, Verdict, drawn_kspace
from kscout.apps.serve.service import ServeSettings
from kscout.apps.serve.sessions import TooManyError
from kscout.compatibility import Use, check_matrix
from kscout.config.bounds import AtLeast
from kscout.config.records import check
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import ConfigError, DataError, RunError, unknown_name
from kscout.evaluation.records.acquisitions import PolicySteps, SliceRecord
from kscout.evaluation.records.run_names import run_label
from kscout.evaluation.running.entries import (
    EvaluationEntry,
    budgets_of,
    check_distinct,
    is_fitted,
    resolve,
)
from kscout.evaluation.running.trajectories import check_fits, check_start
from kscout.json_types import JsonObject
from kscout.names import POLICIES, Protocol
from kscout.physics.sampling import start_mask
from kscout.policies.fixed import FixedOrder

_FIRST = ("test", "val", "train")


@final
@dataclass(frozen=True)
class SliceSource:
    """Slices of one matrix size."""

    name: str
    """Name in addresses of the page."""
    title: str
    slices: SliceSet

    def table(self) -> JsonObject:
        """Return the source as JSON: its volumes in order, each with its slice numbers."""
        pairs = zip(self.slices.volumes, self.slices.slices, strict=True)
        volumes = [(x, [n for _, n in group]) for x, group in groupby(pairs, itemgetter(0))]
        _, n_rows, n_cols = self.slices.shape
        sizes = {"n_rows": n_rows, "n_cols": n_cols}
        return {"name": self.name, "title": self.title, "volumes": volumes, **sizes}


def _stored(store: Store) -> list[SliceSource]:
    sources = []
    arrays = sorted(store.manifest.arrays, key=lambda one: _FIRST.index(one.split))
    for array in arrays:
        is_one = sum(other.split == array.split for other in arrays) == 1
        name = array.split if is_one else "{}-{}x{}".format(array.split, *array.size)
        slices = store.split(array.split, size=array.size, lazy=True)
        sources.append(SliceSource(name, f"{store.name}, {name}", slices))
    return sources


_ALWAYS = ("center-out", "random", "oracle")
"""Policies that are always offered, in addition to those of the command line."""
_SIDE = 128
"""Side of images without another source of the size."""


@final
class Models:
    """Loads the reconstructions and policies of the command line; all must be usable."""

    def __init__(
        self, reconstructors: Sequence[str], policies: Sequence[str], *, device: torch.device
    ) -> None:
        self.device = device
        named = {run_label(Path(x)) if Path(x).exists() else x: x for x in reconstructors}
        if len(named) < len(reconstructors):
            raise ConfigError("two reconstructions have the same name; rename a folder")
        self.reconstructions = {name: reconstruction.load(one) for name, one in named.items()}
        self._frozen: dict[tuple[str, int, int], Reconstructor] = {}
        self.policies: dict[str, EvaluationEntry | None] = {}
        """By name; those of the command line come first."""
        files = [one for one in policies if one not in POLICIES or Path(one).exists()]
        sizes = ((_SIDE, _SIDE), Plan(1, 1))
        loaded = [resolve(Path(one) if Path(one).exists() else one, *sizes)[0] for one in files]
        check_distinct(loaded)
        for one in policies:
            entry = loaded[files.index(one)] if one in files else None
            if is_fitted(one) if entry is None else entry.fits:
                raise ConfigError(
                    f"policy {one!r} is fitted on data; give a fitted one: a run folder, a weights "
                    "file or a name of the zoo"
                )
            if entry is None:
                resolve(one, *sizes)
            self.policies[one if entry is None else entry.name] = entry
        for name in _ALWAYS:
            self.policies.setdefault(name)
        self.budget = next(iter(budgets_of(policies)), None)
        """Start and budget of the first policy that has them."""

    @property
    def first(self) -> Reconstructor:
        """The reconstruction of sessions."""
        return next(iter(self.reconstructions.values()))

    @property
    def loaded(self) -> dict[str, Policy]:
        """Return the policies that were loaded without a size."""
        return {name: one.policy for name, one in self.policies.items() if one is not None}

    @property
    def fixed(self) -> str:
        """Fixed order for comparison: the first fitted one, or center-out."""
        orders = (name for name, one in self.loaded.items() if isinstance(one, FixedOrder))
        return next(orders, "center-out")

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns that the policies require; a default size if they support any."""
        bound = [one for one in self.loaded.values() if not one.serves_any_size]
        cols, rows = ([getattr(one, name, None) for one in bound] for name in ("n_cols", "n_rows"))
        n_cols = next((n for n in cols if isinstance(n, int)), _SIDE)
        n_rows = next((n for n in rows if isinstance(n, int)), n_cols)
        return n_rows, n_cols

    def reconstructor(self, name: str, n_rows: int, n_cols: int) -> Reconstructor:
        """Return a reconstruction, frozen for images of a size."""
        if name not in self.reconstructions:
            raise unknown_name("reconstruction", name, list(self.reconstructions))
        key = (name, n_rows, n_cols)
        if key not in self._frozen:
            self._frozen[key] = self.reconstructions[name].frozen(
                precision="auto", n_rows=n_rows, n_cols=n_cols, device=self.device
            )
        return self._frozen[key]

    def entry(self, name: str, shape: Sequence[int], plan: Plan) -> EvaluationEntry:
        """Return a policy for images of a shape."""
        if name not in self.policies:
            raise unknown_name("policy", name, list(self.policies))
        entry = self.policies[name]
        return resolve(name, shape, plan)[0] if entry is None else entry


YOU = "you"
_MOST_CACHED = 2**26
"""Pixels of cached acquisitions (256 MiB): a new column of the user does not rerun policies."""
_N_WAITING = 4
"""Requests of the page that may wait; further threads stay free for sessions."""
_MOST_PIXELS = 2**25
"""Largest number of pixels of one acquisition by one policy (128 MiB)."""


@final
@dataclass(frozen=True, kw_only=True)
class PageState:
    """One state of the page, as encoded in its address."""

    source: str
    slice: Annotated[int, AtLeast(0)]
    """Index among the slices of the source."""
    reconstruction: str
    policies: tuple[str, ...]
    """One policy, or two to compare."""
    n_initial: Annotated[int, AtLeast(1)]
    n_steps: Annotated[int, AtLeast(1)]
    own: tuple[int, ...] = ()
    """Columns of the user, in order."""

    def __post_init__(self) -> None:
        check(self)
        if not 1 <= len(set(self.policies)) == len(self.policies) <= 2:
            raise ConfigError("the page shows one policy or two different ones; choose one or two")


class DisconnectedError(RunError):
    """The client of a request has disconnected."""


@final
class PageBackend:
    """Acquires the slices of the page, one request at a time.

    The event of a request is set when its client disconnects; the request then ends before its next
    step.
    """

    def __init__(self, settings: ServeSettings, *, device: torch.device) -> None:
        self.models = Models(settings.reconstructor, settings.policy, device=device)
        self.sources = [] if settings.data is None else _stored(Store.open(settings.data))
        """The slices of each split and matrix size, the test split first."""
        self.size = self.sources[0].slices.shape[1:] if self.sources else self.models.size
        self._check_sizes(settings.data)
        self.is_argmax = settings.argmax
        self._cache: OrderedDict[PageState, PolicySteps] = OrderedDict()
        self._is_closed = False
        self._lock, self._waiting = threading.Lock(), threading.BoundedSemaphore(_N_WAITING)

    def choices(self) -> JsonObject:
        """Return all options of the page, and the note about the reconstruction of sessions."""
        n_initial, n_steps = self._budget
        return {
            "sources": [source.table() for source in self.sources],
            "reconstructions": list(self.models.reconstructions),
            "policies": list(self.models.policies),
            "fixed": self.models.fixed,
            "n_initial": n_initial,
            "n_steps": n_steps,
            "session_note": self.session_note(),
        }

    def session_note(self) -> str | None:
        """Return a sentence if the reconstruction of sessions was trained for another use."""
        use = Use((1, *self.size), *self._budget)
        return session_note(self.models.first, use)

    @property
    def _budget(self) -> tuple[int, int]:
        if (trained := self.models.budget) is not None:
            return trained.n_initial, trained.horizon
        default = max(1, self.size[1] // 8)
        return default, default

    def acquire(self, state: PageState, disconnected: threading.Event) -> SliceRecord:
        """Acquire a slice by the policies and, if any, by the columns of the user."""
        with self._exclusive():
            slices = self._slice(state)
            acquisition = self._acquisition(state, slices, disconnected)
            steps = []
            for name in state.policies:
                entry = self._entry(name, slices, acquisition.plan)
                steps.append(self._run(state, entry, acquisition))
            if state.own:
                steps.append(acquisition.replay(YOU, state.own))
            batch = acquisition.simulator.batch
            return SliceRecord(
                batch.target[0].float().cpu().numpy(),
                acquisition.start_columns,
                tuple(steps),
                title=f"{slices.volumes[0]}, slice {slices.slices[0]}",
                shown=tuple(one.name for one in steps),
                kspace=drawn_kspace(batch),
            )

    def compare(self, state: PageState, disconnected: threading.Event) -> Verdict:
        """Compare the last column of the user with the choices of the policies."""
        if not state.own:
            raise ConfigError("no column was selected manually; select one")
        with self._exclusive():
            slices = self._slice(state)
            acquisition = self._acquisition(state, slices, disconnected)
            names = dict.fromkeys((*state.policies, self.models.fixed))
            others = [self._entry(x, slices, acquisition.plan) for x in names if x != "oracle"]
            return acquisition.compare(YOU, state.own, others)

    def close(self) -> None:
        """Cancel running computations before their next step."""
        self._is_closed = True

    def _check_sizes(self, data: Path | None) -> None:
        """Raise an error if some policy supports no slice of the dataset."""
        sizes = [one.slices.shape[1:] for one in self.sources]
        for name, policy in self.models.loaded.items():
            if sizes and all(policy.misfit(*size) for size in sizes):
                have, without = f"slices of {data} have", "leave --data out"
                check_matrix(policy, (0, *sizes[0]), name=name, images=have, size=without)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._waiting.acquire(blocking=False):
            raise TooManyError("the page is computing for others; try again in a moment")
        try:
            with self._lock:
                yield
        finally:
            self._waiting.release()

    def _slice(self, state: PageState) -> SliceSet:
        slices = next((one.slices for one in self.sources if one.name == state.source), None)
        if slices is None:
            raise DataError("these slices are not here; choose others")
        if state.slice >= len(slices):
            raise DataError(f"there are {len(slices)} slices there; choose one of them")
        _, n_rows, n_cols = slices.shape
        if (state.n_steps + 1) * n_rows * n_cols > _MOST_PIXELS:
            raise ConfigError(
                f"{state.n_steps} steps are too many for images of {n_rows}x{n_cols}; ask for fewer"
            )
        return slices.subset(torch.tensor([state.slice])).to(self.models.device)

    def _entry(self, name: str, slices: SliceSet, plan: Plan) -> EvaluationEntry:
        entry = self.models.entry(name, slices.shape[1:], plan)
        check_fits(entry.policy, slices, plan, name=entry.name)
        return entry

    def _acquisition(
        self, state: PageState, slices: SliceSet, disconnected: threading.Event
    ) -> InteractiveAcquisition:
        def before_step() -> None:
            if disconnected.is_set() or self._is_closed:
                raise DisconnectedError("no client waits for this response any more")

        before_step()
        _, n_rows, n_cols = slices.shape
        reconstructor = self.models.reconstructor(state.reconstruction, n_rows, n_cols)
        start = start_mask(state.n_initial, slices.selectable.shape, slices.device)
        check_start(slices, reconstructor, start)
        (batch,) = slices.batches(1)
        default = reconstructor.protocol_for()
        protocol: Protocol = "blind" if slices.kind == "kspace" else default
        simulator = Simulator(batch, reconstructor, protocol=protocol)
        plan = Plan(state.n_initial, state.n_steps, is_argmax=self.is_argmax)
        return InteractiveAcquisition(simulator, plan, before_step=before_step)

    def _run(
        self, state: PageState, entry: EvaluationEntry, acquisition: InteractiveAcquisition
    ) -> PolicySteps:
        key = replace(state, policies=(entry.name,), own=())
        steps = self._cache.pop(key, None) or acquisition.run(entry)
        self._cache[key] = steps
        while sum(old.images.size for old in self._cache.values()) > _MOST_CACHED:
            self._cache.popitem(last=False)
        return steps
