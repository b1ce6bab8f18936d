"""A store whose import was interrupted after its second volume."""

import os
from pathlib import Path


class _InterruptedError(Exception):
    pass


def leave_unfinished(folder: Path, words: list[str]) -> Path:
    """Begin an import as its command would; return the hidden folder that it leaves."""
    from kscout.data import ImportSettings, import_folder
    from kscout.data.store import unfinished_path

    def stop(done: int, total: int, name: str) -> None:
        if done == 2:
            raise _InterruptedError

    source, out = Path(words[2]), Path(words[words.index("--out") + 1])
    before = Path.cwd()
    os.chdir(folder)
    try:
        import_folder(source, out, ImportSettings(size=16), stop)
    except _InterruptedError:
        pass
    finally:
        os.chdir(before)
    return folder / unfinished_path(out)
