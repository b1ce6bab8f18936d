"""The long table of an evaluation, `results.csv`: a row per policy, slice, trajectory and step."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from jaxtyping import Float, Float64, Int

from kscout.errors import ConfigError, DataError
from kscout.files import plain_file, written_whole
from kscout.shapes import one_line

RESULTS = "results.csv"


class ResultRow(NamedTuple):
    """One line of the table, as text."""

    policy: str
    seed: str
    volume: str
    slice: str
    trajectory: str
    step: str
    column: str
    ssim: str
    psnr: str
    nmse: str


COLUMNS = ResultRow._fields
METRICS = ("ssim", "psnr", "nmse")
_MOST_BYTES = 2**34


@final
@dataclass(frozen=True, repr=False)
class Scores:
    """Scores of one policy with one seed, averaged over its trajectories."""

    policy: str
    seed: int
    volumes: tuple[str, ...]
    """The volume of each slice."""
    slices: tuple[int, ...]
    """The number of each slice in its volume."""
    values: Float64[np.ndarray, "slice moment 3"]
    """By slice, step (0 is the start) and metric, in the order of `METRICS`."""
    n_trajectories: int

    __repr__ = one_line

    def metric(self, name: str) -> Float64[np.ndarray, "slice moment"]:
        return self.values[:, :, METRICS.index(name)]


@final
class ResultsWriter:
    """Writes the rows of each batch: memory does not grow with the table."""

    def __init__(self, rows: Any) -> None:  # noqa: ANN401 - csv's writer has no public type
        self._rows = rows

    def write(
        self,
        policy: str,
        seed: int,
        columns: Int[np.ndarray, "slice trajectory column"],
        metrics: Float[np.ndarray, "slice trajectory moment 3"],
        volumes: Sequence[str],
        slices: Sequence[int],
    ) -> None:
        """Append the rows of one batch; metrics are in the order of `METRICS`.

        Several columns of one step are separated by blanks; negative ones were not acquired.
        """
        n_steps = metrics.shape[2] - 1
        by_step = columns.reshape(*columns.shape[:2], n_steps, -1) if n_steps else columns
        chosen, values = by_step.tolist(), metrics.tolist()
        for i, (volume, number) in enumerate(zip(volumes, slices, strict=True)):
            for path, (taken, scores) in enumerate(zip(chosen[i], values[i], strict=True)):
                # Eight digits are exact to a hundredth of the rounding of a float32.
                self._rows.writerows(
                    (policy, seed, volume, number, path, step, words, *(f"{x:.8g}" for x in score))
                    for step, (words, score) in enumerate(
                        zip(["", *map(_words, taken)], scores, strict=True)
                    )
                )


def _words(columns: Sequence[int]) -> str:
    return " ".join(str(column) for column in columns if column >= 0)


@contextmanager
def writing_results(path: Path) -> Iterator[ResultsWriter]:
    """Open `results.csv` for writing; the file is replaced atomically at the end."""
    with written_whole(path) as aside:
        with aside.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(COLUMNS)
            yield ResultsWriter(rows)


Sums = dict[int, list[float]]
"""By step: sums over trajectories of the metrics, and the number of trajectories."""


def read_scores(path: Path | str) -> list[Scores]:
    """Read `results.csv` (the file, or the folder that holds it), averaging over trajectories."""
    path = Path(path)
    by_policy: dict[tuple[str, int], dict[tuple[str, int], Sums]] = {}
    for row in read_rows(path):
        try:
            slices = by_policy.setdefault((row.policy, int(row.seed)), {})
            steps = slices.setdefault((row.volume, int(row.slice)), {})
            sums = steps.setdefault(int(row.step), [0.0] * (len(METRICS) + 1))
            values = float(row.ssim), float(row.psnr), float(row.nmse)
            for i, value in enumerate((*values, 1.0)):
                sums[i] += value
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{path} holds a row that is not a result ({error}); evaluate again"
            ) from error
    return [_scores(*key, slices, path) for key, slices in by_policy.items()]


def _scores(policy: str, seed: int, slices: dict[tuple[str, int], Sums], path: Path) -> Scores:
    n_moments = max(max(steps) for steps in slices.values()) + 1
    n_trajectories = max(sums[-1] for steps in slices.values() for sums in steps.values())
    for (volume, number), steps in slices.items():
        counts = {sums[-1] for sums in steps.values()}
        if len(steps) != n_moments or counts != {n_trajectories}:
            raise DataError(
                f"{path}: slice {number} of {volume} lacks steps or trajectories of "
                f"{policy!r} with seed {seed}; the file was cut or joined wrongly"
            )
    values = np.array(
        [
            [[x / sums[-1] for x in sums[:-1]] for _, sums in sorted(steps.items())]
            for steps in slices.values()
        ]
    )
    volumes, numbers = zip(*slices, strict=True)
    return Scores(policy, seed, volumes, numbers, values, int(n_trajectories))


def read_rows(path: Path) -> Iterable[ResultRow]:
    """Yield the rows of `results.csv`."""
    file = path / RESULTS if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"{file} does not exist; `kscout evaluate --out DIR` writes it")
    with plain_file(file, _MOST_BYTES) as handle:
        rows = csv.reader(TextIOWrapper(handle, encoding="utf-8", newline=""))
        try:
            header = next(rows, [])
            if tuple(header) != COLUMNS:
                raise DataError(
                    f"{file} has the columns {', '.join(header) or 'none'}; "
                    f"expected {', '.join(COLUMNS)}"
                )
            yield from map(ResultRow._make, rows)
        except (UnicodeDecodeError, TypeError, csv.Error) as error:
            raise DataError(f"{file} is damaged ({error}); evaluate again") from error


def data_frame(columns: Mapping[str, object]) -> Any:  # noqa: ANN401 - pandas is optional
    """Return columns as a `pandas.DataFrame`."""
    try:
        import pandas as pd  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            "to_pandas needs pandas, which is not installed; pip install pandas"
        ) from error
    return pd.DataFrame(dict(columns))
