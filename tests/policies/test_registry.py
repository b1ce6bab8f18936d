"""Claims about every policy of the table, and about building them by name."""

import math
from dataclasses import replace

import pytest
import torch

from golden_numbers import Golden
from kscout.acquisition.choose import best_columns, choose_columns, column_log_probabilities
from kscout.acquisition.episode import Simulator
from kscout.contracts import check_policy
from kscout.core import Measurement, Observation, Policy, Reconstructor, Truth
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.physics.fourier import fft2c
from kscout.physics.sampling import center_columns, center_mask
from kscout.policies import POLICIES, build
from kscout.policies.fixed import one_sided_columns, two_sided_columns
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled

N_BATCH, N_ROWS, N_COLS, N_INITIAL, HORIZON = 3, 12, 16, 4, 5
FITTED = {
    "fixed": {"n_cols": N_COLS, "order": [3, 14, 0]},
    "na-oracle": {"n_cols": N_COLS, "order": [15, 2]},
    "conv": {"n_cols": N_COLS, "n_rows": N_ROWS, "n_channels": 2, "n_hidden": 7},
    "alphazero": {"n_cols": N_COLS, "n_rows": N_ROWS, "n_channels": 2, "n_hidden": 7},
    "density": {"n_cols": N_COLS},
    "posterior": {"n_channels": 2, "n_pools": 1, "n_draws": 2},
    "column": {
        **{"n_cols": N_COLS, "horizon": HORIZON, "n_initial": 2, "width": 8, "n_layers": 1},
        **{"n_heads": 2, "channels": [8], "image_channels": [8], "n_bins": 2},
    },
}


def tiny_policy(name: str) -> Policy:
    if name == "ensemble":
        members = [tiny_policy(one) for one in ("posterior", "column")]
        return POLICIES[name](members=members, horizon=HORIZON)
    torch.manual_seed(0)
    if name in FITTED:
        policy = POLICIES[name](**FITTED[name])
        for parameter in policy.parameters():
            # Networks may start with layers of zeros, which would hide what they see.
            torch.nn.init.normal_(parameter, std=0.3)
        return policy
    return build(name, n_cols=N_COLS, n_initial=N_INITIAL, horizon=HORIZON)


def observation(name: str, generator: torch.Generator) -> Observation:
    mask = torch.rand(N_BATCH, N_COLS, generator=generator) < 0.4
    image = torch.randn(N_BATCH, N_ROWS, N_COLS, generator=generator)
    truth = Truth(
        kspace_error=torch.rand(N_BATCH, N_COLS, generator=generator),
        candidate_scores=torch.rand(N_BATCH, N_COLS, generator=generator),
        score=torch.rand(N_BATCH, generator=generator),
    )
    seen = Observation(image=image, mask=mask, truth=truth if POLICIES[name].needs_target else None)
    if not POLICIES[name].needs_measurement:
        return seen
    measured = Measurement.of(fft2c(image)[:, None], mask)
    return replace(seen, zero_filled=measured.zero_filled, mean=measured.mean, std=measured.std)


def simulator(images: torch.Tensor, kspace: torch.Tensor | None = None) -> Simulator:
    torch.manual_seed(1)
    batch = SliceSet.from_images(images, ["a"] * len(images)).batch(torch.arange(len(images)))
    if kspace is not None:
        batch = replace(batch, kspace=kspace)
    reconstructor: Reconstructor = UNet(n_channels=2, n_pools=1).eval()
    return Simulator(batch, reconstructor)


@pytest.mark.parametrize("name", POLICIES)
def test_policy_keeps_the_contract(name: str) -> None:
    check_policy(tiny_policy(name), n_rows=N_ROWS, n_cols=N_COLS)


