"""Running a plan: what is not done yet, each run after what it needs, the rest going on."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final

from kscout.campaign.nodes import Node
from kscout.campaign.plan import Plan
from kscout.campaign.state import is_done, locked, node_state, write_index
from kscout.campaign.task import Result, Task
from kscout.campaign.workers import Pool, WorkerOptions, open_pool
from kscout.errors import RunError

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SEEN_WITHIN_S = 10.0


@final
@dataclass(frozen=True)
class Event:
    """Something to tell about a run."""

    what: Literal["done", "retry", "failed"]
    node: Node
    seconds: float = 0.0
    reason: str = ""
    n_done: int = 0
    n_runs: int = 0


OnEvent = Callable[[Event], None]


@final
@dataclass(frozen=True)
class RunOptions:
    """How a campaign is run."""

    workers: WorkerOptions = field(default_factory=WorkerOptions)
    n_retries: int = 1
    """Further attempts at a run that fails."""
    program: tuple[str, ...] = ()
    """What is run instead of kscout, for tests."""


@final
@dataclass
class Outcome:
    """How a campaign ended."""

    n_runs: int
    n_cached: int
    """Runs that were done before."""
    n_done: int = 0
    """Runs that were done now."""
    failed: list[tuple[Node, str]] = field(default_factory=list)
    blocked: list[Node] = field(default_factory=list)
    """Runs that need a failed one."""


def run_campaign(
    plan: Plan, options: RunOptions, *, file: str = "", on_event: OnEvent | None = None
) -> Outcome:
    """Do all runs of a plan that are not done; a failed one stops only what needs it.

    Args:
        plan: the graph of runs.
        options: workers and retries.
        file: the campaign's file, for the index.
        on_event: called when a run is done, failed or about to be tried again.
    """
    if any(node_state(node) != "done" for node in plan.nodes.values()):
        plan.check_sources()
    try:
        plan.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make {plan.root}: {error.strerror}; name another --out") from error
    with locked(plan.root, wait=False):
        write_index(plan, file)
        pending = {key: node for key, node in plan.nodes.items() if node_state(node) != "done"}
        outcome = Outcome(len(plan.nodes), len(plan.nodes) - len(pending))
        if pending:
            logs = plan.root / "slurm"
            with open_pool(options.workers, n_tasks=len(pending), logs=logs) as pool:
                _Driver(plan, options, pool, pending, outcome, file, on_event).run()
            write_index(plan, file)
    return outcome


@final
@dataclass
class _Driver:
    plan: Plan
    options: RunOptions
    pool: Pool
    pending: dict[str, Node]
    """Runs that are neither done nor given up."""
    outcome: Outcome
    file: str
    on_event: OnEvent | None
    in_flight: dict[str, int] = field(default_factory=dict)
    """Attempts by key of what workers have."""

    def run(self) -> None:
        self._submit_ready()
        while self.in_flight:
            for result in self.pool.wait(1.0):
                self._take(result)
                write_index(self.plan, self.file)
            self._submit_ready()
        self.outcome.blocked = list(self.pending.values())

    def _submit_ready(self) -> None:
        given_up = {node.key for node, _ in self.outcome.failed}
        # No more than there are workers: a run never waits behind a long one on a busy worker.
        n_free = self.pool.n_workers - len(self.in_flight)
        for key, node in self.pending.items():
            waits_for = [one for one in node.inputs if one in self.pending or one in given_up]
            if n_free > 0 and key not in self.in_flight and not waits_for:
                self._submit(node, attempt=1)
                n_free -= 1

    def _submit(self, node: Node, *, attempt: int) -> None:
        self.in_flight[node.key] = attempt
        program, environment = self.options.program, self._environment(node)
        self.pool.submit(Task(node, self._needs(node), program, environment, attempt))

    def _needs(self, node: Node) -> tuple[Path, ...]:
        """Return files that show that the inputs are there, given ones included."""
        inputs = [self.plan.nodes[key] for key in node.inputs]
        given = [one.product for one in self.plan.given.values() if one.path in node.command]
        return (
            *(one.output / one.product for one in inputs),
            *(product for product in given if product is not None),
        )

    def _environment(self, node: Node) -> dict[str, str]:
        """Share the cores among runs of this kind.

        How many there are of a kind in the plan decides, not how many are left: threads may change
        the last digits of a result, and a campaign that goes on must equal one that never stopped.
        """
        if self.pool.n_cores is None:
            return {}
        n_at_once = min(self.pool.n_workers, len(self.plan.of_kind(node.kind)))
        n_threads = max(1, self.pool.n_cores // n_at_once)
        return dict.fromkeys(_THREADS, str(n_threads))

    def _take(self, result: Result) -> None:
        node = self.pending[result.key]
        attempt = self.in_flight.pop(result.key)
        reason = result.reason
        if result.is_done:
            if _is_seen(node):
                del self.pending[node.key]
                self.outcome.n_done += 1
                self._tell("done", node, seconds=result.seconds)
                return
            reason = f"done, but {node.output} is not seen here; workers must share this folder"
        elif attempt <= self.options.n_retries and not result.is_final:
            self._tell("retry", node, reason=reason)
            self._submit(node, attempt=attempt + 1)
            return
        del self.pending[node.key]
        self.outcome.failed.append((node, reason))
        self._tell("failed", node, reason=reason)

    def _tell(
        self,
        what: Literal["done", "retry", "failed"],
        node: Node,
        *,
        seconds: float = 0.0,
        reason: str = "",
    ) -> None:
        if self.on_event is not None:
            n_done = self.outcome.n_cached + self.outcome.n_done
            event = Event(what, node, seconds, reason, n_done, self.outcome.n_runs)
            self.on_event(event)


def _is_seen(node: Node) -> bool:
    """Say whether a run's end shows here; a network's file system may take a moment."""
    deadline = time.monotonic() + _SEEN_WITHIN_S
    while not is_done(node.folder, node.output / node.product):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
