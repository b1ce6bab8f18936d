"""Our greedy batch against the plain implementation alone: `python benchmarks/yardstick.py 64 128`.

The yardstick itself is `kscout.bench.plain`, inside the package so that `kscout bench` finds it
wherever it is installed. This prints one JSON object: the comparison by image size.
"""

import argparse
import json

import torch

from kscout.bench.engine import Engine
from kscout.bench.yardstick import compare_with_plain
from kscout.device import describe_device, resolve_device


def main() -> None:
    """Compare at every size asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=int, nargs="*", default=[64, 128])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--slices", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    device = resolve_device(options.device)
    found = {
        str(size): compare_with_plain(
            Engine.build(size, options.slices, device),
            horizon=options.steps,
            q=8,
        )
        for size in options.sizes
    }
    print(json.dumps({"device": describe_device(device), "torch": torch.__version__, **found}))


if __name__ == "__main__":
    main()
