"""Run folders: all files to reproduce, resume and report a run.

| file | content |
|---|---|
| `config.toml` | the resolved settings |
| `provenance.json` | commit, versions, seed, device, command, hardware, fingerprints of inputs |
| `metrics.jsonl` | one JSON object per line, one line per epoch |
| `checkpoint.pt` | the last epoch's state, from which a killed run resumes |
| `weights.safetensors` | the last epoch's weights; `best.safetensors` those of the best epoch |
| `epoch-0010.safetensors` | the weights of a saved epoch |
| `done.json` | present if the run is finished |
| `.faults/rank-N.log` | last output of a process under torchrun that failed |

Every file except `metrics.jsonl` is written atomically. A kill may truncate a line of metrics, and
lines may be ahead of the checkpoint: both are dropped at resumption. This module does not import
torch.
"""

import json
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, SupportsFloat, TypeGuard, final

from kscout.config import (
    Config,
    ReconstructorTraining,
    differences,
    listed,
    load,
    read_file,
    save,
    supported,
    to_toml,
)
from kscout.errors import ConfigError, RunError
from kscout.files import LOCK, now, parse_json, read_bytes, take_lock, write_json, write_text
from kscout.provenance import Provenance, describe, warn_of_other_bits
from kscout.runs.required import Done, Settings, read_checked

CONFIG, PROVENANCE, METRICS, DONE = "config.toml", "provenance.json", "metrics.jsonl", "done.json"

Record = dict[str, Any]


@final
@dataclass(frozen=True)
class Progress:
    """Progress of a training, for `on_step` callbacks after every optimizer step."""

    epoch: int
    """Counted from 1."""
    n_epochs: int
    step: int
    """Optimizer steps of this epoch so far."""
    n_steps: int
    """Optimizer steps per epoch."""
    record: Record = field(default_factory=dict)
    """The latest line of `metrics.jsonl`; empty inside an epoch."""
    means: Mapping[str, SupportsFloat] = field(default_factory=dict)
    """Means over the batch of this step, such as its loss, which may still be on the device."""
    picture: Callable[[], Any] | None = None
    """Set after an epoch: computes gray values (row x column) of an example when called."""


