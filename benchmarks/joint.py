"""Does adapting still pay when the reconstruction learns too? One arm and seed is one record.

    python benchmarks/joint.py --arm dense --seed 0 --data stores/knee        # train, evaluate
    python benchmarks/joint.py --arm dense --seed 0 --horizon knee-8x --minutes 8
    python benchmarks/joint.py --table                # pair the records; what was not run is listed
    python benchmarks/joint.py --left 6               # commands of the next six
    python benchmarks/tables.py                       # the same into docs/joint.md
    python benchmarks/joint.py --enter                # enter them into leaderboard.json

All arms start from the same network and take the same updates of the same size from the same
slices; --set changes that, and records of other settings, or of as many other slices, are not
compared: give them a --label. A run that --minutes
stopped goes on when the same is typed again. Oracles are asked on --oracle-slices of the test
slices, on the arm's own network.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from joint_records import (
    ARMS,
    HORIZONS,
    RECORDS,
    Bounds,
    JointRecord,
    commands_left,
    leaderboard_rows,
    read_records,
    table,
)
from leaderboard import entered, read_leaderboard, write_leaderboard
from marks import start_words
from paired import volumes_of

from kscout import reconstruction
from kscout.cli.progress import training_progress
from kscout.cli.train_joint import resolve_joint
from kscout.columns import columns_text
from kscout.config import JointConfig, JointTraining, to_table
from kscout.data.store import Store
from kscout.evaluation import AcquisitionPlan, EvaluationSetting, Scores, evaluate
from kscout.files import write_json
from kscout.runs import Progress, RunRecord
from kscout.training.joint.train import train_joint

DRAWN = ("random",)
"""Arms whose columns are drawn at test; the others take their best."""
N_TRAJECTORIES = 4


def run_arm(wanted: argparse.Namespace) -> JointRecord:
    """Train one arm with one seed, evaluate it, and return what came out."""
    horizon, arm = HORIZONS[wanted.horizon], wanted.arm
    start = None if wanted.start == "nothing" else wanted.start or horizon.start
    flags = {
        "training.method": arm,
        "training.seed": wanted.seed,
        "training.n_updates": wanted.updates,
        "training.protocol": wanted.protocol,
        "reconstructor.n_channels": wanted.channels,
        "acquisition.n_initial": horizon.n_initial,
        "acquisition.horizon": horizon.steps,
    }
    config = resolve_joint("knee-base", None, wanted.set, flags)
    out = wanted.runs / wanted.horizon / labeled(wanted) / f"seed-{wanted.seed}"
    begun = time.monotonic()
    with training_progress() as tell:

        def on_step(progress: Progress) -> None:
            tell(progress)
            if wanted.minutes and time.monotonic() - begun > 60 * wanted.minutes:
                raise TimeoutError(f"{wanted.minutes} minutes are over; type the same to go on")

        store = Store.open(wanted.data)
        run = train_joint(config, store, out, start=start, device=wanted.device, on_step=on_step)
    words = [f"kscout train joint --data {wanted.data} --out {out} --method {arm}"]
    words += [] if start is None else [f"--reconstructor {start}"]
    options = {"channels": wanted.channels, "updates": wanted.updates, "seed": wanted.seed}
    options |= {"n-initial": horizon.n_initial, "steps": horizon.steps}
    options |= {"protocol": wanted.protocol}
    words += [f"--{name} {value}" for name, value in options.items() if value is not None]
    settings = (assignment.partition("=") for assignment in wanted.set)
    words += [f"--set {name}={shlex.quote(value)}" for name, _, value in settings]
    return record_of(wanted, config, run, " ".join(words))


def record_of(
    wanted: argparse.Namespace, config: JointConfig, run: RunRecord, command: str
) -> JointRecord:
    """Evaluate a finished run on the test slices."""
    setting, training = config.acquisition, config.training
    n_trajectories = N_TRAJECTORIES if wanted.arm in DRAWN else 1
    plan = AcquisitionPlan(
        setting.n_initial,
        setting.horizon,
        n_trajectories=n_trajectories,
        is_argmax=wanted.arm not in DRAWN,
        protocol=training.protocol,
        batch_size=wanted.batch_size,
    )
    common = {"split": "test", "device": wanted.device, "n_examples": 0}
    common["initial"] = setting.initial
    whole = EvaluationSetting(plan, **common)
    own, after = _scores(["fixed"], wanted.data, run.path, whole)
    few = EvaluationSetting(plan, limit=wanted.oracle_slices, **common)
    curves = [own.metric(name).mean(axis=0) for name in ("ssim", "psnr")]
    last, (settings, sampler) = run.metrics[-1], _settings(config, run, wanted.data)
    weights = run.path / "weights.safetensors"
    how = f"--trajectories {n_trajectories}" if wanted.arm in DRAWN else "--argmax"
    evaluates = (
        f"kscout evaluate --data {wanted.data} --reconstructor {run.path} --split test "
        f"{start_words(setting)} --steps {setting.horizon} --policy "
        f"{wanted.arm}={run.path} {how} --seed 0 --protocol {training.protocol} "
        f"--out results/joint/{wanted.horizon}/{wanted.arm}"
    )
    return JointRecord(
        arm=wanted.arm,
        seed=training.seed,
        horizon=wanted.horizon,
        n_updates=last["n_updates"],
        n_sampler_updates=last["n_sampler_updates"],
        n_slices_seen=sum(one["n_slices"] for one in run.metrics),
        n_parameters=_n_parameters(weights),
        sampler_share=float(np.mean([one["sampler_share"] for one in run.metrics])),
        train_s=float(sum(one["time_s"] for one in run.metrics)),
        ssim=float(curves[0][-1]),
        psnr=float(curves[1][-1]),
        curve=tuple(curves[0].tolist()),
        psnr_curve=tuple(curves[1].tolist()),
        area=float(curves[0].mean()),
        volumes=volumes_of(own),
        fitted_after=volumes_of(after),
        commands=(command, evaluates),
        settings=settings,
        device=run.provenance.device,
        commit=run.provenance.commit,
        bounds=_bounds(wanted.data, run.path, few) if wanted.oracle_slices else None,
        sampler=sampler,
        label=label_of(wanted),
        validation=tuple(one["val_ssim"] for one in run.metrics),
    )


def _settings(
    config: JointConfig, run: RunRecord, data: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what arms that are compared have in common, and what is their sampler's alone."""
    told = to_table(config)
    common = {one.name for one in fields(JointTraining)} - {"sampler_precision"}
    sampler = {key: value for key, value in told["training"].items() if key not in common}
    # Compiled or not, the same is computed, but for the order of sums.
    apart = {"method", "seed", "compile", *sampler}
    settings = {
        # Of a start that nothing was said of, which the fingerprint tells, the name alone.
        "reconstructor": told.get("reconstructor") or {"name": run.config["reconstructor"]["name"]},
        "training": {k: v for k, v in told["training"].items() if k not in apart},
        "start": run.provenance.inputs.get("start", "nothing"),
        "n_train": len(Store.open(data).split("train")),
    }
    if config.acquisition.initial is not None:
        settings["initial"] = columns_text(config.acquisition.start)
    return settings, sampler


