"""Write trained weights as files of the model zoo.

    python lab/ship.py round runs/column --bits 5 \
        --out src/kscout/zoo/knee-general-16-column.safetensors.xz
    python lab/ship.py ensemble runs/ensemble --members knee-posterior knee-general-16-column \
        --out src/kscout/zoo/knee-general-16-ensemble.safetensors
    python lab/ship.py order results/fixed --out src/kscout/zoo/knee-general-16-fixed.safetensors

`round` shortens mantissas, so that files of 16-bit floats compress well; 7 bits are those of
bfloat16. `ensemble` replaces members by names of the zoo, which must be equal to the last bit.
`order` writes the fixed order of an evaluation.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from kscout import policies
from kscout.errors import ConfigError
from kscout.evaluation.summaries.summary import read_summary
from kscout.policies.__init__ import entry
from kscout.policies.ensemble import EnsemblePolicy
from kscout.weights import policy_file, read_weights, save_weights


def rounded(values: Float[Tensor, "..."], n_bits: int) -> Float[Tensor, "..."]:
    """Return 16-bit floats with mantissas of `n_bits`, fewer near zero."""
    mantissa, exponent = torch.frexp(values.float())
    steps = 2 ** (n_bits + 1)
    return torch.ldexp((mantissa * steps).round() / steps, exponent).half()


def round_network(path: Path, out: Path, n_bits: int) -> None:
    """Write rounded weights; single numbers stay as they are."""
    read = read_weights(policy_file(path))
    state = {
        name: rounded(value, n_bits) if value.numel() > 1 and value.is_floating_point() else value
        for name, value in read.state.items()
    }
    save_weights(out, replace(read, state=state))


def ship_ensemble(run: Path, members: Sequence[str], out: Path) -> None:
    """Write an ensemble whose members are named instead of contained."""
    policy = policies.load(run)
    if not isinstance(policy, EnsemblePolicy):
        raise ConfigError(f"{run} is not an ensemble; use `ship.py round` for networks")
    known = EnsemblePolicy(members=[policies.load(name) for name in members])
    states = [[one.state_dict() for one in both.policies] for both in (policy, known)]
    described = [[json.dumps(one) for one in both.members] for both in (policy, known)]
    for name, own, other, *words in zip(members, *states, *described, strict=True):
        is_same = own.keys() == other.keys() and len(set(words)) == 1
        if not is_same or not all(torch.equal(value, other[key]) for key, value in own.items()):
            raise ConfigError(f"{name} differs from the member of the ensemble; name another entry")
    shipped = EnsemblePolicy(
        members=[entry(name) for name in members],
        horizon=policy.horizon,
        order=policy.order,
        order_cols=policy.order_cols,
    )
    with torch.no_grad():
        shipped.weights.copy_(policy.weights)
        shipped.constants.copy_(policy.constants)
    shipped.gain_units = policy.gain_units
    extra = read_weights(policy_file(run)).extra
    kept_extra = {name: value for name, value in extra.items() if name != "gain_units"}
    policies.save(out, shipped, extra=kept_extra)


def ship_order(evaluation: Path, out: Path) -> None:
    """Write the order that an evaluation fitted on training slices as a policy."""
    (file,) = (evaluation / "orders").glob("*.json")
    read = read_weights(file)
    names = ("seed", "protocol", "n_initial", "horizon", "n_slices_per_step", "reconstructor")
    extra = {name: read.extra[name] for name in names}
    extra["store"] = read_summary(evaluation).store_fingerprint
    save_weights(out, replace(read, extra=extra))


def main() -> None:
    """Write an entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["round", "ensemble", "order"])
    parser.add_argument("run", type=Path, help="run folder, file or evaluation")
    parser.add_argument("--bits", type=int, default=7, choices=range(1, 11))
    parser.add_argument("--members", nargs="+", help="entries of the zoo, in order")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    if asked.kind == "round":
        round_network(asked.run, asked.out, asked.bits)
    elif asked.kind == "ensemble":
        ship_ensemble(asked.run, asked.members or (), asked.out)
    else:
        ship_order(asked.run, asked.out)


if __name__ == "__main__":
    main()
