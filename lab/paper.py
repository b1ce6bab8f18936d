"""The paper's experiments at half its size, as campaigns.

    python lab/paper.py
    python lab/paper.py --read campaigns/paper-half campaigns/paper-half-brain

Runs configs/paper-half.toml and configs/paper-half-brain.toml, and records their evaluations.
"""

from pathlib import Path

from commands import kscout, parser, summary_rows
from results import record

CONFIGS = Path(__file__).parents[1] / "configs"
STORES = {"paper-half": "knee-paper-half", "paper-half-brain": "brain-paper-half"}


def main() -> None:
    """Run the campaigns, unless their folders are given, and record."""
    options = parser(__doc__)
    options.add_argument("--read", type=Path, nargs="+", help="folders of complete campaigns")
    options.add_argument("--workers", type=int, default=2)
    asked = options.parse_args()
    folders = asked.read or [asked.work / name for name in STORES]
    for folder in folders:
        command = f"kscout campaign run configs/{folder.name}.toml"
        if not asked.read:
            config = CONFIGS / f"{folder.name}.toml"
            how = ("--workers", asked.workers, "--device", asked.device)
            kscout("campaign", "run", config, "--out", folder, *how)
        for path in sorted(folder.glob("evaluations/*/*/summary.json")):
            fields = {"store": STORES.get(folder.name, folder.name)}
            record(summary_rows("paper-half", path.parent, command, **fields))


if __name__ == "__main__":
    main()
