"""Numbers printed in arXiv 2010.16262: fastMRI data, never our own.

They stand beside ours in columns labeled as the paper's. The data behind them needs a license, so
they can be compared with, and not checked by, what runs here.
"""

import re
from dataclasses import dataclass
from typing import final

CITATION = "Bakker, van Hoof, Welling: Experimental design for MRI by greedy policy search, 2020"
ARXIV = "arXiv:2010.16262"

Spread = tuple[float, float | None]
"""A mean and the standard deviation over seeds, None where the method has no randomness."""


@final
@dataclass(frozen=True)
class PaperSetting:
    """One column of the paper's table of results."""

    name: str
    title: str
    n_cols: int
    n_initial: int
    steps: int


SETTINGS: dict[str, PaperSetting] = {
    setting.name: setting
    for setting in (
        PaperSetting("knee-base", "knee, base horizon", 128, 16, 16),
        PaperSetting("knee-long", "knee, long horizon", 128, 4, 28),
        PaperSetting("brain-base", "brain, base horizon", 256, 32, 16),
        PaperSetting("brain-long", "brain, long horizon", 256, 8, 28),
    )
}

NOT_SHOWN = (
    f"The numbers of {ARXIV} are not shown: they are for "
    + ", ".join(
        f"{setting.n_initial} + {setting.steps} of {setting.n_cols} columns"
        for setting in SETTINGS.values()
    )
    + ", under protocol paper."
)
"""The footnote of a table whose size, budget or protocol is not one of the paper's."""

SSIM: dict[str, dict[str, Spread]] = {
    "knee-base": {
        "random": (0.6948, 0.0003),
        "equispaced-one": (0.7049, None),
        "equispaced-two": (0.7064, None),
        "na-oracle": (0.7213, None),
        "oracle": (0.7379, None),
        "alphazero": (0.7203, 0.0008),
        "ngreedy": (0.7223, 0.0003),
        "greedy": (0.7230, 0.0001),
        "ngreedy-0.9": (0.7232, 0.0002),
    },
    "knee-long": {
        "random": (0.6602, 0.0006),
        "equispaced-one": (0.6880, None),
        "equispaced-two": (0.6918, None),
        "na-oracle": (0.7421, None),
        "oracle": (0.7623, None),
        "alphazero": (0.7403, 0.0009),
        "ngreedy": (0.7421, 0.0014),
        "greedy": (0.7442, 0.0007),
        "ngreedy-0.9": (0.7449, 0.0004),
    },
    "brain-base": {
        "random": (0.9020, 0.0001),
        "equispaced-one": (0.9038, None),
        "equispaced-two": (0.9016, None),
        "na-oracle": (0.9099, None),
        "oracle": (0.9141, None),
        "ngreedy": (0.9103, 0.0002),
        "greedy": (0.9106, 0.0001),
        "ngreedy-0.9": (0.9106, 0.0003),
    },
    "brain-long": {
        "random": (0.5820, 0.0006),
        "equispaced-one": (0.5862, None),
        "equispaced-two": (0.6026, None),
        "na-oracle": (0.8909, None),
        "oracle": (0.8872, None),
        "ngreedy": (0.8886, 0.0048),
        "greedy": (0.8917, 0.0002),
        "ngreedy-0.9": (0.8921, 0.0001),
    },
}

GAMMAS: dict[str, dict[float, Spread]] = {
    "knee-base": {
        0.0: (0.7231, 0.0002),
        0.1: (0.7230, 0.0001),
        0.2: (0.7230, 0.0001),
        0.5: (0.7230, 0.0002),
        0.8: (0.7231, 0.0002),
        0.9: (0.7232, 0.0002),
        0.95: (0.7232, 0.0001),
        0.99: (0.7228, 0.0004),
        1.0: (0.7223, 0.0003),
    },
    "knee-long": {
        0.0: (0.7447, 0.0002),
        0.1: (0.7446, 0.0010),
        0.2: (0.7445, 0.0003),
        0.5: (0.7443, 0.0006),
        0.8: (0.7445, 0.0004),
        0.9: (0.7449, 0.0004),
        0.95: (0.7446, 0.0002),
        0.99: (0.7437, 0.0007),
        1.0: (0.7421, 0.0014),
    },
}

SNR_EPOCHS = (1, 10, 20, 30, 40, 50)

_SNR_MEANS = {
    "knee-base": {
        "greedy": (2.21, 3.20, 3.91, 5.90, 2.80, 2.51),
        "ngreedy": (1.82, 1.17, 1.24, 1.08, 1.02, 1.02),
        "ngreedy-0.9": (2.22, 2.00, 2.12, 2.20, 1.59, 1.43),
    },
    "knee-long": {
        "greedy": (2.46, 5.90, 3.49, 4.78, 2.14, 2.15),
        "ngreedy": (1.68, 1.16, 1.04, 1.04, 1.06, 0.96),
        "ngreedy-0.9": (2.05, 2.00, 3.04, 2.24, 1.51, 1.29),
    },
    "brain-base": {
        "greedy": (6.70, 8.44, 11.21, 14.50, 14.91, 7.02),
        "ngreedy": (3.76, 2.48, 2.95, 2.02, 1.83, 1.45),
        "ngreedy-0.9": (5.31, 4.91, 5.32, 3.25, 3.08, 2.35),
    },
    "brain-long": {
        "greedy": (8.75, 12.10, 13.36, 16.16, 13.04, 4.56),
        "ngreedy": (1.57, 1.96, 1.18, 1.15, 1.04, 0.82),
        "ngreedy-0.9": (7.80, 6.28, 7.22, 6.50, 3.73, 2.98),
    },
}

