"""On CUDA every fused kernel computes what torch computes, and a graph what eager code does."""

from collections.abc import Iterator

import pytest
import torch
from scipy.stats import spearmanr

from fused_policies import scores_from
from golden_numbers import Golden
from kscout.acquisition.choose import column_log_probabilities, draw_columns, draw_unmeasured
from kscout.acquisition.episode import Simulator
from kscout.acquisition.plan import Plan
from kscout.acquisition.state import State, list_candidates
from kscout.config import AcquisitionSetting, Component, GreedyTraining, PolicyConfig
from kscout.core import Observation, Protocol
from kscout.data import contents
from kscout.data.makers.knee import draw_knee_volume
from kscout.data.slices import SliceSet
from kscout.evaluation.running.trajectories import trajectories
from kscout.kernels import kernels_are_on, registry
from kscout.kernels.registry import serving
from kscout.metrics import SsimScorer
from kscout.physics.fourier import column_ramps, ifft_rows
from kscout.physics.measurement import Pairs, measure_columns
from kscout.policies import POLICIES
from kscout.policies import load as load_policy
from kscout.policies.conv_fused import HalfPrecisionConvPolicy
from kscout.policies.views import in_precision
from kscout.reconstruction import RECONSTRUCTORS, load
from kscout.reconstruction.unet import HalfPrecisionUNet, UNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.algorithm import Learner
from kscout.training.algorithms.greedy import Greedy
from kscout.training.loop import TrainingLoop
from kscout.training.training_run import TrainingRun

pytestmark = pytest.mark.cuda
SSIM_TOLERANCE = 1e-4


