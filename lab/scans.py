"""The bundled policies for heads on scans of people that no training used.

    python lab/scans.py scans/brain1.nii.gz scans/brain2.nii.gz --limit 12

Each file is imported twice: cropped to 128 x 128 pixels, and resampled to 1.6 mm before cropping.
The policies are compared with the bundled fixed order. Differences are averaged per person
(PERSON=FILE names the person of a scan), and intervals are over persons.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
from commands import kscout, parser
from results import record, result

from kscout.evaluation.statistics import confidence_interval
from kscout.evaluation.summaries.summary import read_summary
from kscout.provenance import commit

POLICIES = ("heads-base-ensemble", "heads-base-column")
FIXED = "heads-base-fixed"
IMPORTS = {"cut": (), "resampled": ("--resample", 1.6)}


def main() -> None:
    """Import, evaluate and record."""
    options = parser(__doc__)
    options.add_argument("scans", nargs="+", metavar="[PERSON=]FILE")
    options.add_argument("--limit", type=int, default=12, help="slices of each scan")
    asked = options.parse_args()
    differences: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    common = {"experiment": "scans-not-trained-on", "reconstruction": "frozen", "n_seeds": 1}
    common |= {"protocol": "paper", "n_initial": 16, "steps": 16, "n_cols": 128, "choice": "best"}
    common |= {"metric": "ssim", "statistic": "mean", "commit": commit()}
    rows = []
    for text in asked.scans:
        person, _, file = text.rpartition("=")
        name = Path(file).name.partition(".")[0]
        for how, words in IMPORTS.items():
            data, out = asked.work / f"{name}-{how}", asked.work / f"results-{name}-{how}"
            kscout("data", "import", file, *words, "--size", 128, "--pad", 128, "--out", data)
            named = [word for one in (*POLICIES, FIXED) for word in ("--policy", one)]
            where = ("--data", data, "--split", "train", "--reconstructor", "heads-unet")
            budget = ("--n-initial", 16, "--steps", 16, "--argmax", "--limit", asked.limit)
            command = kscout(
                *("evaluate", *where, *budget, "--protocol", "paper", *named),
                *("--reference", FIXED, "--device", asked.device, "--out", out),
            )
            summary = read_summary(out)
            values = {one.policy: one.ssim for one in summary.policies}
            for policy in POLICIES:
                difference = values[policy] - values[FIXED]
                differences[how, policy][person or name].append(difference)
                fields = {"method": policy, "value": values[policy], "difference_to": FIXED}
                fields |= {"difference": difference, "store": f"heads-{name}-{how}", "n_volumes": 1}
                fields |= {
                    "n_slices": summary.n_slices,
                    "device": summary.device,
                    "command": command,
                }
                rows.append(result(**common, **fields))
    for (how, policy), people in differences.items():
        means = np.array([np.mean(own) for own in people.values()])
        low, high = confidence_interval(means, list(people)) or (None, None)
        fields = {"store": f"heads-each-person-{how}", "n_volumes": len(people), "method": policy}
        fields |= {"difference_to": FIXED, "difference": float(means.mean())}
        rows.append(result(**common, **fields, low=low, high=high, command="python lab/scans.py"))
    record(rows)


if __name__ == "__main__":
    main()
