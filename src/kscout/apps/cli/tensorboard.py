"""Event files of a training for TensorBoard: settings, updates, epochs and pictures."""

from pathlib import Path
from typing import Any, final

from kscout.errors import ConfigError
from kscout.runs import CONFIG, Progress

PICTURE = "target, reconstruction, error and columns"
UPDATES = "updates"
"""Folder for means per update. After an interruption, events from a step on are replaced, and steps
of epochs and of updates differ."""


@final
class Events:
    """Writes the progress of a training.

    Args:
        folder: inside the run folder; None writes nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._writers: dict[Path, Any] = {}
        if folder is not None:
            _writer_class()

    def write(self, progress: Progress) -> None:
        """Write the means of an update, or the record and the picture of an epoch."""
        if self.folder is None:
            return
        # Opened late, because a run rejects a folder with other content.
        if not self._writers:
            self._write_settings(self.folder, progress.epoch)
        number = (progress.epoch - 1) * progress.n_steps + progress.step
        for name, mean in progress.means.items():
            self._opened(self.folder / UPDATES, number).add_scalar(name, float(mean), number)
        if not progress.record:
            return
        writer = self._opened(self.folder, progress.epoch)
        for name, value in progress.record.items():
            if name != "epoch" and isinstance(value, int | float):
                writer.add_scalar(name, value, progress.epoch)
        if progress.picture is not None:
            shown = progress.picture().cpu()
            writer.add_image(PICTURE, shown, progress.epoch, dataformats="HW")

    def close(self) -> None:
        """Write what is buffered."""
        for writer in self._writers.values():
            writer.close()

    def _write_settings(self, folder: Path, step: int) -> None:
        """Write the settings of the run, or of each seed."""
        run, writer = folder.parent, self._opened(folder, step)
        for config in [*run.glob(CONFIG), *sorted(run.glob(f"*/{CONFIG}"))]:
            text = f"```toml\n{config.read_text(encoding='utf-8')}```"
            writer.add_text(config.parent.name, text)

    def _opened(self, folder: Path, step: int) -> Any:  # noqa: ANN401 - a SummaryWriter
        if folder not in self._writers:
            self._writers[folder] = _writer_class()(str(folder), purge_step=step)
        return self._writers[folder]


def _writer_class() -> Any:  # noqa: ANN401 - of a package without types
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "--tensorboard needs a package that is not installed; pip install 'kscout[tensorboard]'"
        ) from error
    return SummaryWriter
