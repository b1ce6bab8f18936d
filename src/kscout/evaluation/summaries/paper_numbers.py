"""Numbers printed in arXiv 2010.16262, from `paper_numbers.toml`; their data are fastMRI.

Tables show them in columns labeled as the paper's. The data need a license, so these numbers are
not reproduced here.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, final

ARXIV = "arXiv:2010.16262"

Spread = tuple[float, float | None]
"""A mean and the standard deviation over seeds; None for a method without randomness."""


@final
@dataclass(frozen=True)
class PaperSetting:
    """One column of the paper's table of results."""

    name: str
    title: str
    n_cols: int
    n_initial: int
    steps: int

    @property
    def anatomy(self) -> str:
        """Anatomy of its data: knee or brain."""
        return self.name.partition("-")[0]


def _spreads(table: Mapping[str, Any]) -> dict[str, Spread]:
    pairs = {
        key: value if isinstance(value, list) else (value, None) for key, value in table.items()
    }
    return {key: (mean, std) for key, (mean, std) in pairs.items()}


_TEXT = (
    resources.files("kscout.evaluation.summaries").joinpath("paper_numbers.toml").read_text("utf-8")
)
_TABLES = tomllib.loads(_TEXT)

SETTINGS = {name: PaperSetting(name, **table) for name, table in _TABLES["settings"].items()}
SSIM = {setting: _spreads(table) for setting, table in _TABLES["ssim"].items()}
"""Final SSIM by setting and method."""
GAMMAS = {
    setting: {float(gamma): spread for gamma, spread in _spreads(table).items()}
    for setting, table in _TABLES["ssim_by_gamma"].items()
}
"""Final SSIM of the non-greedy method by setting and discount."""
SNR_EPOCHS: tuple[int, ...] = tuple(_TABLES["snr_epochs"])
SNR = {
    setting: {
        method: {epoch: (mean, std) for epoch, (mean, std) in zip(SNR_EPOCHS, row, strict=True)}
        for method, row in table.items()
    }
    for setting, table in _TABLES["snr"].items()
}
"""Signal-to-noise ratio of gradients by setting, method and epoch."""
ORACLE_PSNR = {setting: dict(table) for setting, table in _TABLES["oracle_psnr"].items()}
"""Final PSNR in dB by setting, of the oracles alone (appendix A.8)."""
NOT_SHOWN = (
    f"The numbers of {ARXIV} are not shown: they are for "
    + ", ".join(f"{x.n_initial} + {x.steps} of {x.n_cols} columns" for x in SETTINGS.values())
    + " of knees and brains, under protocol paper."
)
"""The note under a table whose anatomy, size, budget or protocol is not the paper's."""

_GREEDY = re.compile(r"(?:^|[-_/ ])greedy$")
_NON_GREEDY = re.compile(
    r"(?:^|[-_/ ])n(?:on[-_ ]?)?greedy(?:[-_=( ]*(?:gamma|g)?[-_= ]*([\d.]+)\)?)?$"
)


def method_of(name: str) -> str | None:
    """Return the paper's method for the name of a policy; None for others."""
    lower = name.lower()
    if _GREEDY.search(lower):
        return "greedy"
    if match := _NON_GREEDY.search(lower):
        return {1.0: "ngreedy", 0.9: "ngreedy-0.9"}.get(float(match.group(1) or 1))
    return lower if any(lower in table for table in SSIM.values()) else None


def gamma_of(name: str) -> float | None:
    """Return the discount in the name of a policy; None without one."""
    match = _NON_GREEDY.search(name.lower())
    return float(match.group(1) or 1) if match else None


def same_setting(n_cols: int | None, n_initial: int | None, steps: int) -> PaperSetting | None:
    """Return the paper's setting with this size, start and number of steps; None for others.

    Scores at other sizes or budgets are not comparable.
    """
    key = (n_cols, n_initial, steps)
    by_key = {(x.n_cols, x.n_initial, x.steps): x for x in SETTINGS.values()}
    return by_key.get(key)  # type: ignore[arg-type]
