"""`kscout campaign`: many runs from one file, and their status."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kscout.cli.console import Commands
from kscout.cli.options import AsJson
from kscout.errors import ConfigError

app = typer.Typer(cls=Commands, no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="TOML file of the campaign.")]
Out = Annotated[
    Path | None, typer.Option(help="Folder of the campaign. [default: campaigns/NAME-OF-FILE]")
]


@app.command()
def run(
    file: File,
    out: Out = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0, help="Parallel runs; 0: sequential, without dask. [default: GPUs or cores]"
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, for every run.")] = "auto",
    scheduler: Annotated[
        str | None,
        typer.Option(help="Address of a dask scheduler.", envvar="DASK_SCHEDULER_ADDRESS"),
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Workers are SLURM jobs: partition, account, walltime, memory, cores, gpus, "
            "interface, or any long option of sbatch; repeatable.",
        ),
    ] = None,
    retries: Annotated[int, typer.Option(help="Further attempts for a failed run.")] = 1,
    report: Annotated[
        bool, typer.Option(help="Write report.html to the folder after the last run.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Run all unfinished runs of a campaign; an interrupted campaign resumes.

    Example: kscout campaign run configs/campaign-small.toml --workers 2
    """
    from kscout.campaign.execute import RunOptions, run_campaign
    from kscout.campaign.workers import WorkerOptions
    from kscout.cli.campaign_display import events_shown, plan_of, print_outcome, write_page

    plan = plan_of(file, out, device)
    where = WorkerOptions(workers, device, scheduler, _pairs(slurm))
    with events_shown(plan) as on_event:
        options = RunOptions(where, retries)
        outcome = run_campaign(plan, options, file=str(file), on_event=on_event)
    page = write_page(plan, outcome) if report else None
    print_outcome(plan, outcome, page, as_json)
    raise typer.Exit(1 if outcome.failed else 0)


@app.command()
def status(
    file: File,
    out: Out = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Count the runs of a campaign by kind and state, and print the time left.

    Example: kscout campaign status configs/campaign-small.toml --watch
    """
    from kscout.campaign.changes import changed_inputs
    from kscout.campaign.state import read_status
    from kscout.cli.campaign_display import plan_of, show_status

    plan = plan_of(file, out, "auto")
    if as_json:
        typer.echo(json.dumps({**read_status(plan).to_json(), "changed": changed_inputs(plan)}))
    else:
        show_status(plan, keeps_looking=watch)


def _pairs(options: list[str] | None) -> dict[str, str] | None:
    if options is None:
        return None
    pairs = {}
    for option in options:
        key, equals, value = option.lstrip("-").partition("=")
        if not equals:
            raise ConfigError(f"--slurm {option} has no value; write --slurm partition=NAME")
        pairs[key] = value
    return pairs