@final
@dataclass
class Run:
    """A run folder opened for writing, by one process at a time."""

    path: Path
    config: Config
    provenance: Provenance
    _lock: int
    is_new: bool = False
    """Whether the folder was empty."""

    @classmethod
    def create_or_resume(
        cls,
        path: str | Path,
        config: Config,
        *,
        inputs: Mapping[str, str],
        device: str,
        command: Sequence[str] | None = None,
    ) -> "Run":
        """Open a folder for this run: a new one, or the existing one of the same run.

        A folder with other settings, except for a smaller number of epochs, or with other inputs
        (by their fingerprints) raises an error. The command line is by default that of this
        process.
        """
        path = Path(path)
        if str(path).encode(errors="ignore").decode() != str(path):
            raise RunError(f"the name {str(path)!r} is not UTF-8; name another --out")
        lock = take_lock(path)
        if lock is None:
            raise RunError(f"{path} is in use by another process; wait for it or stop it")
        is_begun = (path / CONFIG).exists()
        try:
            if is_begun:
                n_before = _check_same_config(path, config)
            elif any(not x.name.startswith(".") and x.name != PROVENANCE for x in path.iterdir()):
                raise RunError(
                    f"{path} is not empty and not a run folder (no {CONFIG}); name another --out"
                )
            for leftover in path.glob(".*.part"):
                leftover.unlink()
            _check_complete(path)
            if is_begun and (path / PROVENANCE).exists():
                provenance = _read_provenance(path)
                _check_same_inputs(path, provenance, inputs)
                warn_of_other_bits(path, provenance, device)
                provenance = _extended(path, provenance, config, n_before)
            else:
                provenance = describe(config, inputs, device, command or sys.argv)
                save(path / PROVENANCE, provenance)
            # Last, so that a folder with settings also has provenance; a provenance without
            # settings belongs to a run that was killed before its start, and is replaced.
            if not is_begun:
                write_text(path / CONFIG, to_toml(config))
        except BaseException:
            if not is_begun:
                (path / LOCK).unlink(missing_ok=True)
            os.close(lock)
            raise
        return cls(path, config, provenance, lock, is_new=not is_begun)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_finished(self) -> bool:
        return (self.path / DONE).exists()

    @property
    def checkpoint_path(self) -> Path:
        return self.path / "checkpoint.pt"

    @property
    def weights_path(self) -> Path:
        return self.path / "weights.safetensors"

    @property
    def best_path(self) -> Path:
        return self.path / "best.safetensors"

    def epoch_path(self, epoch: int) -> Path:
        return epoch_path(self.path, epoch)

    def note(self, **facts: Any) -> None:  # noqa: ANN401 - any JSON value
        """Add facts to the provenance, e.g. the selected convolution backend."""
        notes = {**self.provenance.notes, **facts}
        self.provenance = replace(self.provenance, notes=notes)
        save(self.path / PROVENANCE, self.provenance)

    def log(self, record: Mapping[str, object]) -> None:
        """Append one line to the metrics; the record must have an `epoch`."""
        try:
            with (self.path / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                # The checkpoint that follows must not be saved without the line.
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(
                f"cannot write {self.path / METRICS} ({error.strerror}); free some disk space and "
                "run the same command again"
            ) from error

    def rewind(self, epoch: int) -> list[Record]:
        """Drop truncated lines and lines after an epoch; return the remaining ones."""
        records = [record for record in read_metrics(self.path) if record["epoch"] <= epoch]
        if epoch > 0 and (not records or records[-1]["epoch"] != epoch):
            raise RunError(
                f"{self.path / METRICS} ends before the checkpoint, which is of epoch {epoch}; "
                "restore it, or delete the folder to train again"
            )
        write_text(self.path / METRICS, "".join(json.dumps(record) + "\n" for record in records))
        return records

    def finish(self, summary: Mapping[str, object]) -> None:
        """Mark the run as finished, with a short summary."""
        write_json(self.path / DONE, {"date": now(), **summary})

    def discard(self) -> None:
        """Remove a run that never started, as if its settings had been rejected."""
        if self.is_new and not self.checkpoint_path.exists():
            for name in (CONFIG, METRICS, PROVENANCE, LOCK):
                (self.path / name).unlink(missing_ok=True)
            with suppress(OSError):
                self.path.rmdir()

    def close(self) -> None:
        os.close(self._lock)


@final
@dataclass(frozen=True)
class RunRecord:
    """Content of a run folder, for tables and figures."""

    path: Path
    config: Record
    """The settings as plain tables, with the run's `kind`."""
    provenance: Provenance
    metrics: list[Record]
    done: Record | None
    """The final summary; None if the run is not finished."""

    @property
    def kind(self) -> str:
        return self.config["kind"]

    @property
    def is_finished(self) -> bool:
        return self.done is not None

    @property
    def zero_filled_text(self) -> str:
        """Comparison of a reconstruction's last epoch with zero-filled images; empty if unknown."""
        plain = self.provenance.notes.get("val_ssim_zero_filled")
        if not isinstance(plain, float) or not self.metrics:
            return ""
        is_worse = self.metrics[-1].get("val_ssim", plain) < plain
        warning = ", which is better than this network: train it for longer" if is_worse else ""
        return f"; zero-filled images have SSIM {plain:.4f}{warning}"

    def __repr__(self) -> str:
        last = self.metrics[-1] if self.metrics else {}
        metrics = ", ".join(f"{key} {value:.6g}" for key, value in last.items())
        state = "finished" if self.is_finished else "not finished"
        return f"Run {self.path} ({self.kind}, {state}): {metrics or 'no epoch yet'}"

    def _repr_html_(self) -> str:
        from kscout.figures.notebook import training_html

        return training_html(self.path.name, self.kind, self.metrics)


def read_run(path: Path | str) -> RunRecord:
    """Read a run folder, finished or not."""
    path = Path(path)
    if not (path / CONFIG).is_file():
        raise RunError(
            f"{path} is not a run folder: it has no {CONFIG}; name one that `kscout train` wrote"
        )
    done = path / DONE
    return RunRecord(
        path=path,
        config=read_checked(Settings, path / CONFIG),
        provenance=_read_provenance(path),
        metrics=read_metrics(path),
        done=read_file(done, error=RunError) if done.exists() else None,
    )


def read_metrics(path: Path) -> list[Record]:
    """Return the metrics of a run folder; a truncated last line is omitted."""
    file = path / METRICS
    if not file.exists():
        return []
    records: list[Record] = []
    lines = read_bytes(file).split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = parse_json(line)
        except ValueError:
            record = None
        if _is_epoch(record):
            records.append(record)
        elif number < len(lines) - 1:
            raise RunError(f"{file}: line {number} is damaged; restore the file")
    return records


def _is_epoch(record: object) -> TypeGuard[Record]:
    """Return whether a line describes an epoch: numbers by name, with epoch and validation."""
    return (
        isinstance(record, dict)
        and type(record.get("epoch")) is int
        and all(isinstance(value, int | float) for value in record.values())
    )


def epoch_path(path: Path, epoch: int) -> Path:
    """Return the path of the weights of an epoch in a run folder."""
    return path / f"epoch-{epoch:04d}.safetensors"


def _read_provenance(path: Path) -> Provenance:
    try:
        return load(Provenance, path / PROVENANCE)
    except ConfigError as error:
        raise RunError(f"{path} is damaged ({error}); start a new run") from error


def _check_same_config(path: Path, config: Config) -> int | None:
    """Raise an error for other settings; return the saved number of epochs if it is smaller."""
    saved = read_file(path / CONFIG, error=RunError)
    here = tomllib.loads(to_toml(config))
    if saved.get("kind") != here["kind"]:
        raise RunError(
            f"{path} is a run of kind {saved.get('kind')!r}, not {here['kind']!r}; "
            "name another --out"
        )
    try:
        for name, section in saved.items():
            if isinstance(section, dict) and name in here:
                saved[name] = supported(section, here[name], section.get("name", name))
    except ConfigError as error:
        raise ConfigError(f"{path / CONFIG}: {error}") from error
    saved = _completed(saved, config)
    before, n_epochs = (table.get("training", {}).get("n_epochs") for table in (saved, here))
    is_longer = isinstance(before, int) and isinstance(n_epochs, int) and before < n_epochs
    if is_longer:
        saved["training"]["n_epochs"] = n_epochs
    if changes := differences(saved, here):
        raise RunError(
            f"{path} belongs to a run with other settings: {listed(changes)}; "
            "name another --out, or use its settings"
        )
    return before if is_longer else None


def _extended(
    path: Path, provenance: Provenance, config: Config, n_before: int | None
) -> Provenance:
    """Let a run train for more epochs than it was started with, and record the earlier number."""
    if n_before is None:
        return provenance
    earlier = [*provenance.notes.get("earlier_n_epochs", []), n_before]
    provenance = replace(provenance, notes={**provenance.notes, "earlier_n_epochs": earlier})
    (path / DONE).unlink(missing_ok=True)
    save(path / PROVENANCE, provenance)
    write_text(path / CONFIG, to_toml(config))
    return provenance


def _completed(saved: Record, config: Config) -> Record:
    """Return saved settings with defaults for those that their version lacked."""
    training = saved.get("training")
    if not isinstance(training, dict):
        return saved
    # Settings of other packages have no method by default.
    settings = config.training
    if isinstance(settings, ReconstructorTraining):
        defaults = to_toml(type(settings)())
    else:
        defaults = to_toml(type(settings)(method=settings.method))
    return {**saved, "training": {**tomllib.loads(defaults), **training}}


def _check_complete(path: Path) -> None:
    """Raise an error if a finished run lost its results."""
    missing = [name for name in ("weights.safetensors", METRICS) if not (path / name).is_file()]
    if not (path / DONE).exists():
        return
    read_checked(Done, path / DONE)
    if missing:
        raise RunError(
            f"{path} is finished, but its {missing[0]} is missing; restore it, or delete the "
            "folder to train again"
        )
    records = read_metrics(path)
    if not records or "val_ssim" not in records[-1]:
        raise RunError(f"{path} is finished, but its {METRICS} is damaged; restore it")


def _check_same_inputs(path: Path, provenance: Provenance, inputs: Mapping[str, str]) -> None:
    before = provenance.inputs
    for name in dict.fromkeys([*before, *inputs]):
        if before.get(name) != inputs.get(name):
            raise RunError(
                f"{path} was started with another {name} ({before.get(name)} there, "
                f"{inputs.get(name)} here); give the same one or name another --out"
            )
