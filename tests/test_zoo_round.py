"""`benchmarks/zoo_round.py`: networks in fewer bits."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kscout import policies, reconstruction
from kscout.policies.imagine import ImaginePolicy
from kscout.reconstruction.unet import UNet


def test_networks_are_rounded_to_what_a_gpu_multiplies_with(
    scripts: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    policy = ImaginePolicy(n_channels=4, n_pools=1, n_draws=3)
    policy.range_per_std.fill_(4.1)
    smallest = 2.0**-17
    with torch.no_grad():
        largest = max(policy.parameters(), key=torch.numel).view(-1)
        largest[:3] = torch.tensor([1.01, 0.99, 0.3]) * smallest
    path, out = tmp_path / "network.safetensors", tmp_path / "entry.safetensors.xz"
    policies.save(path, policy)
    scripts("zoo_round").main([str(path), "--out", str(out)])
    for name, value in policies.load(out).state_dict().items():
        whole = policy.state_dict()[name]
        expected = whole.bfloat16().float() if whole.numel() > 1 else whole
        # Numbers of 16 bit have fewer digits near zero.
        is_plain = expected.abs() >= smallest
        assert torch.equal(value[is_plain], expected[is_plain])
        torch.testing.assert_close(value, expected, rtol=0, atol=2.0**-25)


def test_a_reconstruction_is_rounded_likewise(
    scripts: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    unet, run = UNet(n_channels=2, n_pools=1, dropout=0.0), tmp_path / "run"
    run.mkdir()
    reconstruction.save(run / "weights.safetensors", unet)
    out, script = tmp_path / "entry.safetensors.xz", scripts("zoo_round")
    script.main([str(run), "--bits", "6", "--out", str(out)])
    found = reconstruction.load(out).state_dict()
    for name, value in unet.state_dict().items():
        wanted = script.rounded(value, 6).float() if value.numel() > 1 else value
        assert torch.equal(found[name], wanted)


@pytest.mark.parametrize("n_bits", [1, 6, 10])
def test_mantissas_have_as_many_bits_as_were_asked_for(
    scripts: Callable[[str], ModuleType], n_bits: int
) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    found = scripts("zoo_round").rounded(values, n_bits)
    assert found.dtype == torch.half
    # Half a step of a mantissa, whose leading bit is not written down.
    assert ((found - values).abs() <= values.abs() * 2.0 ** -(n_bits + 1)).all()
    mantissas = torch.frexp(found.float()).mantissa.abs()
    assert len(mantissas.unique()) <= 2**n_bits
    assert torch.equal(scripts("zoo_round").rounded(found, n_bits), found)


def test_bits_that_16_bit_floats_do_not_have_are_refused(
    scripts: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        scripts("zoo_round").main(["run", "--bits", "11", "--out", str(tmp_path / "entry")])
    assert "--bits is 11; 16-bit floats have 1 to 10" in capsys.readouterr().err
