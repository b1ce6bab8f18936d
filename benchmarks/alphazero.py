"""AlphaZero beside the paper's greedy, and a study of two of its constants.

    python benchmarks/alphazero.py --data stores/knee --arm alphazero --seed 0 --minutes 8
    python benchmarks/alphazero.py --data stores/knee --arm greedy --seed 0 --minutes 8
    python benchmarks/alphazero.py --data stores/knee --arm searches-128 --minutes 4
    python benchmarks/alphazero.py --data stores/knee --list

Trains one arm with one seed until its rounds have taken so many minutes, evaluates the best round
by validation on the test split beside random, equispaced and fixed columns and the zoo's greedy
policy, and writes ARM-STORE-PRESET-MINUTESm-seedN.json, which is not made again. What was stopped
goes on with its next round when the same is typed again; --pause ends the training for now after
so many minutes of the clock. More minutes go on with the same run. Arms may run at once: of those
that end together one evaluates the marks, and --beside tells records how many shared the GPU. The
paper's estimator (`greedy`) is trained as long, and stopped where it is. `tables.py` writes the
tables of docs/alphazero.md, --enter joins the rows of `alphazero` to the leaderboard.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from alphazero_records import (
    ARMS,
    MARKS,
    RECORDS,
    ArmRecord,
    Marks,
    leaderboard_row,
    not_run,
    read_marks,
    read_records,
)
from leaderboard import REFERENCE, STORES, join
from marks import key_of, setting_of, start_words
from paired import mean_ssim, volumes_of

from kscout import policies
from kscout.config import ACQUISITIONS, PolicyConfig, merge, read, to_table
from kscout.config.layers import assigned
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.evaluation import EvaluationSetting, evaluate
from kscout.evaluation.analyses.entropy import Entropy
from kscout.files import take_lock, write_json
from kscout.runs import Progress, RunRecord, read_metrics, read_run
from kscout.training.policy import train_policy
from kscout.zoo import ZOO

N_TRAJECTORIES = 8
"""Acquisitions per slice of policies that draw, as in the paper."""
N_SLICES = 256
"""Slices that entropies are of."""


class _TimeIsUpError(Exception):
    """Ends a training between two steps; it goes on from its last whole round."""


def config_of(arm: str, preset: str, seed: int, changes: Sequence[str] = ()) -> PolicyConfig:
    """Return the settings of an arm."""
    base = PolicyConfig.of("greedy" if arm == "greedy" else "alphazero")
    base = replace(base, acquisition=ACQUISITIONS[preset])
    table = merge(to_table(base), assigned([*ARMS[arm], *changes]))
    return read(PolicyConfig, merge(table, {"training": {"seed": seed}}))


def trained(config: PolicyConfig, wanted: argparse.Namespace, out: Path) -> RunRecord | None:
    """Train until rounds have taken the minutes; None where the pause comes first."""
    times = [line["time_s"] for line in read_metrics(out)]
    begun, spent = time.monotonic(), sum(times)
    if times[1:] and sum(times[:-1]) >= 60 * wanted.minutes:
        raise ConfigError(
            f"{out} has taken {spent / 60:.1f} minutes; ask for more, or name other --runs"
        )

    def watch(progress: Progress) -> None:
        nonlocal spent
        spent += progress.record.get("time_s", 0.0)
        is_paused = wanted.pause and time.monotonic() - begun > 60 * wanted.pause
        if (progress.record and spent >= 60 * wanted.minutes) or is_paused:
            raise _TimeIsUpError

    try:
        if not spent or spent < 60 * wanted.minutes:
            store = Store.open(wanted.data)
            train_policy(
                config, store, wanted.reconstructor, out, device=wanted.device, on_step=watch
            )
    except _TimeIsUpError:
        if spent < 60 * wanted.minutes:
            return None
    return read_run(out)


def evaluation_of(
    config: PolicyConfig, wanted: argparse.Namespace, *, is_argmax: bool = False
) -> EvaluationSetting:
    """Return how the policies of an arm, and what they are compared with, are evaluated."""
    how = {"limit": wanted.limit, "batch_size": wanted.batch_size, "device": wanted.device}
    n_trajectories = 1 if is_argmax else N_TRAJECTORIES
    return setting_of(config, **how, n_trajectories=n_trajectories, is_argmax=is_argmax)


def marks_key(config: PolicyConfig, wanted: argparse.Namespace) -> str:
    """Return what tells the marks that an arm stands beside from others."""
    setting = evaluation_of(config, wanted)
    return key_of(_names(wanted), wanted.data, wanted.reconstructor, setting)


def _names(wanted: argparse.Namespace) -> list[str]:
    greedy = f"{wanted.preset}-greedy"
    return [*MARKS, *([greedy] if greedy in ZOO and not wanted.no_zoo else [])]


def write_marks(config: PolicyConfig, wanted: argparse.Namespace) -> None:
    """Evaluate what an arm is compared with, once for all arms that ask alike."""
    key = marks_key(config, wanted)
    path = wanted.out / f"marks-{wanted.data.name}-{wanted.preset}-{key}.json"
    # Of arms that end together, one evaluates them.
    lock = None if path.exists() else take_lock(wanted.out, name=f".{path.stem}.lock")
    if lock is None:
        return
    try:
        if not path.exists():
            write_json(path, to_table(_marks(config, wanted, key)))
    finally:
        (wanted.out / f".{path.stem}.lock").unlink(missing_ok=True)
        os.close(lock)


def _marks(config: PolicyConfig, wanted: argparse.Namespace, key: str) -> Marks:
    where = (wanted.data, wanted.reconstructor, evaluation_of(config, wanted))
    found = evaluate(_names(wanted), *where)
    volumes = {one.policy: volumes_of(one) for one in found.scores}
    ssim = {one.policy: one.ssim for one in found.found.policies}
    return Marks(wanted.data.name, wanted.preset, volumes, ssim, key)


def record_of(run: RunRecord, config: PolicyConfig, wanted: argparse.Namespace) -> ArmRecord:
    """Evaluate the best round of a training."""
    best = run.path / "best.safetensors"
    policy = policies.load(best)
    where, name = (wanted.data, wanted.reconstructor), wanted.arm
    drawn, argmax = (
        volumes_of(
            evaluate(
                [(name, policy)], *where, evaluation_of(config, wanted, is_argmax=is_argmax)
            ).scores[0]
        )
        for is_argmax in (False, True)
    )
    lines, training = run.metrics, config.training
    changes = (*ARMS[wanted.arm], *wanted.set)
    command, evaluates = _commands(run, config, wanted)
    return ArmRecord(
        arm=name,
        seed=training.seed,
        data=wanted.data.name,
        preset=wanted.preset,
        reconstructor=wanted.reconstructor,
        changes=changes,
        minutes=wanted.minutes,
        n_rounds=len(lines),
        best_round=max(lines, key=lambda line: line["val_ssim"])["epoch"],
        train_s=sum(line["time_s"] for line in lines),
        n_reconstructions=sum(line["n_reconstructions"] for line in lines),
        n_parameters=sum(one.numel() for one in policy.parameters()),
        val_ssim=tuple(line["val_ssim"] for line in lines),
        search_ssim=_by_round(lines, "search_ssim"),
        tree_ssim=_by_round(lines, "tree_ssim"),
        volumes=drawn,
        argmax_volumes=argmax,
        command=command,
        evaluates=evaluates,
        device=run.provenance.device,
        commit=run.provenance.commit,
        marks=marks_key(config, wanted),
        n_beside=wanted.beside,
        n_decisions=sum(line["n_decisions"] for line in lines),
        loss=_by_round(lines, "loss"),
        label_entropy=_by_round(lines, "label_entropy"),
        **_entropies(best, wanted),
    )


def _entropies(policy: Path, wanted: argparse.Namespace) -> dict[str, float]:
    """Return entropies of a policy, means over steps, on some of the test slices."""
    # Start and columns are those that the run of the policy tells.
    analysis = Entropy(
        data=wanted.data,
        reconstructor=wanted.reconstructor,
        limit=min(N_SLICES, wanted.limit or N_SLICES),
        device=wanted.device,
        precision="auto",
    )
    rows = analysis.compute([f"{wanted.arm}={policy}"], out=wanted.out)
    return {
        "conditional_entropy": fmean(row.conditional for row in rows),
        "mutual_information": fmean(row.mutual_information for row in rows),
    }


def _by_round(lines: Sequence[dict[str, Any]], name: str) -> tuple[float, ...]:
    """Return what a training told in each round; nothing where its kind does not tell it."""
    return tuple(line[name] for line in lines if name in line)


def _commands(run: RunRecord, config: PolicyConfig, wanted: argparse.Namespace) -> tuple[str, str]:
    """Return what to type for the same training and evaluation."""
    acquisition, training, name = config.acquisition, config.training, wanted.arm
    changes = (*ARMS[name], *wanted.set)
    words = [f"kscout train policy --method {training.method} --data {wanted.data}"]
    words += [f"--reconstructor {wanted.reconstructor} --preset {wanted.preset} --out {run.path}"]
    words += [f"--epochs {len(run.metrics)} --seed {training.seed}"]
    words += [f"--set {change}" for change in changes]
    pace = f"--columns-per-step {acquisition.group} " if acquisition.group > 1 else ""
    evaluates = (
        f"kscout evaluate --data {wanted.data} --reconstructor {wanted.reconstructor} --split test "
        f"{start_words(acquisition)} --steps {acquisition.horizon} {pace}"
        f"--policy {name}={run.path / 'best.safetensors'} "
        f"--policy {REFERENCE} --trajectories {N_TRAJECTORIES} --seed 0 "
        f"--protocol {training.protocol} --reference {REFERENCE} "
        f"--out results/{wanted.preset}/{name}"
    )
    return " ".join(words), evaluates


def run_arm(wanted: argparse.Namespace) -> int:
    """Train and evaluate an arm that has no record yet; return 1 where it is not finished."""
    stem = f"{wanted.arm}-{wanted.data.name}-{wanted.preset}"
    path = wanted.out / f"{stem}-{wanted.minutes:g}m-seed{wanted.seed}.json"
    config = config_of(wanted.arm, wanted.preset, wanted.seed, wanted.set)
    if path.exists():
        _check_same(path, marks_key(config, wanted))
        write_marks(config, wanted)
        return 0
    run = trained(config, wanted, wanted.runs / stem / f"seed-{wanted.seed}")
    if run is None:
        print(f"{path.stem} is not finished; type the same to go on")
        return 1
    record = record_of(run, config, wanted)
    write_json(path, to_table(record))
    write_marks(config, wanted)
    print(
        f"{path.stem}: SSIM {mean_ssim(record.volumes):.4f} drawn, "
        f"{mean_ssim(record.argmax_volumes):.4f} best column, {record.n_rounds} rounds"
    )
    return 0


def _check_same(path: Path, key: str) -> None:
    """Refuse a record that stands beside other marks than were asked for."""
    there = read(ArmRecord, json.loads(path.read_text(encoding="utf-8"))).marks
    if there not in ("", key):
        raise ConfigError(
            f"{path} was made with other slices, columns or another network than are asked for; "
            "type what it was made with, or name another --out"
        )


def enter(wanted: argparse.Namespace) -> None:
    """Join the rows of a store and preset to the leaderboard."""
    marks = _asked_marks(wanted)
    own = [one for one in read_records(wanted.out) if one.place == marks.place]
    new = leaderboard_row(own, marks, store=STORES.get(wanted.data.name, wanted.data.name))
    join(new, marks.ssim[REFERENCE])


def _asked_marks(wanted: argparse.Namespace) -> Marks:
    """Return the marks of a store and preset; where there are several, those of the settings."""
    place = (wanted.data.name, wanted.preset)
    found = [one for one in read_marks(wanted.out).values() if one.place[:2] == place]
    if len(found) > 1:
        key = marks_key(config_of("alphazero", wanted.preset, 0, wanted.set), wanted)
        found = [one for one in found if one.key == key]
    if not found:
        raise ConfigError(
            f"{wanted.out} has no marks of {' and '.join(place)} with these settings; run an arm"
        )
    return found[0]


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("stores/knee"))
    parser.add_argument("--reconstructor", default="knee-unet")
    parser.add_argument("--preset", choices=list(ACQUISITIONS), default="knee-base")
    parser.add_argument("--arm", choices=list(ARMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--pause", type=float, help="end for now after so many minutes")
    parser.add_argument("--limit", type=int, help="test slices; all where not given")
    parser.add_argument("--batch-size", type=int, help="slices evaluated at once")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=Path("runs/alphazero"))
    parser.add_argument("--out", type=Path, default=RECORDS)
    parser.add_argument("--no-zoo", action="store_true", help="for images of another size")
    parser.add_argument("--beside", type=int, help="other trainings on the GPU, for the record")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--enter", action="store_true")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run an arm, tell what was not run, or enter what was."""
    wanted = parsed(words)
    wanted.out.mkdir(parents=True, exist_ok=True)
    if wanted.list:
        print(json.dumps(not_run(read_records(wanted.out)), indent=2))
    if wanted.enter:
        enter(wanted)
    return run_arm(wanted) if wanted.arm else 0


if __name__ == "__main__":
    raise SystemExit(main())
