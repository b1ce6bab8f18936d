"""Does a learned policy adapt, and where: what it measures, slice by slice, beside a fixed order.

    python benchmarks/adapts.py --data stores/knee
    python benchmarks/adapts.py --data stores/knee --limit 192 --try-all 6

The policies of the zoo acquire test slices, each the best column at every step. The oracle, which
tries all columns, and `overlooked`, which tries them beside a learned policy, may have fewer
slices (`--try-all`), spread over the others. The record is adapts.json, from which
`benchmarks/tables.py` writes tables of docs/dense.md, and adapts_records.py draws its picture.
Volumes are of one kind when their acquisitions have one name in the store: view and contrast.
Opposite columns of a real image hold the same, and count as one and the same.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from adapts_records import RECORD, KindRecord, OverlookedRecord, PolicyRecord, Record
from jaxtyping import Bool, Float64, Int

from kscout.config import to_table
from kscout.data.store import Store
from kscout.device import describe_device, resolve_device
from kscout.evaluation import AcquisitionPlan, EvaluationSetting, entropies
from kscout.evaluation.overlooked import tally_policy
from kscout.evaluation.running.prepare import Prepared, prepare
from kscout.evaluation.statistics import bootstrap_interval
from kscout.files import write_json
from kscout.physics.sampling import center_mask

ORACLE = "oracle"
_N_DIGITS = 5


@final
@dataclass(frozen=True)
class Taken:
    """What a policy did to some slices."""

    columns: Int[np.ndarray, "slice step"]
    ssim: Float64[np.ndarray, " slice"]
    """In the end."""
    n_cols: int

    @property
    def frequencies(self) -> Int[np.ndarray, "slice step"]:
        """Distances from DC: opposite columns of a real image tell the same."""
        return np.abs(self.columns - self.n_cols // 2)

    @property
    def counts(self) -> Int[np.ndarray, "slice frequency"]:
        """How many columns of each frequency were acquired, the start left aside: 0 to 2."""
        kinds = np.arange(self.n_cols // 2 + 1)
        return (self.frequencies[:, :, None] == kinds).sum(axis=1)

    def rows(self, index: Int[np.ndarray, " row"]) -> "Taken":
        """Return what was done to some of the slices."""
        return Taken(self.columns[index], self.ssim[index], self.n_cols)


def common(
    one: Int[np.ndarray, "slice frequency"], other: Int[np.ndarray, "row frequency"]
) -> Float64[np.ndarray, "slice row"]:
    """Return how many columns slices share, opposite ones taken for the same."""
    return sum((one >= n).astype(np.float64) @ (other >= n).T for n in (1, 2))


def n_shared(
    counts: Int[np.ndarray, "slice frequency"], is_pair: Bool[np.ndarray, "slice slice"]
) -> float | None:
    """Return how many columns two different slices share, mean over the pairs."""
    is_pair = is_pair & ~np.eye(len(counts), dtype=bool)
    return float(common(counts, counts)[is_pair].mean()) if is_pair.any() else None


def share_same(
    taken: Int[np.ndarray, "slice step"], is_pair: Bool[np.ndarray, "slice slice"]
) -> list[float]:
    """Return by step how many of the pairs take the same."""
    return [float((step[:, None] == step)[is_pair].mean()) for step in taken.T]


def share_mirrored(
    columns: Int[np.ndarray, "slice step"], start: Bool[np.ndarray, " col"]
) -> float:
    """Return the share of columns whose opposite was measured before."""
    masks, n_cols, found = np.repeat(start[None], len(columns), axis=0), len(start), []
    for step in columns.T[..., None]:
        # DC lies at n_cols // 2; the lowest frequency of an even number is its own opposite.
        opposite = (2 * (n_cols // 2) - step) % n_cols
        found.append(np.take_along_axis(masks, opposite, axis=1))
        np.put_along_axis(masks, step, True, axis=1)
    return float(np.mean(found))


def compared(own: Taken, fixed: Taken, volumes: Sequence[str]) -> dict[str, object]:
    """Return the difference in SSIM to the fixed order."""
    apart = own.ssim - fixed.ssim
    interval = bootstrap_interval(apart, volumes)
    return {
        **{"n_slices": len(apart), "n_volumes": len(set(volumes))},
        "difference": float(apart.mean()),
        "interval": None if interval is None else tuple(map(float, interval)),
    }


def record_of(
    policy: str, own: Taken, fixed: Taken, volumes: Sequence[str], kinds: Sequence[str], start: int
) -> PolicyRecord:
    """Return what is told of one policy."""
    by_volume, by_kind = (np.asarray(x)[:, None] == np.asarray(x) for x in (volumes, kinds))
    steps = torch.nn.functional.one_hot(torch.from_numpy(own.frequencies.T))
    return PolicyRecord(
        policy=policy,
        ssim=float(own.ssim.mean()),
        **compared(own, fixed, volumes),  # type: ignore[arg-type]
        as_fixed=float(common(own.counts, fixed.counts).diagonal().mean()),
        of_volume=n_shared(own.counts, by_volume),
        of_kind=n_shared(own.counts, by_kind & ~by_volume),
        of_others=n_shared(own.counts, ~by_kind),
        mirrored=share_mirrored(own.columns, center_mask(own.n_cols, start).numpy()),
        mutual_information=tuple(
            entropies(steps[:, :, None].float()).mutual_information.clamp(min=0).tolist()
        ),
        same=tuple(share_same(own.frequencies, ~by_volume)),
        sampled=tuple(own.counts.mean(axis=0).tolist()),
    )


def take(ready: Prepared, name: str) -> Taken:
    """Let one policy acquire the slices."""
    (one,) = ready.by_name[name]
    columns, ssim = [], []
    for _, done in ready.trajectories(one):
        columns.append(done.columns[:, 0].cpu().numpy())
        ssim.append(done.ssim[:, 0, -1].double().cpu().numpy())
    print(f"{name}: {sum(map(len, ssim))} slices, SSIM {np.concatenate(ssim).mean():.4f}")
    return Taken(np.concatenate(columns), np.concatenate(ssim), ready.slices.n_cols)


def open_slices(wanted: argparse.Namespace, names: Sequence[str], limit: int | None) -> Prepared:
    """Open the first slices, or some of them that are spread over these."""
    plan = AcquisitionPlan(wanted.n_initial, wanted.steps, n_trajectories=1, is_argmax=True)
    setting = EvaluationSetting(plan, device=wanted.device)
    slices = Store.open(wanted.data).split("test").sample(wanted.limit).sample(limit)
    return prepare(list(names), slices, wanted.reconstructor, setting)


def overlooked(wanted: argparse.Namespace) -> list[OverlookedRecord]:
    """Try every column beside the learned policies."""
    ready, found = open_slices(wanted, wanted.learned, wanted.try_all), []
    for name in wanted.learned:
        (one,) = ready.by_name[name]
        # All take their best column: what is drawn has other chances.
        one.policy.is_stochastic = False
        where = (ready.slices, ready.reconstructor, ready.plan)
        row = tally_policy(one.policy, *where, rare=1e-4).row(name)
        told = (row.n_states, row.overlooked, row.gain, row.forgone)
        found.append(OverlookedRecord(name, *told))
        print(f"{name}: overlooks {row.overlooked:.3f}")
    return found


def made_record(wanted: argparse.Namespace) -> Record:
    """Run everything."""
    names = [*wanted.learned, wanted.fixed]
    ready = open_slices(wanted, names, None)
    taken = {name: take(ready, name) for name in names}
    by_volume = {
        one.volume: one.acquisition
        for one in Store.open(wanted.data).manifest.volumes
        if one.split == "test"
    }
    volumes = ready.slices.volumes
    kinds, fixed = [by_volume[volume] for volume in volumes], taken[wanted.fixed]
    start = ready.plan.n_initial
    policies = [record_of(x, own, fixed, volumes, kinds, start) for x, own in taken.items()]
    some = open_slices(wanted, [ORACLE], wanted.try_all)
    places = {int(place): row for row, place in enumerate(ready.slices.position)}
    rows = np.array([places[int(place)] for place in some.slices.position])
    told = ([names[row] for row in rows] for names in (volumes, kinds))
    policies.append(record_of(ORACLE, take(some, ORACLE), fixed.rows(rows), *told, start))
    by_kind = []
    for name in wanted.learned:
        for kind in sorted(set(kinds)):
            own = np.array([row for row, x in enumerate(kinds) if x == kind])
            found = compared(taken[name].rows(own), fixed.rows(own), [volumes[i] for i in own])
            by_kind.append(KindRecord(name, kind, **found))  # type: ignore[arg-type]
    return Record(
        wanted.data.name,
        wanted.n_initial,
        wanted.steps,
        wanted.fixed,
        describe_device(resolve_device(wanted.device)),
        tuple(policies),
        tuple(by_kind),
        tuple(overlooked(wanted)),
    )


def rounded(value: object) -> object:
    """Return a table with as many digits as tell something."""
    match value:
        case float():
            return round(value, _N_DIGITS)
        case dict():
            return {key: rounded(one) for key, one in value.items()}
        case list() | tuple():
            return [rounded(one) for one in value]
    return value


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--reconstructor", default="knee-unet")
    parser.add_argument("--learned", nargs="+", default=["knee-base-column", "knee-base-greedy"])
    parser.add_argument("--fixed", default="knee-base-fixed")
    parser.add_argument("--n-initial", type=int, default=16)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--limit", type=int, help="slices; all where not given")
    parser.add_argument("--try-all", type=int, help="slices on which all columns are tried")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--record", type=Path, default=RECORD)
    wanted = parser.parse_args(arguments)
    write_json(wanted.record, rounded(to_table(made_record(wanted), nulls=True)))


if __name__ == "__main__":
    main()
