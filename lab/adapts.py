"""How much a policy adapts: the columns that it acquires in each slice, next to the fixed order.

    python lab/adapts.py --data stores/knee --limit 192 --picture docs/images/adapts.png

Each policy acquires the best column at every step. Columns at opposite frequencies carry the same
information about a real image and are counted as one. The picture shows how many columns of each
frequency a policy acquires; the line is the fixed order.
"""

from pathlib import Path

import numpy as np
from commands import parser
from jaxtyping import Float64, Int
from matplotlib.figure import Figure
from results import record, result

from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.evaluation import EvaluationSetting
from kscout.evaluation.running.prepare import prepare
from kscout.evaluation.statistics import confidence_interval
from kscout.figures.series import INK, SERIES
from kscout.figures.style import house_style, new_axes
from kscout.provenance import commit

N_INITIAL, STEPS = 16, 16
RARE = 0.01
"""Mean number of columns below which the picture omits a frequency."""


def acquired(
    names: list[str], data: Path, limit: int | None, reconstructor: str, device: str
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], SliceSet]:
    """Return the acquired columns and final SSIM by policy, and the slices."""
    setting = EvaluationSetting(
        n_initial=N_INITIAL,
        steps=STEPS,
        trajectories=1,
        argmax=True,
        protocol="paper",
        device=device,
    )
    slices = Store.open(data).split("test").sample(limit)
    ready = prepare(names, slices, reconstructor, setting)
    acquisitions = {}
    for name in names:
        (one,) = ready.by_name[name]
        done = [trajectory for _, trajectory in ready.trajectories(one)]
        columns = np.concatenate([part.columns[:, 0].cpu().numpy() for part in done])
        ssim = np.concatenate([part.ssim[:, 0, -1].double().cpu().numpy() for part in done])
        acquisitions[name] = (columns, ssim)
    return acquisitions, ready.slices


def frequency_counts(
    columns: Int[np.ndarray, "slice step"], n_cols: int
) -> Int[np.ndarray, "slice frequency"]:
    """Count the acquired columns of each distance from DC: 0 to 2."""
    distances = np.abs(columns - n_cols // 2)
    return (distances[:, :, None] == np.arange(n_cols // 2 + 1)).sum(axis=1)


def in_common(
    one: Int[np.ndarray, "slice frequency"], other: Int[np.ndarray, "row frequency"]
) -> Float64[np.ndarray, "slice row"]:
    """Count the columns that slices have in common; opposite columns are equal."""
    return sum((one >= n).astype(np.float64) @ (other >= n).T for n in (1, 2))


def draw(counts: dict[str, np.ndarray], fixed: np.ndarray) -> Figure:
    """Draw the mean number of columns by frequency."""
    means = {name: count.mean(axis=0) for name, count in counts.items()}
    last = max(np.flatnonzero(mean > RARE)[-1] for mean in (fixed, *means.values()))
    shown = slice(N_INITIAL // 2, last + 1)
    cycles = np.arange(len(fixed))[shown]
    with house_style():
        figure, grid = new_axes(len(means), 1, width=7.2, height=1.5 * len(means), share_y=True)
        for axes, (name, mean) in zip(grid, means.items(), strict=True):
            axes.bar(cycles, mean[shown], width=0.9, color=SERIES[0])
            axes.step(cycles, fixed[shown], where="mid", color=INK, lw=1)
            axes.set_title(name, loc="left")
            axes.set_ylabel("columns")
            axes.label_outer()
        grid[-1].set_xlabel("distance from DC, in cycles per field of view")
    return figure


def main() -> None:
    """Acquire, record and draw."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--reconstructor", default="knee-general-unet")
    options.add_argument("--policy", nargs="+", default=["knee-general-16-column"])
    options.add_argument("--fixed", default="knee-general-16-fixed")
    options.add_argument("--limit", type=int, help="slices; all by default")
    options.add_argument("--picture", type=Path)
    asked = options.parse_args()
    names = [*asked.policy, asked.fixed]
    where = (asked.data, asked.limit, asked.reconstructor, asked.device)
    acquisitions, slices = acquired(names, *where)
    volumes, n_cols = slices.volumes, slices.n_cols
    counts = {
        name: frequency_counts(columns, n_cols) for name, (columns, _) in acquisitions.items()
    }
    fixed, is_other = counts[asked.fixed], np.array(volumes)[:, None] != np.array(volumes)
    common = {"experiment": "adapts", "store": "knee-paper-size", "split": "test", "n_seeds": 1}
    common |= {"n_slices": len(volumes), "n_volumes": len(set(volumes)), "choice": "best"}
    common |= {"reconstruction": "frozen", "protocol": "paper", "n_initial": N_INITIAL}
    common |= {"steps": STEPS, "n_cols": n_cols, "device": asked.device, "commit": commit()}
    common |= {"command": f"python lab/adapts.py --data {asked.data}"}
    for name in asked.policy:
        difference = acquisitions[name][1] - acquisitions[asked.fixed][1]
        low, high = confidence_interval(difference, volumes) or (None, None)
        lead = {"difference": float(difference.mean()), "low": low, "high": high}
        ssim = {"metric": "ssim", "statistic": "mean", "value": float(acquisitions[name][1].mean())}
        shared = float(in_common(counts[name], fixed).diagonal().mean())
        others = float(in_common(counts[name], counts[name])[is_other].mean())
        with_fixed = {"metric": "columns in common with the fixed order", "value": shared}
        with_others = {"metric": "columns in common with other volumes", "value": others}
        record([result(**common, method=name, difference_to="fixed", **lead, **ssim)])
        record([result(**common, method=name, **fields) for fields in (with_fixed, with_others)])
    if asked.picture:
        means = {name: counts[name] for name in asked.policy}
        draw(means, fixed.mean(axis=0)).savefig(asked.picture, dpi=150, facecolor="white")


if __name__ == "__main__":
    main()