_SNR_STDS = {
    "knee-base": {
        "greedy": (0.24, 0.10, 0.08, 0.12, 0.40, 0.03),
        "ngreedy": (0.01, 0.03, 0.07, 0.20, 0.12, 0.07),
        "ngreedy-0.9": (0.18, 0.22, 0.06, 0.12, 0.03, 0.10),
    },
    "knee-long": {
        "greedy": (0.25, 0.14, 0.27, 0.13, 0.08, 0.16),
        "ngreedy": (0.14, 0.18, 0.16, 0.20, 0.08, 0.16),
        "ngreedy-0.9": (0.11, 0.05, 0.06, 0.21, 0.12, 0.11),
    },
    "brain-base": {
        "greedy": (0.09, 0.06, 0.08, 0.09, 0.11, 0.07),
        "ngreedy": (0.22, 0.11, 0.23, 0.21, 0.14, 0.10),
        "ngreedy-0.9": (0.10, 0.08, 0.02, 0.05, 0.23, 0.00),
    },
    "brain-long": {
        "greedy": (0.20, 0.14, 0.19, 0.18, 0.04, 0.09),
        "ngreedy": (0.11, 0.07, 0.15, 0.12, 0.14, 0.08),
        "ngreedy-0.9": (0.10, 0.17, 0.19, 0.07, 0.26, 0.09),
    },
}

SNR: dict[str, dict[str, dict[int, Spread]]] = {
    setting: {
        method: dict(
            zip(SNR_EPOCHS, zip(means, _SNR_STDS[setting][method], strict=True), strict=True)
        )
        for method, means in methods.items()
    }
    for setting, methods in _SNR_MEANS.items()
}

ORACLE_PSNR = {
    "knee-base": {"na-oracle": 27.21, "oracle": 27.50},
    "knee-long": {"na-oracle": 25.59, "oracle": 26.13},
}

COST_DAYS: dict[str, dict[str, tuple[float, int]]] = {
    "knee-base": {"greedy": (1.0, 1), "ngreedy": (1.5, 1)},
    "knee-long": {"greedy": (1.5, 1), "ngreedy": (2.0, 2)},
    "brain-base": {"greedy": (2.0, 1), "ngreedy": (3.0, 2)},
    "brain-long": {"greedy": (4.5, 1), "ngreedy": (5.0, 4)},
}
"""Approximate training time in days, and how many GTX 1080 Ti it took."""

_GREEDY = re.compile(r"(?:^|[-_/ ])greedy$")
_NON_GREEDY = re.compile(
    r"(?:^|[-_/ ])n(?:on[-_ ]?)?greedy(?:[-_=( ]*(?:gamma|g)?[-_= ]*([\d.]+)\)?)?$"
)
_SAME = {
    "random": "random",
    "equispaced-one": "equispaced-one",
    "equispaced-two": "equispaced-two",
    "na-oracle": "na-oracle",
    "oracle": "oracle",
    "alphazero": "alphazero",
}


def method_of(name: str) -> str | None:
    """Return the paper's method that a policy's name in our tables stands for, None for others."""
    lower = name.lower()
    if lower in _SAME:
        return _SAME[lower]
    if _GREEDY.search(lower):
        return "greedy"
    found = _NON_GREEDY.search(lower)
    if found is None:
        return None
    gamma = float(found.group(1) or 1)
    return {1.0: "ngreedy", 0.9: "ngreedy-0.9"}.get(gamma)


def setting_of(n_cols: int | None, n_initial: int, steps: int) -> tuple[PaperSetting, bool]:
    """Return the paper's setting of this size, or the nearest in spirit, and whether it is equal.

    The nearest is a knee setting: long where the start is under a sixteenth of the columns.
    """
    same = same_setting(n_cols, n_initial, steps)
    if same is not None:
        return same, True
    is_long = n_cols is not None and n_initial * 16 <= n_cols
    return SETTINGS["knee-long" if is_long else "knee-base"], False


def same_setting(n_cols: int | None, n_initial: int | None, steps: int) -> PaperSetting | None:
    """Return the paper's setting of this size, start and number of steps, None for others.

    Scores at other sizes or budgets are other quantities, so that no column of the paper may stand
    beside them.
    """
    for setting in SETTINGS.values():
        if (setting.n_cols, setting.n_initial, setting.steps) == (n_cols, n_initial, steps):
            return setting
    return None