@pytest.mark.parametrize("name", POLICIES)
def test_unmeasured_kspace_changes_the_choices_of_oracles_alone(
    name: str, generator: torch.Generator
) -> None:
    images = torch.rand(N_BATCH, N_ROWS, N_COLS, generator=generator)
    whole = simulator(images)
    noise = torch.randn(whole.batch.kspace.shape, dtype=torch.complex64, generator=generator)
    unmeasured = ~center_mask(N_COLS, N_INITIAL)
    # Targets change too: all that the scanner has not measured is another patient's.
    other = simulator(images.flip(0), whole.batch.kspace + 9 * noise * unmeasured)
    policy = tiny_policy(name)
    uniforms = torch.rand(N_BATCH, generator=generator)
    for draws in (None, uniforms):
        chosen = []
        for engine in (whole, other):
            state = engine.start(N_INITIAL)
            with torch.no_grad():
                seen = engine.observe(policy, state, n_left=None)
                scores = policy.bind(engine.context)(seen)
            chosen.append(choose_columns(policy, scores, engine.blocked(state), draws))
        assert torch.equal(*chosen) is (name not in ("oracle", "spectral-oracle"))


def test_exactly_these_policies_ask_for_the_target_and_are_stochastic() -> None:
    oracles = {name for name, policy in POLICIES.items() if policy.needs_target}
    assert oracles == {"na-oracle", "oracle", "spectral-oracle"}
    stochastic = {name for name, policy in POLICIES.items() if policy.is_stochastic}
    assert stochastic == {"random", "variable-density", "conv", "alphazero", "column", "density"}


def test_random_is_uniform_over_unmeasured_columns(generator: torch.Generator) -> None:
    seen = observation("random", generator)
    probabilities = column_log_probabilities(tiny_policy("random")(seen), seen.mask).exp()
    expected = (~seen.mask) / (~seen.mask).sum(dim=1, keepdim=True)
    torch.testing.assert_close(probabilities, expected)


def test_variable_density_is_the_documented_polynomial() -> None:
    policy = POLICIES["variable-density"](n_cols=11, power=3.0)
    mask = torch.zeros(1, 11, dtype=torch.bool)
    scores = policy(Observation(image=torch.zeros(1, 2, 11), mask=mask))
    found = column_log_probabilities(scores, mask).exp()[0].tolist()
    density = [(1 - abs(column - 5) / 6) ** 3 for column in range(11)]
    assert found == pytest.approx([value / math.fsum(density) for value in density], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "given", "order"),
    [
        ("center-out", {}, [3, 2, 4, 1, 5, 0, 6]),
        ("fixed", {"order": [6, 3]}, [6, 3, 2, 4, 1, 5, 0]),
    ],
)
def test_columns_that_no_order_names_are_taken_from_the_center_outwards(
    name: str, given: dict[str, list[int]], order: list[int]
) -> None:
    seen = Observation(image=torch.zeros(2, 2, 7), mask=torch.zeros(2, 7, dtype=torch.bool))
    scores = POLICIES[name](n_cols=7, **given)(seen)
    assert scores.argsort(descending=True).tolist() == [order] * 2


