"""Commands that run as programs of their own: what they print to, what they read first, and where.

They are not forked from a process that has imported all, and start processes as for a user.
"""

import os
import random
import sys
from pathlib import Path
from typing import Any

from fuzz.commands import MAKE, TRAIN

_CAMPAIGN = ["campaign", "run", "tiny.toml", "--device", "cpu", "--no-report", "--workers"]
_QUICK = [["zoo"], ["data", "info", "store"], ["campaign", "status", "tiny.toml"]]
_MODULES = (
    *("json", "torch", "kscout", "sitecustomize", "usercustomize", "typer", "numpy", "scipy"),
    *("multiprocessing", "distributed", "subprocess", "random", "h5py", "pip", "ssl"),
)
_VARIABLES: list[tuple[tuple[str, str], ...]] = [
    (("TORCH_LOGS", "junk"),),
    (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")),
    (("PYTHONIOENCODING", "ascii"),),
    (("MPLBACKEND", "junk"), ("SOURCE_DATE_EPOCH", "x")),
]
"""Variables that Python and packages read before kscout begins."""


def program(draw: random.Random, folder: Path) -> tuple[str, list[str], dict[str, Any]]:
    """Return what is bad, a command, and fields of its case."""
    roll = draw.random()
    if roll < 0.4:
        stdout = draw.choice(("/dev/full", "pipe", "closed"))
        return stdout, draw.choice(_QUICK), {"stdout": stdout, "must_fail": stdout == "/dev/full"}
    if roll < 0.75:
        variables = draw.choice(_VARIABLES)
        return variables[0][0], draw.choice(_QUICK), {"environment": variables}
    for name in _MODULES:
        (folder / f"{name}.py").write_text("open(__file__ + '.part', 'w').close()\n")
    # The first run of the campaign fails, and takes the others with it, which would be long.
    text = (folder / "tiny.toml").read_text()
    (folder / "tiny.toml").write_text(text.replace("n_pools = 1", "n_pools = 9"))
    make = [*MAKE, "--volumes", "2,0,0", "--workers", "2"]
    words = draw.choice((make, [*TRAIN, "--seeds", "2"], [*_CAMPAIGN, draw.choice("01")]))
    return f"modules, {' '.join(words[:2])}", words, {}


def become(words: list[str], stdout: str) -> None:
    """Run a command in place of this process, as a shell does."""
    if stdout == "pipe":
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
    elif stdout == "closed":
        os.close(1)
    elif stdout:
        os.dup2(os.open(stdout, os.O_WRONLY), 1)
    # As the installed script, which does not begin its path of modules with the working folder.
    code = "import sys; sys.path[:] = filter(None, sys.path); "
    if "--seeds" in words:  # as on a GPU, where they are trained at once
        code += "from kscout.training import policy; policy._n_at_once = lambda *_: 2; "
    code += "from kscout.apps.cli import main; main()"
    os.execv(sys.executable, [sys.executable, "-c", code, *words])