@pytest.fixture(params=["on", "off"])
def switch(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run with compiled kernels, then without any."""
    with pytest.MonkeyPatch.context() as context:
        context.setenv("KSCOUT_KERNELS", request.param)
        forget()
        yield request.param
    forget()


def forget() -> None:
    kernels_are_on.cache_clear()
    registry._serving.cache_clear()


def trained_unet(golden: Golden) -> UNet:
    unet = RECONSTRUCTORS["unet"]()
    assert isinstance(unet, UNet)
    unet.network.load_state_dict(golden.state("unet_trained", "trained_state"))
    return unet.eval().requires_grad_(False)


def golden_slices(golden: Golden, size: int) -> SliceSet:
    edge = (128 - size) // 2
    images = golden("inputs", "images128")[:, edge : edge + size, edge : edge + size]
    return SliceSet.from_images(images.contiguous(), ("a",) * 3 + ("b",) * 3)


@pytest.mark.parametrize("n_cols", [18, 128])
def test_chosen_columns_equal_torch(generator: torch.Generator, n_cols: int) -> None:
    scores = 3 * torch.randn(300, n_cols, generator=generator)
    mask = torch.rand(300, n_cols, generator=generator) < 0.5
    selectable = torch.rand(7, n_cols, generator=generator) < 0.8
    mask[:, 3], selectable[:, 3] = False, True
    owner = torch.randint(7, (300,), generator=generator)
    uniforms = torch.rand(300, 8, generator=generator)
    given = [scores, mask, selectable, owner, uniforms]
    found = draw_unmeasured(*(x.cuda() for x in given))
    expected = draw_unmeasured(*given)
    assert torch.equal(found.blocked.cpu(), expected.blocked)
    # exp and log differ in the last bit between devices: once in many draws that decides.
    is_same = found.columns.cpu() == expected.columns
    assert (~is_same).sum() <= 2
    torch.testing.assert_close(
        found.log_probs.cpu()[is_same], expected.log_probs[is_same], atol=2e-6, rtol=0
    )


def test_drawn_columns_equal_those_of_torch_on_the_same_device(generator: torch.Generator) -> None:
    scores = torch.randn(64, 128, generator=generator).cuda()
    blocked = torch.rand(64, 128, generator=generator).cuda() < 0.5
    uniforms = torch.rand(64, 8, generator=generator).cuda()
    every = torch.ones(1, 128, dtype=torch.bool, device="cuda")
    owner = torch.zeros(64, dtype=torch.int64, device="cuda")
    found = draw_unmeasured(scores, blocked, every, owner, uniforms)
    log_probs = column_log_probabilities(scores, blocked)
    assert torch.equal(found.columns, draw_columns(log_probs, uniforms))


def states(owner: torch.Tensor, mask: torch.Tensor, device: str) -> State:
    """States of which only owners and masks matter."""
    number = torch.zeros(len(owner), device=device)
    image = number[:, None, None].expand(-1, 1, mask.shape[-1])
    given = (owner.to(device), torch.complex(image, image)[:, None], mask.to(device), image)
    return State(*given, number, number, number, n_left=12)


@pytest.mark.parametrize("n_states, n_draws", [(5, 3), (16, 8), (5000, 8), (20_000, 1)])
@pytest.mark.parametrize("n_per_slice", [1, 5])
def test_listed_columns_equal_torch(n_states: int, n_draws: int, n_per_slice: int) -> None:
    columns = torch.randint(12, (n_states * n_per_slice, n_draws))
    owner = torch.randint(9, (n_states,)).repeat_interleave(n_per_slice)
    mask = torch.rand(len(owner), 12) < 0.1
    on_cuda = states(owner, mask, "cuda")
    found_slot, found, n_found = list_candidates(columns.cuda(), on_cuda, n_per_slice)
    slot, pairs, n_distinct = list_candidates(columns, states(owner, mask, "cpu"), n_per_slice)
    assert torch.equal(found_slot.cpu(), slot) and n_found.cpu() == n_distinct
    for a, b in zip(found[:3], pairs[:3], strict=True):
        assert torch.equal(a.cpu(), b)


def test_slices_that_stay_on_the_host_are_handed_out_on_cuda(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = golden_slices(golden, 64)
    resident, index = slices.to("cuda"), torch.tensor([4, 0, 4])
    monkeypatch.setattr(contents, "RESIDENT_SHARE", 0)
    elsewhere = slices.to("cuda")
    assert resident.contents.is_resident and not elsewhere.contents.is_resident
    for one in (index, index.cuda()):
        pairs = zip(resident.batch(one).tensors(), elsewhere.batch(one).tensors(), strict=True)
        assert all(a.is_cuda and torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("protocol", ["paper", "blind"])
@pytest.mark.parametrize("memory_limit", [None, 10 * 512 * 64 * 64])
def test_acquisitions_equal_those_on_a_cpu(
    golden: Golden, protocol: Protocol, memory_limit: int | None, switch: str
) -> None:
    slices = golden_slices(golden, 64)
    columns = torch.tensor([[0, 3, 3, 9], [60, 3, 60, 60]]).repeat(3, 1)
    choice = torch.tensor([1, 3, 0, 2, 2, 1])
    states = []
    for device in ("cpu", "cuda"):
        batch = slices.to(device).batch(torch.arange(6, device=device))
        simulator = Simulator(batch, ZeroFilled(), protocol=protocol, memory_limit=memory_limit)
        start = simulator.start(8).repeated(2).rows(torch.arange(0, 12, 2, device=device))
        branches = simulator.branch(start, columns.to(device))
        followed, every = branches.follow(choice.to(device)), branches.every()
        last = simulator.acquire(every, torch.full((24,), 20, device=device))
        states.append([start, followed, every, last])
        torch.testing.assert_close(branches.score.flatten(), every.score, atol=0, rtol=0)
    for on_cpu, on_cuda in zip(*states, strict=True):
        assert torch.equal(on_cuda.owner.cpu(), on_cpu.owner)
        assert torch.equal(on_cuda.mask.cpu(), on_cpu.mask)
        for name in ("zero_filled", "image", "mean", "std", "score"):
            a, b = getattr(on_cuda, name).cpu(), getattr(on_cpu, name)
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


def test_measured_columns_equal_torch(generator: torch.Generator) -> None:
    kspace = torch.randn(3, 1, 21, 18, dtype=torch.complex64, generator=generator)
    zero_filled = torch.randn(4, 1, 21, 18, dtype=torch.complex64, generator=generator)
    mask = torch.rand(4, 18, generator=generator) < 0.3
    profiles = ifft_rows(kspace).transpose(-2, -1).contiguous()
    ramps = column_ramps(18)
    parent, owner = torch.tensor([0, 3, 1, 1]), torch.tensor([2, 0, 0, 1])
    pairs = Pairs(parent, torch.tensor([17, 0, 5, 9]), owner)
    expected = measure_columns(zero_filled, mask, profiles, ramps, pairs)
    count = torch.tensor(3, dtype=torch.int32, device="cuda")
    on_cuda = Pairs(pairs.parent.cuda(), pairs.column.cuda(), pairs.owner.cuda(), count)
    found = measure_columns(zero_filled.cuda(), mask.cuda(), profiles.cuda(), ramps.cuda(), on_cuda)
    for name in ("zero_filled", "mask", "magnitude", "mean", "std"):
        a, b = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(a[:3].cpu(), b[:3], atol=2e-6, rtol=1e-5)


def test_ssim_kernel_equals_matrix_products(generator: torch.Generator) -> None:
    target = torch.rand(2, 37, 50, generator=generator)
    image = torch.rand(5, 37, 50, generator=generator)
    rows = torch.tensor([1, 0, 0, 1, 1])
    scale, shift = torch.rand(2, 5, generator=generator)
    data_range = torch.tensor([1.0, 2.5])
    given = {"scale": scale, "shift": shift}
    expected = SsimScorer(target, data_range=data_range).score(image, rows, **given)
    found = SsimScorer(target.cuda(), data_range=data_range.cuda()).score(
        image.cuda(), rows.cuda(), **{name: value.cuda() for name, value in given.items()}
    )
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [64, 128])
def test_half_precision_unet_keeps_scores(golden: Golden, size: int) -> None:
    slices = golden_slices(golden, size)
    plain = Simulator(slices.batch(torch.arange(6)), trained_unet(golden))
    half = trained_unet(golden).frozen(precision="fp16", n_rows=size, n_cols=size, device="cuda")
    assert isinstance(half, HalfPrecisionUNet)
    fused = Simulator(slices.to("cuda").batch(torch.arange(6, device="cuda")), half)
    columns = torch.tensor([[0, 3, 3, 9, 20]]).expand(6, -1).contiguous()
    before = plain.branch(plain.start(size // 8), columns).score
    after = fused.branch(fused.start(size // 8), columns.cuda()).score.cpu()
    assert (before.mean() - after.mean()).abs() < 1e-4
    assert (before - after).abs().max() < 5e-4


def test_a_frozen_unet_serves_sizes_with_kernels_and_without(golden: Golden) -> None:
    unet = trained_unet(golden)
    view = trained_unet(golden).frozen(precision="auto", n_rows=96, n_cols=96, device="cuda")
    assert isinstance(view, HalfPrecisionUNet) and view.precision == "fp32"
    for size in (96, 64, 96, 128, 320, 192):
        images = torch.rand(3, size, size, generator=torch.Generator().manual_seed(size))
        slices = SliceSet.from_images(images, ["a", "b", "c"])
        plain = Simulator(slices.batch(torch.arange(3)), unet)
        own = Simulator(slices.to("cuda").batch(torch.arange(3, device="cuda")), view)
        before, after = (one.start(size // 8).score.cpu() for one in (plain, own))
        assert (before - after).abs().max() < 5e-4
    assert [size for size, kernels in view.by_size.items() if kernels is None] == [(96, 96)]


def test_half_precision_unet_keeps_the_order_of_gains_with_trained_weights() -> None:
    knees = [draw_knee_volume(seed=77, volume=number, n_slices=2, size=128) for number in range(3)]
    images = torch.cat([torch.from_numpy(knee.stored) for knee in knees])
    slices = SliceSet.from_images(images, tuple(str(number // 2) for number in range(6))).to("cuda")
    scores = []
    for precision in ("fp32", "fp16"):
        unet = load("knee-unet").frozen(precision=precision, n_rows=128, n_cols=128, device="cuda")
        simulator = Simulator(slices.batch(torch.arange(6, device="cuda")), unet)
        scores.append(simulator.score_every_column(simulator.start(16)))
    exact, fast = (x[:, x.isfinite().all(dim=0)] for x in scores)
    assert (exact.mean() - fast.mean()).abs() < SSIM_TOLERANCE
    pairs = zip(exact.tolist(), fast.tolist(), strict=True)
    correlations = [float(spearmanr(*pair).statistic) for pair in pairs]
    assert sum(correlations) / len(correlations) > 0.99


def test_same_input_gives_the_same_bits(golden: Golden) -> None:
    half = trained_unet(golden).frozen(precision="fp16", n_rows=64, n_cols=64, device="cuda")
    batch = golden_slices(golden, 64).to("cuda").batch(torch.arange(6, device="cuda"))
    first, second = (Simulator(batch, half).start(8) for _ in range(2))
    assert torch.equal(first.image, second.image) and torch.equal(first.score, second.score)


@pytest.mark.parametrize("n_cols", [64, 128, 256])
def test_fused_policy_scores_as_the_network_does(n_cols: int) -> None:
    torch.manual_seed(0)
    policy = POLICIES["conv"](n_cols=n_cols).cuda()
    assert serving("policy", policy.request) == "cuda"
    fused = HalfPrecisionConvPolicy(policy)
    mask = torch.zeros(5, n_cols, dtype=torch.bool, device="cuda")
    seen = Observation(image=2 * torch.randn(5, n_cols, n_cols, device="cuda"), mask=mask)
    for _ in range(2):
        with torch.no_grad():
            expected = policy(seen)
            assert (fused(seen) - expected).abs().max() < 2e-2 * expected.std()
            for parameter in policy.parameters():
                parameter.add_(0.01)
            fused.refresh()


@pytest.mark.parametrize(("n_cols", "n_images"), [(64, 5), (128, 37), (256, 11)])
def test_fused_policy_has_the_gradients_of_the_network(n_cols: int, n_images: int) -> None:
    torch.manual_seed(0)
    policy = POLICIES["conv"](n_cols=n_cols).cuda()
    assert serving("policy", policy.request) == "cuda"
    mask = torch.zeros(n_images, n_cols, dtype=torch.bool, device="cuda")
    image = 2 * torch.randn(n_images, n_cols, n_cols, device="cuda")
    seen = Observation(image=image, mask=mask)
    weight = 1e-4 * torch.randn(n_images, n_cols, device="cuda")
    fused = HalfPrecisionConvPolicy(policy)
    fused.keep(n_images, 2**33)
    with torch.no_grad():
        fused(seen)
    assert fused.kept is not None
    outputs = [features.values.clone() for features in fused.kept.features]
    flat, weights = fused.kept.flat[:n_images], fused.packed_dense.T
    dense = torch.mm(flat, weights, out_dtype=torch.float32) + fused.dense.bias
    found = []
    for scores in (
        scores_from(policy, image, outputs, dense),
        policy(seen),
        fused(seen),
        fused.recall(seen, 0),
    ):
        policy.zero_grad()
        (scores.log_softmax(-1) * weight).sum().backward()
        found.append({name: p.grad for name, p in policy.named_parameters() if p.grad is not None})
    same, plain, *fast = found
    for name, expected in same.items():
        for own in fast:
            if name.endswith("layers.0.bias"):
                assert not own[name].any()
            else:
                assert (own[name] - expected).norm() < 1e-2 * expected.norm(), name
                # Rounding moves some maxima of 2x2 pixels, hence the looser bound.
                assert (own[name] - plain[name]).norm() < 0.15 * plain[name].norm(), name


def test_graphed_training_equals_eager_training(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    slices = golden_slices(golden, 64).to("cuda")
    config = PolicyConfig(
        policy=Component("conv"),
        acquisition=AcquisitionSetting(n_initial=8, horizon=3),
        training=GreedyTraining(batch_size=4, n_trajectories=3, n_epochs=1, precision="fp32"),
    )
    unet = trained_unet(golden).cuda()
    weights = []
    for is_graphed in (True, False):
        torch.manual_seed(0)
        policy = POLICIES["conv"](n_cols=64).cuda()
        monkeypatch.setattr(Greedy, "is_pure", is_graphed)
        learner = Learner.of(policy, config)
        TrainingLoop(Greedy(learner, slices, unet), TrainingRun(learner)).take_steps(1)
        weights.append([p.detach().clone() for p in policy.parameters()])
    for a, b in zip(*weights, strict=True):
        torch.testing.assert_close(a, b, atol=5e-5, rtol=0)


def test_policies_are_evaluated_in_16_bit_with_the_scores_of_32() -> None:
    # So many that one slice whose columns are nearly alike does not decide: there rounding chooses
    # between them, and SSIM differs by up to .004, with either precision ahead.
    volumes = [draw_knee_volume(seed=78, volume=n, n_slices=8, size=128) for n in range(16)]
    images = torch.cat([torch.from_numpy(one.stored) for one in volumes])
    slices = SliceSet.from_images(images, ("a",) * len(images)).to("cuda")
    policy = load_policy("knee-base-greedy")
    plan = Plan(start=16, horizon=16, batch_size=len(slices))
    means = {}
    for precision in ("fp32", "fp16"):
        unet = load("knee-unet").frozen(
            precision=precision, n_rows=128, n_cols=128, device=slices.device
        )
        ((_, found),) = trajectories(policy, slices, unet, plan)
        means[precision] = found.ssim.mean(dim=(0, 1)).cpu()
        assert isinstance(in_precision(policy, unet.precision), HalfPrecisionConvPolicy) == (
            precision == "fp16"
        )
    assert (means["fp16"] - means["fp32"]).abs().max() < SSIM_TOLERANCE