@pytest.mark.parametrize(
    "order, sentence", [([1, 7], "column 7 of the order"), ([2, 5, 2], "column 2 occurs twice")]
)
def test_impossible_orders_are_refused(order: list[int], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        POLICIES["fixed"](n_cols=7, order=order)


@pytest.mark.parametrize("name", ["oracle", "spectral-oracle"])
def test_an_oracle_without_truth_says_so(name: str, generator: torch.Generator) -> None:
    seen = observation(name, generator)
    with pytest.raises(ConfigError, match="was given no ground truth"):
        tiny_policy(name)(replace(seen, truth=None))
    if name == "oracle":
        assert seen.truth is not None
        blind = replace(seen, truth=replace(seen.truth, candidate_scores=None))
        with pytest.raises(ConfigError, match="no candidate scores"):
            tiny_policy(name)(blind)


@pytest.mark.parametrize("name", FITTED)
def test_a_policy_that_needs_data_is_not_built_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' cannot be built from its name"):
        build(name, n_cols=N_COLS, n_initial=N_INITIAL, horizon=HORIZON)


def test_the_spectral_oracle_takes_the_column_with_the_largest_true_error(
    generator: torch.Generator,
) -> None:
    images = torch.rand(N_BATCH, N_ROWS, N_COLS, generator=generator)
    batch = SliceSet.from_images(images, ["a"] * N_BATCH).batch(torch.arange(N_BATCH))
    engine = Simulator(batch, ZeroFilled())
    state, policy = engine.start(N_INITIAL), tiny_policy("spectral-oracle")
    scores = policy(engine.observe(policy, state, n_left=None))
    # By definition of the transform, one column at a time.
    wave = torch.arange(N_COLS) - N_COLS // 2
    difference = (engine.images(state) - batch.target).to(torch.complex64)
    for column in (1, 11):
        phase = -2j * math.pi * wave * (column - N_COLS // 2) / N_COLS
        profile = (difference * phase.exp()).sum(dim=-1) / math.sqrt(N_COLS)
        # The transform along the rows keeps the energy of a column.
        energy = profile.abs().square().sum(dim=-1)
        torch.testing.assert_close(scores[:, column], energy, rtol=1e-3, atol=1e-5)


def test_oracle_ties_go_to_the_lowest_column(generator: torch.Generator) -> None:
    seen = observation("oracle", generator)
    scores = torch.full((N_BATCH, N_COLS), 0.5)
    scores[:, 3], scores[:, 9], scores[:, 12] = 0.7, 0.7 + 5e-7, 0.69999
    truth = Truth(kspace_error=scores, candidate_scores=scores, score=scores[:, 0])
    policy, mask = tiny_policy("oracle"), torch.zeros_like(seen.mask)
    best = choose_columns(policy, policy(replace(seen, truth=truth)), mask, None)
    assert best.tolist() == [3] * N_BATCH


def test_a_class_with_an_attribute_of_0_2_gets_an_error_that_names_the_new_one() -> None:
    with pytest.raises(ConfigError, match="Old sets needs_judge, which is needs_gain_estimator"):
        type("Old", (Policy,), {"needs_judge": True})


SETTINGS = [(64, 8, 8, 8), (128, 8, 16, 16), (128, 32, 4, 28), (256, 8, 32, 16), (256, 32, 8, 28)]


def acquired(policy: Policy, *, n_cols: int, n_initial: int, horizon: int) -> list[int]:
    mask, order = center_mask(n_cols, n_initial)[None], []
    for _ in range(horizon):
        scores = policy(Observation(image=torch.zeros(1, 3, n_cols), mask=mask))
        order.append(int(best_columns(scores, mask)))
        mask = mask.clone()
        mask[0, order[-1]] = True
    return order


@pytest.mark.parametrize("sides", ["one", "two"])
@pytest.mark.parametrize("n_cols, acceleration, n_initial, horizon", SETTINGS)
def test_columns_are_the_references_in_order(
    golden: Golden, sides: str, n_cols: int, acceleration: int, n_initial: int, horizon: int
) -> None:
    expected = golden("masks", f"{sides}sided_r{n_cols}_a{acceleration}_s{horizon}")
    policy = build(f"equispaced-{sides}", n_cols=n_cols, n_initial=n_initial, horizon=horizon)
    found = acquired(policy, n_cols=n_cols, n_initial=n_initial, horizon=horizon)
    assert found == expected.tolist()


@pytest.mark.parametrize("n_cols, n_initial", [(9, 1), (10, 3), (17, 4), (32, 5)])
def test_every_budget_that_fits_gives_different_free_columns(n_cols: int, n_initial: int) -> None:
    free = set(range(n_cols)) - set(center_columns(n_cols, n_initial))
    n_left = center_columns(n_cols, n_initial).start
    for horizon in range(len(free) + 1):
        sizes = {"n_cols": n_cols, "n_initial": n_initial, "horizon": horizon}
        both = two_sided_columns(**sizes)
        assert len(set(both)) == horizon and set(both) <= free
        if horizon <= n_left:
            one = one_sided_columns(**sizes)
            assert len(set(one)) == horizon and set(one) <= set(range(n_left))


@pytest.mark.parametrize("sides, horizon", [("one", 9), ("two", 17)])
def test_a_budget_that_does_not_fit_is_refused(sides: str, horizon: int) -> None:
    with pytest.raises(ConfigError, match=f"equispaced-{sides} cannot place"):
        build(f"equispaced-{sides}", n_cols=20, n_initial=4, horizon=horizon)
