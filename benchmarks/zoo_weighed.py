"""A trained weighed policy as an entry of the zoo: its weights alone, members by name.

    python benchmarks/zoo_weighed.py runs/weighed --members knee-base-imagine knee-base-column \
        --out src/kscout/zoo/knee-base-weighed.safetensors

Members must be what the policy was weighed with, to the last bit. Networks of policies that imagine
are entries of their own; `--round` writes one, in as many bits as the GPU multiplies it with:

    python benchmarks/zoo_weighed.py runs/imagine-4x --round \
        --out src/kscout/zoo/knee-base-imagine.safetensors.xz
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from kscout import policies
from kscout.errors import ConfigError
from kscout.policies.weighed import WeighedPolicy, entry
from kscout.weights import policy_file, read_weights, save_weights


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


def round_network(path: Path, out: Path) -> None:
    """Write weights in 16 bit, of which the mantissa has 7 as in bfloat16, fewer near zero."""
    read = read_weights(policy_file(path))
    state = {
        name: value.to(torch.bfloat16).half() if value.numel() > 1 else value
        for name, value in read.state.items()
    }
    save_weights(out, replace(read, state=state))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write an entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--members", nargs="+", default=[], help="entries of the zoo, in order")
    parser.add_argument("--round", action="store_true", help="write a network in fewer bits")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args(arguments)
    if wanted.round:
        round_network(wanted.run, wanted.out)
        return
    policy = policies.load(wanted.run)
    if not isinstance(policy, WeighedPolicy):
        parser.error(f"{wanted.run} is no weighed policy; --round is for networks")
    extra = read_weights(policy_file(wanted.run)).extra
    kept = {name: value for name, value in extra.items() if name != "gain_units"}
    policies.save(wanted.out, by_name(policy, wanted.members), extra=kept)


if __name__ == "__main__":
    main()
