"""The bundled weights for protocol `blind`, and the table that compares them.

    python lab/blind.py data --train heads/*.nii.gz
    python lab/blind.py networks --jobs 4
    python lab/blind.py orders --jobs 4
    python lab/blind.py columns --jobs 4
    python lab/blind.py continued --jobs 4
    python lab/blind.py posteriors --jobs 2
    python lab/blind.py ensembles --jobs 4
    python lab/blind.py evaluations --people heads-people --jobs 3
    python lab/blind.py record

Each stage runs the commands of its name, several at a time, and skips what is finished. Network
`general` is trained on random masks, network `cotrained` on the masks of a fixed order that is
fitted while it learns, one per start. Both learn from the same slices in equal numbers of updates
of 64 slices, half of which are mirrored, and are rounded before policies are trained on them. The
`column` policies of other starts and networks continue from the one on network `general` from 16
columns, except those on networks `cotrained` from 4 columns: continued, these stayed .006 (knees)
below the order of the network. A network or policy whose rounded weights `NAME.safetensors.xz` are
in the folder of the runs is used from there. One posterior sampler per anatomy serves all
ensembles; members are rounded first. `--train` names six heads, one more for validation and one for
a test split that is not used;
`--people` is the dataset of `people.py`, whose people are in no training set.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from blind_rows import is_evaluated, rows_against, rows_of
from blind_tasks import ACQUISITIONS, EVALUATIONS, N_TRAINED, Task, tasks
from commands import parser
from results import record
from ship import round_network, ship_order

N_UPDATES = {"knee": 9156, "heads": 6100}
BATCH = 64
N_BITS = 7
N_POLICY_BITS = 4
N_EPOCHS = {"knee": 1, "heads": 4}
"""Passes over the training slices of a `column` policy that begins with random weights."""
N_POSTERIOR_EPOCHS = {"knee": 16, "heads": 60}
BASELINES = ("random", "equispaced-two", "knee-base-greedy")
ORACLES = ("na-oracle", "oracle")
Wanted = Callable[[str], bool]
"""Whether the command of a name is needed."""


def named_tasks(part: str, wanted: Wanted) -> dict[str, Task]:
    """Return the tasks whose run of a part is needed, by its name."""
    return {task.name(part): task for task in tasks() if wanted(task.name(part))}


def words(*command: object) -> list[str]:
    """Return the words of a command."""
    return [str(word) for word in command]


def data_commands(work: Path, heads: Sequence[Path]) -> dict[str, list[str]]:
    """Return the commands that make the datasets."""
    sources = [word for head in heads for word in ("--source", head)]
    sizes = {
        "knee": ("knee", "--volumes", "1547,99,1", "--slices", 18),
        "paper": ("knee", "--paper"),
        "heads": ("heads", *sources, "--volumes", "400,16,1", "--slices", 16, "--size", 128),
    }
    return {
        f"data-{kind}": words("data", "make", *how, "--out", work / "data" / kind)
        for kind, how in sizes.items()
    }


def network_commands(work: Path) -> dict[str, list[str]]:
    """Return the commands of all networks."""
    found = {}
    for task in tasks():
        n_steps = -(-N_TRAINED[task.kind] // BATCH)
        n_epochs = N_UPDATES[task.kind] // n_steps
        common = ("--data", work / "data" / task.kind, "--protocol", "blind", "--seed", task.seed)
        common += ("--batch-size", BATCH, "--out", work / task.network_name)
        if task.network == "general":
            command = words("train", "reconstructor", *common, "--epochs", n_epochs)
        else:
            how = ("--method", "fixed", "--model", "unet", "--updates", n_epochs * n_steps)
            start = ("--n-initial", task.n_initial, "--steps", task.steps)
            how += (*start, "--set", "training.compile=true")
            command = words("train", "joint", *common, *how)
        found[task.network_name] = command
    return found


def rounded(work: Path, name: str, n_bits: int) -> Path:
    """Return the rounded weights of a run, which are written where they are missing."""
    file = work / f"{name}.safetensors.xz"
    if not file.exists():
        round_network(work / name / "weights.safetensors", file, n_bits)
    return file


def network(work: Path, task: Task) -> Path:
    """Return the rounded network of a task."""
    return rounded(work, task.network_name, N_BITS)


def on_network(work: Path, task: Task, preset: str) -> tuple[object, ...]:
    """Return the options of a policy training on the network of a task."""
    where = ("--data", work / "data" / task.kind, "--reconstructor", network(work, task))
    return (*where, "--preset", preset, "--protocol", "blind", "--seed", task.seed)


def source_of(task: Task) -> Task | None:
    """Return the task whose `column` policy another one continues from, if any."""
    if (task.network, task.n_initial) in (("general", 16), ("cotrained", 4)):
        return None
    return replace(task, network="general", n_initial=16)


def column_commands(work: Path, stage: str, wanted: Wanted) -> dict[str, list[str]]:
    """Return the commands of the `column` policies of one stage.

    Args:
        work: folder of all runs.
        stage: `columns` for those that begin with random weights, else `continued`.
        wanted: which are needed.
    """
    found = {}
    for name, task in named_tasks("column", wanted).items():
        source = source_of(task)
        if stage != ("columns" if source is None else "continued"):
            continue
        how = (*on_network(work, task, ACQUISITIONS[task.n_initial][0]), "--method", "dense")
        n_epochs = N_EPOCHS[task.kind]
        if source is not None:
            how += ("--start", rounded(work, source.name("column"), N_POLICY_BITS))
            n_epochs = max(1, n_epochs // 2)
        train = words("train", "policy", *how, "--compile", "--epochs", n_epochs)
        found[name] = [*train, *words("--out", work / name)]
    return found


def posterior_commands(work: Path) -> dict[str, list[str]]:
    """Return the commands of the posterior samplers."""
    found = {}
    for kind, n_epochs in N_POSTERIOR_EPOCHS.items():
        task = Task(kind, "general", 16, 0)
        how = (*on_network(work, task, "knee-base"), "--method", "posterior", "--compile")
        follows = rounded(work, task.name("column"), N_POLICY_BITS)
        how += ("--epochs", n_epochs, "--set", f"training.follows={follows}")
        name = f"{kind}-posterior"
        found[name] = words("train", "policy", *how, "--out", work / name)
    return found


def order_commands(work: Path, wanted: Wanted) -> dict[str, list[str]]:
    """Return the commands that fit fixed orders on training slices."""
    return {
        name: words(
            *("evaluate", "--data", work / "data" / task.kind, "--split", "val", "--limit", 3),
            *("--reconstructor", network(work, task), "--policy", "fixed"),
            *("--n-initial", task.n_initial, "--steps", task.steps, "--protocol", "blind"),
            *("--examples", 0, "--out", work / name),
        )
        for name, task in named_tasks("order", wanted).items()
    }


def ensemble_commands(work: Path, wanted: Wanted) -> dict[str, list[str]]:
    """Return the commands of the ensembles."""
    found = {}
    for name, task in named_tasks("ensemble", wanted).items():
        names = (f"{task.kind}-posterior", task.name("column"))
        members = json.dumps([str(rounded(work, name, N_POLICY_BITS)) for name in names])
        how = ("--method", "ensemble", "--set", f"policy.members={members}")
        if task.n_initial == 4:
            how += ("--set", "training.ordered=[0,8,14,20]")
        common = on_network(work, task, ACQUISITIONS[task.n_initial][0])
        found[name] = words("train", "policy", *common, *how, "--out", work / name)
    return found


def evaluation_commands(work: Path, people: Path, wanted: Wanted) -> dict[str, list[str]]:
    """Return the commands that evaluate all policies on test slices."""
    found = {}
    for task in tasks():
        if not any(wanted(task.name(part)) for part in EVALUATIONS):
            continue
        data = work / "data" / "paper" if task.kind == "knee" else people
        common = ("--data", data, "--split", "test", "--reconstructor", network(work, task))
        common += ("--protocol", "blind", "--argmax", "--seed", task.seed, "--examples", 0)
        order = work / f"{task.name('fixed')}.safetensors"
        if not order.exists():
            ship_order(work / task.name("order"), order)
        column = rounded(work, task.name("column"), N_POLICY_BITS)
        ensemble = work / task.name("ensemble")
        policies = [f"fixed={order}", f"column={column}", f"ensemble={ensemble}", *BASELINES]
        budget = ("--n-initial", task.n_initial, "--steps", task.steps)
        parts = {
            "scores": (*budget, *_flags(policies), "--reference", "fixed"),
            "oracles": (*budget, *_flags(ORACLES)),
            "center": (*budget, *_flags(["center-out"])),
            # The last of 128 columns is acquired, so that the final score is of all columns.
            "full": ("--n-initial", 127, "--steps", 1, *_flags(["center-out"])),
        }
        for part, how in parts.items():
            out = work / task.name(part)
            found[task.name(part)] = words("evaluate", *common, *how, "--out", out)
    return found


def _flags(policies: Sequence[str]) -> list[str]:
    return [word for one in policies for word in ("--policy", one)]


def run_all(commands: dict[str, list[str]], work: Path, n_jobs: int) -> None:
    """Run commands, several at a time, with their output in `NAME.log`; report those that fail."""

    def run(name: str) -> int:
        print(shlex.join(["kscout", *commands[name]]), flush=True)
        with (work / f"{name}.log").open("a") as log:
            command = [sys.executable, "-m", "kscout", *commands[name]]
            return subprocess.run(command, stdout=log, stderr=log).returncode

    with ThreadPoolExecutor(n_jobs) as pool:
        codes = dict(zip(commands, pool.map(run, commands), strict=True))
    failed = [name for name, code in codes.items() if code]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; see their logs in {work}")


def main() -> None:
    """Run a stage."""
    options = parser(__doc__)
    policies = ("columns", "continued", "posteriors", "ensembles")
    stages_of_work = ("data", "networks", "orders", *policies, "evaluations")
    options.add_argument("stage", choices=[*stages_of_work, "record"])
    options.add_argument("--train", type=Path, nargs="+", default=[], help="heads, NIfTI files")
    options.add_argument("--people", type=Path, default=Path("heads-people"), help="dataset")
    options.add_argument("--only", nargs="+", help="beginnings of the names of commands")
    options.add_argument("--jobs", type=int, default=1, help="commands at a time")
    asked = options.parse_args()
    work: Path = asked.work
    work.mkdir(parents=True, exist_ok=True)
    if asked.stage == "record":
        for first in tasks():
            finished = [
                task for task in tasks() if first.is_seed_of(task) and is_evaluated(work, task)
            ]
            if first.seed == 0 and first in finished:
                record(rows_of(work, finished))
                record(rows_against(work, finished, "fixed", "scores"))
                record(rows_against(work, finished, "center-out", "center"))
        return

    def wanted(name: str) -> bool:
        return asked.only is None or name.startswith(tuple(asked.only))

    stages: dict[str, Callable[[], dict[str, list[str]]]] = {
        "data": lambda: data_commands(work, asked.train),
        "networks": lambda: network_commands(work),
        "orders": lambda: order_commands(work, wanted),
        "columns": lambda: column_commands(work, "columns", wanted),
        "continued": lambda: column_commands(work, "continued", wanted),
        "posteriors": lambda: posterior_commands(work),
        "ensembles": lambda: ensemble_commands(work, wanted),
        "evaluations": lambda: evaluation_commands(work, asked.people, wanted),
    }
    commands = {name: command for name, command in stages[asked.stage]().items() if wanted(name)}
    run_all(commands, work, asked.jobs)


if __name__ == "__main__":
    main()
