"""A trained network as an entry of the zoo, in fewer bits: weights that compress well.

    python benchmarks/zoo_round.py runs/imagine-4x \
        --out src/kscout/zoo/knee-base-imagine.safetensors.xz
    python benchmarks/zoo_round.py runs/unet-sizes --bits 6 \
        --out src/kscout/zoo/knee-sizes-unet.safetensors.xz

Mantissas of 7 bits are those of bfloat16, with which a GPU may multiply. What learns on top of a
network, such as a policy, is to learn with the rounded one. Files hold 16-bit floats.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.weights import policy_file, read_weights, save_weights


def rounded(values: Float[Tensor, "..."], n_bits: int) -> Float[Tensor, "..."]:
    """Return 16-bit floats whose mantissas have so many bits, fewer near zero."""
    mantissa, exponent = torch.frexp(values.float())
    steps = 2 ** (n_bits + 1)
    return torch.ldexp((mantissa * steps).round() / steps, exponent).half()


def round_network(path: Path, out: Path, n_bits: int) -> None:
    """Write weights, of a pair those of its policy; numbers that stand alone stay as they are."""
    read = read_weights(policy_file(path))
    state = {
        name: rounded(value, n_bits) if value.numel() > 1 and value.is_floating_point() else value
        for name, value in read.state.items()
    }
    save_weights(out, replace(read, state=state))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write an entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="run folder or file")
    parser.add_argument("--bits", type=int, default=7, help="of mantissas")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args(arguments)
    if not 1 <= wanted.bits <= 10:
        parser.error(f"--bits is {wanted.bits}; 16-bit floats have 1 to 10")
    round_network(wanted.run, wanted.out, wanted.bits)


if __name__ == "__main__":
    main()
