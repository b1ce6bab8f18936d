"""The paper's network gives the reference's numbers, also with compiled and kept features."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from golden_numbers import Golden, with_formula_weights
from kscout.acquisition.choose import column_log_probabilities
from kscout.core import Observation, Policy
from kscout.errors import ConfigError
from kscout.kernels.registry import compiled_kernels
from kscout.policies import POLICIES
from kscout.policies.conv import ConvPolicy
from kscout.policies.conv_cpu import InstanceNormLast, KeptConvPolicy, convolve_on_cpu
from kscout.reconstruction.unet import UNet
from kscout.training.convolution import can_compile

TOLERANCE = 1e-4


def small(golden: Golden) -> ConvPolicy:
    policy = ConvPolicy(n_cols=64, n_channels=4, n_blocks=4, n_hidden=32)
    policy.load_state_dict(golden.state("policy", "small_state"))
    return policy


def probabilities(policy: Policy, image: Tensor, mask: Tensor) -> Tensor:
    with torch.no_grad():
        scores = policy(Observation(image=image, mask=mask))
    return column_log_probabilities(scores, mask).exp()


@pytest.mark.parametrize("n_cols, key", [(128, "knee"), (256, "brain")])
def test_the_defaults_are_the_papers_networks(golden: Golden, n_cols: int, key: str) -> None:
    count = sum(p.numel() for p in POLICIES["conv"](n_cols=n_cols).parameters())
    assert count == int(golden("unet", f"params_policy_{key}"))


def test_the_same_seed_initializes_the_reference_weights(golden: Golden) -> None:
    torch.manual_seed(0)
    state = ConvPolicy(n_cols=64, n_channels=4, n_blocks=4, n_hidden=32).state_dict()
    expected = golden.state("policy", "small_state")
    assert list(state) == list(expected)
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_small_network_gives_the_reference_scores(golden: Golden) -> None:
    image, mask = golden("policy", "recon0"), golden("policy", "mask0").bool()
    with torch.no_grad():
        scores = small(golden)(Observation(image=image, mask=mask))
    torch.testing.assert_close(scores, golden("policy", "logits0"), atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(
        probabilities(small(golden), image, mask),
        golden("policy", "probs0")[:, 0],
        atol=TOLERANCE,
        rtol=0,
    )


def test_knee_network_gives_the_reference_probabilities(golden: Golden) -> None:
    policy = with_formula_weights(POLICIES["conv"](n_cols=128), seed=321)
    mask = golden("inputs", "mask_r128_a8")[:2].bool()
    found = probabilities(policy, golden("policy", "recon128"), mask)
    expected = golden("policy", "probs128_formula_seed321")[:, 0]
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_brain_network_gives_the_reference_probabilities(golden: Golden) -> None:
    unet = UNet().network
    unet.load_state_dict(golden.state("unet_trained", "trained_state"))
    with torch.no_grad():
        image = unet(golden("policy", "zf256")[:, None])[:, 0]
    policy = with_formula_weights(POLICIES["conv"](n_cols=256), seed=322)
    mask = torch.zeros(1, 256, dtype=torch.bool)
    mask[:, golden("masks", "center_r256_a8")] = True
    found = probabilities(policy, image, mask)
    expected = golden("policy", "probs256_formula_seed322")[:, 0]
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "n_cols, n_blocks, n_channels",
    [(8, 0, 256), (16, 1, 128), (45, 2, 64), (64, 3, 32), (96, 4, 16), (320, 5, 8), (512, 6, 4)],
)
def test_other_sizes_follow_the_rule(n_cols: int, n_blocks: int, n_channels: int) -> None:
    with torch.device("meta"):
        policy = ConvPolicy(n_cols=n_cols)
    assert (policy.n_blocks, policy.n_channels) == (n_blocks, n_channels)


def test_odd_oblong_images_get_one_score_per_column() -> None:
    policy = ConvPolicy(n_cols=21, n_rows=13, n_channels=2, n_hidden=5)
    mask = torch.zeros(3, 21, dtype=torch.bool)
    assert policy(Observation(image=torch.randn(3, 13, 21), mask=mask)).shape == (3, 21)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"n_cols": 16, "n_blocks": -1}, "n_blocks = -1"),
        ({"n_cols": 16, "n_blocks": 5}, "16x16 cannot be halved 5 times"),
        ({"n_cols": 64, "n_rows": 7}, "7x64 cannot be halved 3 times"),
    ],
)
def test_impossible_networks_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ConvPolicy(**arguments)


def test_images_of_another_size_are_refused_with_both_sizes() -> None:
    policy = ConvPolicy(n_cols=16, n_channels=2)
    seen = Observation(image=torch.zeros(1, 17, 16), mask=torch.zeros(1, 16, dtype=torch.bool))
    with pytest.raises(ConfigError, match=r"16x16 was given images of 17x16"):
        policy(seen)


def test_instance_norm_is_torchs_in_double_precision(generator: torch.Generator) -> None:
    features = torch.randn(3, 5, 7, 4, generator=generator, dtype=torch.float64) + 2
    features = features.contiguous(memory_format=torch.channels_last).requires_grad_()
    torch.testing.assert_close(InstanceNormLast.apply(features), F.instance_norm(features))
    assert torch.autograd.gradcheck(InstanceNormLast.apply, (features,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("n_rows", "n_cols", "n_channels"), [(16, 16, 16), (40, 24, 3), (37, 29, 32)]
)
def test_features_and_gradients_are_those_of_the_modules(
    n_rows: int, n_cols: int, n_channels: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Compiled in 32 bit, where channels fit; in 64 bit by torch."""
    if dtype == torch.float32 and not can_compile():
        pytest.skip("this machine has no C compiler that knows it")
    torch.manual_seed(3)
    size = {"n_cols": n_cols, "n_rows": n_rows, "n_channels": n_channels, "n_blocks": 2}
    policy = ConvPolicy(**size, n_hidden=4).to(dtype)
    blocks = [policy.channel_layer, *policy.down_sample_layers]
    image = torch.randn(3, n_rows, n_cols, generator=generator, dtype=dtype)
    if dtype == torch.float64:
        # Flat parts, as outside a body, where many maxima are equal.
        image[:, :, n_cols // 2 :] = 0
    found = convolve_on_cpu(image, [block.get_submodule("layers.0") for block in blocks])
    weights = torch.randn(found.shape, generator=generator, dtype=dtype)
    (found * weights).sum().backward()
    gradients = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    assert len(gradients) == 2 * len(blocks)
    policy.zero_grad()
    policy.double()
    expected = nn.Sequential(*blocks)(image[:, None].double())
    is_exact = dtype == torch.float64
    torch.testing.assert_close(found.double(), expected, atol=1e-7 if is_exact else 5e-5, rtol=0)
    (expected * weights).sum().backward()
    for name, gradient in gradients.items():
        exact = policy.get_parameter(name).grad
        assert exact is not None
        # Biases before a norm have none but rounding's.
        scale = exact.abs().max() if "weight" in name else 1.0
        assert (gradient - exact).abs().max() <= (1e-8 if is_exact else 1e-4) * scale, name


N_ROWS, N_COLS = 20, 28


@pytest.fixture
def policy() -> ConvPolicy:
    if not can_compile():
        pytest.skip("this machine has no C compiler that knows it")
    torch.manual_seed(5)
    size = {"n_rows": N_ROWS, "n_cols": N_COLS, "n_channels": 16, "n_blocks": 2}
    return ConvPolicy(**size, n_hidden=12)


@pytest.fixture
def image(generator: torch.Generator) -> Tensor:
    return torch.randn(5, N_ROWS, N_COLS, generator=generator)


def see(image: Tensor) -> Observation:
    return Observation(image=image, mask=torch.zeros(len(image), N_COLS, dtype=torch.bool), step=0)


def gradients(policy: ConvPolicy) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    return found


def test_images_of_two_steps_go_back_together(
    policy: ConvPolicy, image: Tensor, generator: torch.Generator
) -> None:
    view = KeptConvPolicy(policy)
    weights = torch.randn(5, N_COLS, generator=generator)
    view.keep(5, 2**28)
    with torch.no_grad():
        chosen = torch.cat([view(see(image[:2])), view(see(image[2:]))])
    for part in (slice(0, 4), slice(4, 5)):
        scores = view.recall(see(image[part]), part.start)
        torch.testing.assert_close(scores.detach(), chosen[part])
        (scores * weights[part]).sum().backward()
    found = gradients(policy)
    exact = policy.double()(see(image.double()))
    torch.testing.assert_close(chosen.double(), exact, atol=2e-5, rtol=0)
    (exact * weights).sum().backward()
    for name, expected in gradients(policy).items():
        # Biases before a norm have none but rounding's.
        scale = 1.0 if name.endswith("layers.0.bias") else expected.abs().max()
        assert (found[name] - expected).abs().max() <= 1e-4 * scale, name


def test_memory_is_what_was_said_and_stays(policy: ConvPolicy) -> None:
    view = KeptConvPolicy(policy)
    view.keep(6, 2**28)
    assert view.kept is not None
    tensors = [view.kept.flat, view.kept.hidden]
    for layer in view.kept.layers:
        tensors += [layer.convolved, layer.normalized.output]
    assert view.n_bytes_kept(6) == sum(x.numel() * x.element_size() for x in tensors)
    place = view.kept.flat.data_ptr()
    view.keep(4, 2**28)
    assert view.kept is not None and view.kept.flat.data_ptr() == place


def test_changed_weights_are_seen_after_the_next_keep(policy: ConvPolicy, image: Tensor) -> None:
    view = KeptConvPolicy(policy)
    view.keep(5, 2**28)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(0.75)
        view.keep(5, 2**28)
        torch.testing.assert_close(view(see(image)), policy(see(image)))


def test_without_kernels_it_is_the_policy_itself(policy: ConvPolicy, image: Tensor) -> None:
    view = KeptConvPolicy(policy)
    with compiled_kernels(enabled=False):
        view.keep(5, 2**28)
        assert view.kept is None
        assert torch.equal(view(see(image)), policy(see(image)))
