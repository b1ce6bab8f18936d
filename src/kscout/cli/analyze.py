"""`kscout analyze`: the paper's analyses. Each writes CSV, JSON and a figure to a folder."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from kscout.cli.analysis_options import (
    AsJson,
    BatchSize,
    Data,
    Device,
    Formula,
    Limit,
    NInitial,
    Out,
    Policies,
    Protocol,
    Reconstructor,
    Results,
    Runs,
    Seeds,
    Split,
    Steps,
    claim,
    refuse_without_effect,
    subject_setting,
    tell,
)
from kscout.cli.evaluate import Overwrite, evaluation_progress

app = typer.Typer(no_args_is_help=True)

TOLD, N_TOLD = 0.02, 10
"""Columns overlooked in fewer states, or after so many, are in the table's files alone."""


@app.command()
def policy(
    policies: Policies,
    out: Out,
    data: Annotated[Path | None, typer.Option(help="Store of slices.")] = None,
    reconstructor: Annotated[str | None, typer.Option(help="As for `evaluate`.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Take columns from this evaluation; runs nothing.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train, val or test; test where not given.")
    ] = None,
    n_initial: NInitial = None,
    steps: Steps = None,
    seed: Seeds = None,
    limit: Limit = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Slices at once; 16 where not given.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto (where not given), cpu or cuda.")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Average policies: the share of slices that have sampled a column by each step.

    With --results the policies are names in that evaluation, and of several seeds the best is
    drawn. Otherwise each policy runs once over the split, and mean probabilities are written too.

    Example: kscout analyze policy greedy ngreedy --results results/knee --out analyses
    """
    from kscout.cli.analysis_figures import save_average_policies
    from kscout.evaluation.average_policy import (
        average_policy_rows,
        averages_of_results,
        averages_of_runs,
    )
    from kscout.evaluation.tables import write_table

    options = {
        "split": split,
        "n_initial": n_initial,
        "limit": limit,
        "batch_size": batch_size,
        "device": device,
    }
    if results is not None:
        refuse_without_effect(seed, data=data, reconstructor=reconstructor, steps=steps, **options)
        request = claim(
            "average_policy", out, overwrite, policies=policies, results=results, seed=seed
        )
        found = averages_of_results(results, policies, seed=seed[0] if seed else None)
    else:
        setting = subject_setting(
            data, reconstructor, horizon=steps, seeds=seed, n_trajectories=1, **options
        )
        request = claim("average_policy", out, overwrite, policies=policies, setting=setting)
        found = averages_of_runs(policies, setting)
    rows = average_policy_rows(found)
    write_table(out, "average_policy", rows, request)
    save_average_policies(out, found)
    tell(rows, out, "average_policy", as_json, head=0)


@app.command()
def entropy(
    policies: Policies,
    data: Data,
    reconstructor: Reconstructor,
    out: Out,
    split: Split = "test",
    n_initial: NInitial = None,
    steps: Steps = None,
    trajectories: Annotated[int, typer.Option(help="Per slice (paper: 8).")] = 8,
    seed: Seeds = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Marginal and conditional entropy and mutual information per step, in nats.

    Example: kscout analyze entropy runs/greedy-seed0 runs/greedy-seed1 --data stores/knee
    --reconstructor runs/unet --out analyses
    """
    from kscout.cli.analysis_figures import save_entropies
    from kscout.evaluation.adaptivity import entropies_by_policy, entropy_rows
    from kscout.evaluation.subjects import open_subjects
    from kscout.evaluation.tables import write_table

    setting = subject_setting(
        data,
        reconstructor,
        split=split,
        n_initial=n_initial,
        horizon=steps,
        seeds=seed,
        n_trajectories=trajectories,
        limit=limit,
        batch_size=batch_size,
        device=device,
    )
    request = claim("entropies", out, overwrite, policies=policies, setting=setting)
    subjects = open_subjects(policies, setting)
    with evaluation_progress() as on_step:
        found = entropies_by_policy(
            subjects.entrants, subjects.slices, subjects.reconstructor, subjects.plan, on_step
        )
    rows = entropy_rows(found)
    write_table(out, "entropies", rows, request)
    save_entropies(out, rows)
    tell(rows, out, "entropies", as_json)


@app.command()
def overlooked(
    policies: Policies,
    data: Data,
    reconstructor: Reconstructor,
    out: Out,
    split: Split = "test",
    n_initial: NInitial = None,
    steps: Steps = None,
    seed: Seeds = None,
    rare: Annotated[
        float, typer.Option(help="A column with less than this probability is overlooked.")
    ] = 1e-4,
    limit: Limit = 64,
    batch_size: BatchSize = 16,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Columns that would help most and that a policy hardly ever draws.

    A training that only tries what its policy draws cannot learn their worth: validation stands
    still until one is drawn by chance. Every column is tried at every step, as by the oracle.

    The table has a row for all columns together (any) of every policy,
    then the columns overlooked most. A state is a slice at a step.
    best: share of states in which no column would raise SSIM more.
    overlooked: share in which, moreover, it is hardly ever drawn (--rare).
    gain: what it would add to SSIM, mean over overlooked states.
    forgone: by how much that exceeds what the policy can expect of its draw.

    Example: kscout analyze overlooked runs/greedy/epoch-0001.safetensors runs/greedy --data
    stores/knee --reconstructor runs/unet --out analyses
    """
    from kscout.evaluation.overlooked import overlooked_by_policy, overlooked_rows
    from kscout.evaluation.subjects import open_subjects
    from kscout.evaluation.tables import write_table

    setting = subject_setting(
        data,
        reconstructor,
        split=split,
        n_initial=n_initial,
        horizon=steps,
        seeds=seed,
        n_trajectories=1,
        limit=limit,
        batch_size=batch_size,
        device=device,
    )
    request = claim("overlooked", out, overwrite, policies=policies, setting=setting, rare=rare)
    subjects = open_subjects(policies, setting)
    with evaluation_progress() as on_step:
        found = overlooked_by_policy(subjects, rare=rare, on_step=on_step)
    rows = overlooked_rows(found)
    write_table(out, "overlooked", rows, request)
    n_columns = sum(row["overlooked"] > TOLD for row in rows[len(found) :])
    tell(rows, out, "overlooked", as_json, head=len(found) + min(n_columns, N_TOLD))


@app.command()
def snr(
    runs: Runs,
    data: Data,
    reconstructor: Reconstructor,
    out: Out,
    split: Annotated[str, typer.Option(help="The paper uses training data.")] = "train",
    epoch: Annotated[
        list[int] | None, typer.Option(help="Checkpoints. [default: all that are kept]")
    ] = None,
    trajectories: Annotated[int, typer.Option(help="q (paper: 16).")] = 16,
    batch_size: Annotated[int, typer.Option(help="Slices per gradient (paper: 16).")] = 16,
    passes: Annotated[int, typer.Option(help="Passes over the data (paper: 3).")] = 3,
    seed: Annotated[int, typer.Option(help="Of order and draws.")] = 0,
    protocol: Protocol = "paper",
    formula: Annotated[
        Formula, typer.Option(help="The one that is drawn; both are written.")
    ] = "paper",
    limit: Limit = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Signal-to-noise ratio of gradients at kept epochs; stop it, run it again, it goes on.

    Example: kscout analyze snr runs/greedy-seed0 runs/ngreedy-seed0 --data stores/knee
    --reconstructor runs/unet --out analyses
    """
    from kscout.cli.analysis_figures import save_snr
    from kscout.evaluation.policy_noise import NoiseSetting, NoiseSource, measure_runs
    from kscout.evaluation.tables import write_table

    source = NoiseSource(data, reconstructor, split, limit, device)
    setting = NoiseSetting(trajectories, batch_size, passes, seed, protocol)
    request = claim("snr", out, overwrite, runs=runs, epochs=epoch, source=source, setting=setting)
    rows = measure_runs(runs, source, setting, out=out, epochs=epoch, on_step=_tell_pass)
    write_table(out, "snr", rows, request)
    save_snr(out, rows, formula)
    tell(rows, out, "snr", as_json)


@app.command()
def cost(runs: Runs, out: Out, overwrite: Overwrite = False, as_json: AsJson = False) -> None:
    """What training cost: time, peak memory, reconstructions per second.

    Example: kscout analyze cost runs/greedy-seed0 runs/ngreedy-seed0 --out analyses
    """
    from kscout.evaluation.cost import cost_table
    from kscout.evaluation.tables import write_table

    request = claim("cost", out, overwrite, runs=runs)
    rows = cost_table(runs)
    write_table(out, "cost", rows, request)
    tell(rows, out, "cost", as_json)


@app.command()
def curves(runs: Runs, out: Out, overwrite: Overwrite = False, as_json: AsJson = False) -> None:
    """Learning curves: training and validation SSIM per epoch, over seeds.

    Example: kscout analyze curves runs/greedy-seed* runs/ngreedy-seed* --out analyses
    """
    from kscout.cli.analysis_figures import save_learning_curves
    from kscout.evaluation.curves import curve_rows, learning_curves
    from kscout.evaluation.tables import write_table

    request = claim("curves", out, overwrite, runs=runs)
    found = learning_curves(runs)
    rows = curve_rows(found)
    write_table(out, "curves", rows, request)
    save_learning_curves(out, found)
    tell(rows, out, "curves", as_json, head=0)


@app.command()
def gammas(
    results: Results, out: Out, overwrite: Overwrite = False, as_json: AsJson = False
) -> None:
    """Final scores by gamma, with the greedy estimator beside.

    Example: kscout analyze gammas results/knee-base --out analyses
    """
    from kscout.cli.analysis_figures import save_gammas
    from kscout.evaluation.ranking import gamma_table, read_summary
    from kscout.evaluation.tables import write_table

    request = claim("gammas", out, overwrite, results=results)
    rows = gamma_table([read_summary(path) for path in results])
    write_table(out, "gammas", rows, request)
    save_gammas(out, rows)
    tell(rows, out, "gammas", as_json)


@app.command()
def examples(
    policies: Policies,
    data: Data,
    reconstructor: Reconstructor,
    out: Out,
    slice_: Annotated[
        list[str] | None, typer.Option("--slice", help="Position or VOLUME:NUMBER; repeatable.")
    ] = None,
    split: Split = "test",
    n_initial: NInitial = None,
    steps: Steps = None,
    seed: Seeds = None,
    protocol: Protocol = "paper",
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Mask, reconstruction, target and absolute difference of chosen slices.

    Example: kscout analyze examples random runs/greedy-seed0 --slice 3 --data stores/knee
    --reconstructor runs/unet --out analyses
    """
    from kscout.cli.analysis_figures import save_example_pictures
    from kscout.evaluation.examples import (
        choose_slices,
        example_rows,
        reconstruction_examples,
        save_examples,
    )
    from kscout.evaluation.subjects import open_subjects
    from kscout.evaluation.tables import write_table

    setting = subject_setting(
        data,
        reconstructor,
        split=split,
        n_initial=n_initial,
        horizon=steps,
        seeds=seed,
        protocol=protocol,
        device=device,
    )
    request = claim("examples", out, overwrite, policies=policies, slices=slice_, setting=setting)
    subjects = open_subjects(policies, setting)
    chosen = choose_slices(subjects.slices, slice_ or ["0"])
    found = reconstruction_examples(
        subjects.entrants, chosen, subjects.reconstructor, subjects.plan
    )
    save_examples(out / "examples.npz", found)
    rows = example_rows(found)
    write_table(out, "examples", rows, request)
    save_example_pictures(out, found)
    tell(rows, out, "examples", as_json)


@app.command()
def ranking(
    results: Results, out: Out, overwrite: Overwrite = False, as_json: AsJson = False
) -> None:
    """How SSIM and PSNR order the policies of evaluations, and where they disagree.

    Example: kscout analyze ranking results/knee-base results/knee-long --out analyses
    """
    from kscout.cli.analysis_figures import save_rankings
    from kscout.evaluation.ranking import rank_policies, read_summary
    from kscout.evaluation.requests import keep_request
    from kscout.evaluation.tables import write_csv
    from kscout.files import write_json
    from kscout.report.folders import folder_labels

    request = claim("ranking", out, overwrite, results=results)
    labels = folder_labels([path.resolve() for path in results])
    found = {label: rank_policies(read_summary(path)) for path, label in labels.items()}
    rows = [{"results": name, **row} for name, one in found.items() for row in one["rows"]]
    write_csv(out / "ranking.csv", rows)
    write_json(out / "ranking.json", found)
    save_rankings(out, found)
    keep_request(out, "ranking", request)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        tell(rows, out, "ranking", as_json=False)


def _tell_pass(record: dict[str, Any]) -> None:
    if record["batch"] == 0:
        Console(stderr=True).print(
            f"{record['run']}: epoch {record['epoch']}, pass {record['pass'] + 1}", highlight=False
        )
