"""What `kscout analyze ceiling` found beside dense gains, as a table of docs/dense.md."""

from pathlib import Path

from dense_records import RECORDS, content
from imagine_records import reached
from tables import markdown, number

from kscout.evaluation.summaries.summarize import gap_closed

_CEILING_OF = "dense-large"
"""What the leaderboard calls the policy that the ceiling's estimates stand beside."""
_GIVEN_UP = "posterior-residual"
_MANY = 300
"""Training slices that weights spread over where they hardly tell them apart."""


def ceiling(folder: Path = RECORDS / "ceiling") -> str:
    """Return what `kscout analyze ceiling` found at the end of acquisitions."""
    rows, settings = (content(folder / f"ceiling{x}.json") for x in ("", ".settings"))
    # An estimate that was given up lay far below the other.
    last = [x for x in rows if x["step"] == settings["steps"] and x["policy"] != _GIVEN_UP]
    learned = {Path(path).name.rpartition("-seed")[0] for path in settings["policies"]}
    lines = [
        (
            f"`{_CEILING_OF if one['policy'] in learned else one['policy']}`",
            *(number(one["ssim"]), f"{100 * one['gap_closed']:.0f} %"),
            f"{number(one['difference'], is_signed=True)} "
            f"({number(one['low'])} to {number(one['high'])})",
        )
        for one in last
    ]
    head = ("policy", "SSIM", "gap closed", "minus NA oracle")
    n_wide = sum(one["policy"] == "posterior" and one["effective_slices"] > _MANY for one in rows)
    return (
        f"{settings['limit']} test slices, {settings['n_initial']} + {settings['steps']} columns, "
        f"{settings['pool']:,} training slices of which {settings['candidates']} are tried at a "
        f"decision:\n\n{markdown(head, lines)}\n"
        f"So training slices are a poor stand-in for the posterior: at {n_wide} of "
        f"{settings['steps']} steps the weights that gain most on training slices spread over "
        f"more than {_MANY} of them, close to the mean gain of all, and a learned policy passes "
        f"the estimate.\n{look_ahead(folder, {one['policy']: one['ssim'] for one in last})}\n"
        f"{reached()}"
    )


def look_ahead(folder: Path, marks: dict[str, float]) -> str:
    """Return what policies reached on the same slices alone, and by a look-ahead over them.

    Args:
        folder: of look_ahead.json; nothing is told where there is none.
        marks: SSIM by policy; where a look-ahead is among them, its own line tells enough.
    """
    is_told = any(name.startswith("look-ahead") for name in marks)
    if is_told or not (folder / "look_ahead.json").is_file():
        return ""
    records = content(folder / "look_ahead.json")
    bounds, lines = (marks["na-oracle"], marks["oracle"]), []
    for one in records["policies"]:
        scores = [(number(x), gap_closed(x, *bounds)) for x in (one["alone"], one["ssim"])]
        low, high = map(number, one["interval"])
        lines.append(
            (
                *(f"`{one['policy']}`", one["weights"]),
                *(f"{text}, {100 * (closed or 0):.0f} %" for text, closed in scores),
                f"{number(one['difference'], is_signed=True)} ({low} to {high})",
                number(min(one["by_step"]), is_signed=True),
            )
        )
    n_clear = sum(one["interval"][0] > 0 for one in records["policies"])
    head = (
        *("policy", "weights", "alone: SSIM, gap closed", "with look-ahead", "difference"),
        "its lowest at any step",
    )
    return (
        f"\nThe same slices with a look-ahead of {records['columns']} columns, where weights are "
        f"fitted on {records['n_fit']} training slices, in single precision on a CPU; all that was "
        f"tried on these slices:\n\n{markdown(head, lines)}\n"
        f"{n_clear} of {len(lines)} have an interval above zero.\n"
    )