def _bounds(data: Path, run: Path, few: EvaluationSetting) -> Bounds:
    """Score the fixed order and both oracles on a network, beside what it learned with."""
    found = _scores(["fixed", "na-oracle", "oracle"], data, run, few)
    means = [float(one.metric("ssim")[:, -1].mean()) for one in found]
    return Bounds(len(found[0].slices), *means)


def _scores(
    names: Sequence[str], data: Path, run: Path, setting: EvaluationSetting
) -> list[Scores]:
    """Return the scores of an arm, and of what else may choose columns for its network."""
    found = evaluate([f"arm={run}", *names], data, run, setting).scores
    by_name = {one.policy: one for one in found}
    return [by_name[name] for name in ("arm", *names)]


def labeled(wanted: argparse.Namespace) -> str:
    """Return the name of an arm with what tells it from others of the same sampler."""
    label = label_of(wanted)
    return wanted.arm if label is None else f"{wanted.arm}-{label}"


def label_of(wanted: argparse.Namespace) -> str | None:
    """Return what tells an arm from others of the same sampler; None where nothing does."""
    kinds = (wanted.channels, wanted.label)
    return "-".join(str(kind) for kind in kinds if kind is not None) or None


def _n_parameters(weights: Path) -> int:
    return sum(one.numel() for one in reconstruction.load(weights).parameters())


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arm", choices=ARMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--horizon", choices=HORIZONS, default="knee-base")
    parser.add_argument("--data", type=Path, default=Path("stores/knee"))
    parser.add_argument("--start", help="a network, or 'nothing' [that of the horizon]")
    parser.add_argument("--channels", type=int, help="with --start nothing")
    parser.add_argument("--updates", type=int, default=6000)
    parser.add_argument("--protocol", default="paper")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--label", help="of files, where --set or --data make another comparison")
    parser.add_argument("--minutes", type=float, help="stop the training after so many")
    parser.add_argument("--oracle-slices", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=Path("runs/joint"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--left", type=int, default=0, metavar="N", help="the next N commands")
    parser.add_argument("--enter", action="store_true")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run an arm, or tell what the records say."""
    wanted = parsed(words)
    if wanted.arm:
        try:
            record = run_arm(wanted)
        except TimeoutError as error:
            print(error)
            return 1
        name = f"{record.stem}.json"
        write_json(wanted.records / name, to_table(record))
        print(f"{name}: SSIM {record.ssim:.4f}, area {record.area:.4f}, {record.train_s:.0f} s")
    records = read_records(wanted.records)
    if wanted.enter:
        write_leaderboard(entered(read_leaderboard(), leaderboard_rows(records)))
    if wanted.table:
        print(table(records))
    if wanted.left:
        print(*commands_left(records)[: wanted.left], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
