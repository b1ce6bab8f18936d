"""`kscout campaign`: many runs from one file, and their status."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kscout.apps.cli.console import Commands
from kscout.apps.cli.options import AsJson, from_fields
from kscout.config.bounds import AtLeast, Form
from kscout.errors import ConfigError

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="""Run many trainings and evaluations from one file.

    Example: kscout campaign run configs/campaign-small.toml""",
)


@dataclass(frozen=True, kw_only=True)
class _FileOptions:
    file: Annotated[Path, Form("FILE", is_argument=True)]
    """TOML file of the campaign."""
    out: Path | None = None
    """Folder of the campaign. [default: campaigns/NAME-OF-FILE]"""
    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class _CampaignOptions(_FileOptions):
    workers: Annotated[int | None, AtLeast(0)] = None
    """Parallel runs; 0: sequential, without dask. [default: GPUs or cores]"""
    device: str = "auto"
    """auto, cpu or cuda, for every run."""
    scheduler: Annotated[str | None, Form(envvar="DASK_SCHEDULER_ADDRESS")] = None
    """Address of a dask scheduler."""
    slurm: Annotated[tuple[str, ...], Form("KEY=VALUE")] = ()
    """Workers are SLURM jobs: partition, account, walltime, memory, cores, gpus, interface, or any
    long option of sbatch; repeatable."""
    retries: int = 1
    """Further attempts for a failed run."""
    report: Annotated[bool, Form(flags="--report/--no-report")] = True
    """Write report.html to the folder after the last run."""


@dataclass(frozen=True, kw_only=True)
class _StatusOptions(_FileOptions):
    watch: bool = False
    """Refresh every two seconds."""


@app.command()
@from_fields
def run(options: _CampaignOptions) -> None:
    """Run all unfinished runs of a campaign; an interrupted campaign resumes.

    Example: kscout campaign run configs/campaign-small.toml --workers 2
    """
    from kscout.apps.campaign.execute import RunOptions, run_campaign
    from kscout.apps.campaign.workers import WorkerOptions
    from kscout.apps.cli.campaign_display import events_shown, plan_of, print_outcome, write_page

    plan = plan_of(options.file, options.out, options.device)
    where = WorkerOptions(options.workers, options.device, options.scheduler, _pairs(options.slurm))
    with events_shown(plan) as on_event:
        limits = RunOptions(where, options.retries)
        outcome = run_campaign(plan, limits, file=str(options.file), on_event=on_event)
    page = write_page(plan, outcome) if options.report else None
    print_outcome(plan, outcome, page, options.as_json)
    raise typer.Exit(1 if outcome.failed else 0)


@app.command()
@from_fields
def status(options: _StatusOptions) -> None:
    """Count the runs of a campaign by kind and state, and print the time left.

    Example: kscout campaign status configs/campaign-small.toml --watch
    """
    from kscout.apps.campaign.state import changed_inputs, read_status
    from kscout.apps.cli.campaign_display import plan_of, show_status

    plan = plan_of(options.file, options.out, "auto")
    if options.as_json:
        typer.echo(json.dumps({**read_status(plan).to_json(), "changed": changed_inputs(plan)}))
    else:
        show_status(plan, keeps_looking=options.watch)


def _pairs(options: tuple[str, ...]) -> dict[str, str] | None:
    if not options:
        return None
    pairs = {}
    for option in options:
        key, equals, value = option.lstrip("-").partition("=")
        if not equals:
            raise ConfigError(f"--slurm {option} has no value; write --slurm partition=NAME")
        pairs[key] = value
    return pairs
