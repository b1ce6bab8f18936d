"""A trained weighed policy as an entry of the zoo: its weights alone, members by name.

    python benchmarks/zoo_weighed.py runs/weighed --members knee-base-imagine knee-base-column \
        --out src/kscout/zoo/knee-base-weighed.safetensors

Members must be what the policy was weighed with, to the last bit. Networks of policies that imagine
are entries of their own, which `zoo_round.py` writes.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from kscout import policies
from kscout.errors import ConfigError
from kscout.policies.weighed import WeighedPolicy, entry
from kscout.weights import policy_file, read_weights


def by_name(policy: WeighedPolicy, names: Sequence[str]) -> WeighedPolicy:
    """Return the same policy, whose members are entries of the zoo."""
    known = WeighedPolicy(members=names)
    states = [[one.state_dict() for one in both.policies] for both in (policy, known)]
    told = [[json.dumps(one) for one in both.members] for both in (policy, known)]
    for name, own, other, *words in zip(names, *states, *told, strict=True):
        is_same = own.keys() == other.keys() and len(set(words)) == 1
        if not is_same or not all(torch.equal(value, other[key]) for key, value in own.items()):
            raise ConfigError(f"{name} is not what the policy was weighed with; name another entry")
    found = WeighedPolicy(
        members=[entry(name) for name in names],
        horizon=policy.horizon,
        order=policy.order,
        order_cols=policy.order_cols,
    )
    with torch.no_grad():
        found.weights.copy_(policy.weights)
        found.constants.copy_(policy.constants)
    found.gain_units = policy.gain_units
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Write an entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--members", nargs="+", required=True, help="entries of the zoo, in order")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args(arguments)
    policy = policies.load(wanted.run)
    if not isinstance(policy, WeighedPolicy):
        parser.error(f"{wanted.run} is no weighed policy; zoo_round.py is for networks")
    extra = read_weights(policy_file(wanted.run)).extra
    kept = {name: value for name, value in extra.items() if name != "gain_units"}
    policies.save(wanted.out, by_name(policy, wanted.members), extra=kept)


if __name__ == "__main__":
    main()
