"""Output of `kscout campaign`: a table on a terminal, lines elsewhere, and the outcome."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kscout.apps.campaign.execute import Event, Outcome
from kscout.apps.campaign.grid import read_grid
from kscout.apps.campaign.plan import CampaignPlan, make_plan
from kscout.apps.campaign.state import (
    STATES,
    Failure,
    Status,
    UnderWay,
    changed_inputs,
    read_status,
)
from kscout.apps.cli.console import console, print_result
from kscout.config import to_table
from kscout.errors import KScoutError


def plan_of(file: Path, out: Path | None, device: str) -> CampaignPlan:
    """Return the runs of a campaign file, in its folder."""
    return make_plan(read_grid(file), out or Path("campaigns") / file.stem, device=device)


def show_status(plan: CampaignPlan, *, keeps_looking: bool) -> None:
    """Print the status of a campaign, or show it until all runs are finished."""
    now = read_status(plan)
    if not keeps_looking:
        console().print(status_table(now))
        print_changes(plan)
        return
    with Live(status_table(now), console=console(), auto_refresh=False) as live:
        while now.total("done") < now.n_runs:
            time.sleep(2)
            now = read_status(plan)
            live.update(status_table(now), refresh=True)


def status_table(now: Status) -> RenderableType:
    """Return counts by kind and state, active runs, and failed runs with their logs."""
    left = "unknown" if now.time_left_s is None else timedelta(seconds=round(now.time_left_s))
    title = f"{now.name} in {now.root}: {now.total('done')} of {now.n_runs} done"
    table = Table()
    table.add_column("kind")
    for state in STATES:
        table.add_column(state, justify="right")
    for kind, counts in now.counts.items():
        table.add_row(kind, *(str(count) for count in counts.values()))
    lines = [f"running {one.kind} {one.name}{_epochs(one)}" for one in now.running]
    lines += [f"failed {one.kind} {one.name}: {one.reason} (log {one.log})" for one in now.failed]
    lines += [f"missing {path}" for path in now.missing]
    return Group(Text(f"{title}, time left {left}"), table, *map(Text, lines))


def print_changes(plan: CampaignPlan) -> None:
    """Print a warning for inputs that have changed since the runs."""
    if (note := changed_inputs(plan)) is not None:
        console(stderr=True).print(note, soft_wrap=True)


def _epochs(run: UnderWay) -> str:
    if run.epoch is None or run.n_epochs is None:
        return f", {run.seconds} s"
    return f", epoch {run.epoch} of {run.n_epochs}, {run.seconds} s"


@contextmanager
def events_shown(plan: CampaignPlan) -> Iterator[Callable[[Event], None]]:
    """Yield a callback that updates a table on a terminal, and prints a line per run elsewhere."""
    output = console(stderr=True)
    if not output.is_terminal:
        yield lambda event: output.print(_line(event), soft_wrap=True)
        return
    # The table reads the disk, so that it also changes during a run.
    shown = Live(
        get_renderable=lambda: status_table(read_status(plan)),
        console=output,
        refresh_per_second=0.5,
        transient=True,
    )
    with shown as live:
        yield lambda event: live.console.print(_line(event), soft_wrap=True)


def _line(event: Event) -> str:
    head = f"{event.n_done}/{event.n_runs} {event.node.kind} {event.node.title}"
    if event.what == "done":
        return f"{head}: done in {event.seconds:.1f} s"
    outcome = "failed, retrying" if event.what == "retry" else "failed"
    return f"{head}: {outcome}: {event.reason} (log {event.node.log})"


def write_page(plan: CampaignPlan, outcome: Outcome) -> Path | None:
    """Write the report if every run is finished and the page is outdated."""
    page = plan.root / "report.html"
    is_complete = not outcome.failed and not outcome.blocked
    if not is_complete or not plan.of_kind("evaluation"):
        return None
    if outcome.n_done == 0 and page.is_file():
        return page
    from kscout.apps.report.build import build_report, write_report

    try:
        return write_report(build_report([plan.root], title=plan.name), page, form="html")[0]
    except KScoutError as error:
        text = f"all runs are finished, but the page failed: {error}"
        console(stderr=True).print(text, soft_wrap=True)
        return None


def print_outcome(plan: CampaignPlan, outcome: Outcome, page: Path | None, as_json: bool) -> None:
    """Print the outcome of a campaign, optionally as JSON."""
    print_changes(plan)
    failed = [
        Failure(node.kind, node.title, reason, str(node.log)) for node, reason in outcome.failed
    ]
    record = {
        "campaign": plan.name,
        "folder": str(plan.root),
        "runs": outcome.n_runs,
        "cached": outcome.n_cached,
        "done": outcome.n_done,
        "failed": [to_table(one) for one in failed],
        "blocked": [node.title for node in outcome.blocked],
        "report": None if page is None else str(page),
    }
    lines = [
        f"{plan.name}: {outcome.n_runs} runs, {outcome.n_cached} finished before, "
        f"{outcome.n_done} finished now, {len(failed)} failed, {len(outcome.blocked)} blocked",
        *(f"failed {one.kind} {one.name}: {one.reason}; log {one.log}" for one in failed),
    ]
    if page is not None:
        lines.append(f"report: {page}")
    elif failed and outcome.n_cached + outcome.n_done:
        lines.append(f"report of finished runs: kscout report {plan.root}")
    print_result(record, *lines, as_json=as_json)
