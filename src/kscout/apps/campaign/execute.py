"""Execution of a plan: unfinished runs, each after its inputs; a failure does not stop others."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, final

from kscout.apps.campaign.nodes import Node
from kscout.apps.campaign.plan import CampaignPlan
from kscout.apps.campaign.state import is_done, node_state, write_index
from kscout.apps.campaign.task import Result, Task
from kscout.apps.campaign.workers import Pool, WorkerOptions, open_pool
from kscout.files import check_free_of, locked

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SEEN_WITHIN_S = 10.0


@final
@dataclass(frozen=True)
class Event:
    """An event of a run."""

    what: Literal["done", "retry", "failed"]
    node: Node
    seconds: float
    reason: str
    n_done: int
    n_runs: int


OnEvent = Callable[[Event], None]


@final
@dataclass(frozen=True)
class RunOptions:
    """Options of the execution."""

    workers: WorkerOptions = field(default_factory=WorkerOptions)
    n_retries: int = 1
    """Further attempts for a failed run."""
    program: tuple[str, ...] = ()
    """Command instead of kscout, for tests."""


@final
@dataclass
class Outcome:
    """Outcome of a campaign."""

    n_runs: int
    n_cached: int
    """Runs that were finished before."""
    n_done: int = 0
    """Runs that were finished now."""
    failed: list[tuple[Node, str]] = field(default_factory=list)
    blocked: list[Node] = field(default_factory=list)
    """Runs that depend on a failed one."""


def run_campaign(
    plan: CampaignPlan, options: RunOptions, *, file: str = "", on_event: OnEvent | None = None
) -> Outcome:
    """Execute all unfinished runs of a plan; a failed run only stops those that depend on it."""
    if any(node_state(node) != "done" for node in plan.nodes.values()):
        plan.check_sources()
    check_free_of(plan.root, "dataset", "run", "evaluation")
    with locked(plan.root):
        pending = {key: node for key, node in plan.nodes.items() if node_state(node) != "done"}
        outcome = Outcome(len(plan.nodes), len(plan.nodes) - len(pending))
        if pending:
            logs = plan.root / "slurm"
            with open_pool(options.workers, n_tasks=len(pending), logs=logs) as pool:
                # Not before: without workers nothing is written.
                write_index(plan, file)
                _Driver(plan, options, pool, pending, outcome, file, on_event).run()
        write_index(plan, file)
    return outcome


@final
@dataclass
class _Driver:
    plan: CampaignPlan
    options: RunOptions
    pool: Pool
    pending: dict[str, Node]
    """Runs that are neither finished nor failed."""
    outcome: Outcome
    file: str
    on_event: OnEvent | None
    in_flight: dict[str, int] = field(default_factory=dict)
    """Attempts by keys of submitted runs."""

    def run(self) -> None:
        self._submit_ready()
        while self.in_flight:
            for result in self.pool.wait(1.0):
                self._take(result)
                write_index(self.plan, self.file)
            self._submit_ready()
        self.outcome.blocked = list(self.pending.values())

    def _submit_ready(self) -> None:
        not_there = {*self.pending, *(node.key for node, _ in self.outcome.failed)}
        for node in list(self.pending.values()):
            # At most one per worker, so that a run never waits behind a long one on a busy worker.
            if len(self.in_flight) >= self.pool.n_workers:
                return
            if node.key not in self.in_flight and not not_there.intersection(node.inputs):
                self._submit(node, attempt=1)

    def _submit(self, node: Node, *, attempt: int) -> None:
        inputs = [self.plan.nodes[key] for key in node.inputs]
        given = [one.product for one in self.plan.given.values() if one.path in node.command]
        needs = (*(one.output / one.product for one in inputs), *filter(None, given))
        self.in_flight[node.key] = attempt
        self.pool.submit(Task(node, needs, self.options.program, self._threads(node), attempt))

    def _threads(self, node: Node) -> dict[str, str]:
        """Divide the cores among runs of this kind.

        The number of runs of the kind in the plan is used, not that of remaining ones: threads may
        change the last digits of a result, and an interrupted campaign must have equal results.
        """
        if self.pool.n_cores is None:
            return {}
        n_at_once = min(self.pool.n_workers, len(self.plan.of_kind(node.kind)))
        n_threads = max(1, self.pool.n_cores // n_at_once)
        return dict.fromkeys(_THREADS, str(n_threads))

    def _take(self, result: Result) -> None:
        attempt, node = self.in_flight.pop(result.key), self.pending[result.key]
        if result.is_done and not _is_seen(node):
            reason = f"finished, but {node.output} is not visible here; all workers must share it"
            result = Result(node.key, is_done=False, reason=reason, is_final=True)
        if not result.is_done and not result.is_final and attempt <= self.options.n_retries:
            self._emit("retry", node, result)
            self._submit(node, attempt=attempt + 1)
            return
        del self.pending[node.key]
        if result.is_done:
            self.outcome.n_done += 1
        else:
            self.outcome.failed.append((node, result.reason))
        self._emit("done" if result.is_done else "failed", node, result)

    def _emit(self, what: Literal["done", "retry", "failed"], node: Node, result: Result) -> None:
        if self.on_event is not None:
            n_done = self.outcome.n_cached + self.outcome.n_done
            self.on_event(
                Event(what, node, result.seconds, result.reason, n_done, self.outcome.n_runs)
            )


def _is_seen(node: Node) -> bool:
    """Return whether the end of a run is visible here, despite delays of network file systems."""
    deadline = time.monotonic() + _SEEN_WITHIN_S
    while not is_done(node.folder, node.output / node.product):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
