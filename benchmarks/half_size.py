"""Write down what the campaigns at half the paper's size scored, in half_size.json.

kscout campaign run configs/paper-half.toml --workers 3
kscout campaign run configs/paper-half-brain.toml --workers 2
python benchmarks/half_size.py campaigns/paper-half campaigns/paper-half-brain
python benchmarks/tables.py
"""

import argparse
from pathlib import Path

from leaderboard import LeaderboardRow, row_of, write_leaderboard

from kscout.errors import DataError
from kscout.evaluation.summaries.summary import SUMMARY, Summary, read_summary

RECORD = Path(__file__).with_name("half_size.json")
HORIZONS = {
    (64, 8, 8): "half-base",
    (64, 2, 14): "half-long",
    (256, 32, 16): "brain-half-base",
    (256, 8, 28): "brain-half-long",
}
"""Names by columns of the images, columns at the start, and steps."""


def rows_of(summary: Summary, folder: str) -> list[LeaderboardRow]:
    """Return a record per policy of one evaluation, best first.

    Args:
        summary: of the evaluation.
        folder: name of the campaign.
    """
    key = (summary.n_cols, summary.n_initial, summary.steps)
    if key not in HORIZONS:
        raise DataError(f"{key[0]} columns, {key[1]} + {key[2]} is not in {list(HORIZONS)}")
    command = f"kscout campaign run configs/{folder}.toml"
    return [
        row_of(summary, entry, store=folder, horizon=HORIZONS[key], command=command)
        for entry in summary.ranked
    ]


def main() -> None:
    """Read the campaigns' evaluations, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaigns", type=Path, nargs="+", help="Folders of campaigns.")
    rows = []
    for campaign in parser.parse_args().campaigns:
        for path in sorted(campaign.glob(f"evaluations/*/*/{SUMMARY}")):
            rows += rows_of(read_summary(path.parent), campaign.name)
    write_leaderboard(rows, RECORD)
    print(f"wrote {RECORD}, {len(rows)} rows")


if __name__ == "__main__":
    main()
