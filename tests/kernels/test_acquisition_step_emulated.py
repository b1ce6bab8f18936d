"""The kernels between the networks, run thread by thread on the CPU, agree with the plain code."""

import pytest
import torch
from emulated import Emulated

from kscout import metrics
from kscout.acquisition.choose import draw_unmeasured
from kscout.acquisition.state import State, list_candidates
from kscout.kernels import acquisition_step
from kscout.metrics import SsimScorer
from kscout.physics import measurement
from kscout.physics.fourier import column_ramps, ifft_rows
from kscout.physics.measurement import Pairs, measure_columns

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiler")]


@pytest.fixture(autouse=True)
def emulated_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what would launch a kernel run it here, so that its arguments are checked too."""
    for module in (acquisition_step, measurement, metrics):
        monkeypatch.setattr(module, "compile_kernel", Emulated)
    for module in (acquisition_step, measurement):
        # Few, so that a block takes several turns.
        monkeypatch.setattr(module, "_N_WARPS", 2)


@pytest.mark.parametrize("n_cols", [9, 128])
def test_chosen_columns_are_those_that_torch_draws(n_cols: int, generator: torch.Generator) -> None:
    n_states, n_draws = 5, 37
    scores = 4 * torch.randn(n_states, n_cols, generator=generator)
    mask = torch.rand(n_states, n_cols, generator=generator) < 0.5
    selectable = torch.rand(3, n_cols, generator=generator) < 0.8
    owner = torch.tensor([2, 0, 1, 1, 0])
    mask[:, 4], selectable[:, 4] = False, True
    uniforms = torch.rand(n_states, n_draws, generator=generator)
    # The ends of the range, where a column of probability zero could be drawn by mistake.
    uniforms[:, 0], uniforms[:, 1] = 0, 1 - 2**-24
    expected = draw_unmeasured(scores, mask, selectable, owner, uniforms)
    blocked, columns, log_probs = acquisition_step.choose(scores, mask, selectable, owner, uniforms)
    assert torch.equal(blocked, expected.blocked)
    assert torch.equal(columns, expected.columns)
    torch.testing.assert_close(log_probs, expected.log_probs, atol=2e-6, rtol=0)


def state_of(owner: torch.Tensor, n_cols: int) -> State:
    """States of which only owners and masks matter."""
    n = len(owner)
    image, number = torch.zeros(n, 1, n_cols), torch.zeros(n)
    mask = torch.zeros(n, n_cols, dtype=torch.bool)
    zero_filled = torch.complex(image, image)[:, None]
    return State(owner, zero_filled, mask, image, number, number, number, n_left=n_cols)


@pytest.mark.parametrize("n_states, n_draws", [(3, 5), (17, 8), (70, 1)])
def test_each_state_and_column_is_listed_once(
    n_states: int, n_draws: int, generator: torch.Generator
) -> None:
    columns = torch.randint(6, (n_states, n_draws), generator=generator)
    owner = torch.randint(1, 4, (n_states,), generator=generator)
    slot, pairs, n_distinct = list_candidates(columns, state_of(owner, 6), 1)
    found_slot, listed, n_found = acquisition_step.list_distinct(columns, owner)
    assert n_found == n_distinct and (n_found < columns.numel() or n_draws == 1)
    assert torch.equal(found_slot, slot)
    # Also what comes after the last: it is read.
    assert torch.equal(listed, torch.stack(pairs[:3]))


@pytest.mark.parametrize("n_choices", [1, 3])
def test_following_copies_the_chosen_states_whole(
    n_choices: int, generator: torch.Generator
) -> None:
    n_rows, n_cols = 7, 9
    states = [
        torch.tensor([3, 1, 4, 2]),
        torch.randn(4, 2, n_rows, n_cols, dtype=torch.complex64, generator=generator),
        torch.rand(4, n_cols, generator=generator) < 0.5,
        torch.randn(4, n_rows, n_cols, generator=generator),
        *torch.randn(3, 4, generator=generator),
    ]
    slot = torch.randint(4, (5, n_choices), generator=generator)
    choice = torch.randint(n_choices, (5,), generator=generator)
    taken = acquisition_step.follow(slot, choice if n_choices > 1 else None, states)
    selection = slot[torch.arange(5), choice]
    for a, b in zip(taken, states, strict=True):
        assert torch.equal(a, b[selection])


def test_measuring_a_column_changes_image_mask_and_statistics(generator: torch.Generator) -> None:
    n_rows, n_cols = 21, 35
    kspace = torch.randn(3, 1, n_rows, n_cols, dtype=torch.complex64, generator=generator)
    zero_filled = torch.randn(4, 1, n_rows, n_cols, dtype=torch.complex64, generator=generator)
    mask = torch.rand(4, n_cols, generator=generator) < 0.5
    profiles = ifft_rows(kspace).transpose(-2, -1).contiguous()
    ramps = column_ramps(n_cols)
    parent, owner = torch.tensor([0, 3, 1, 1]), torch.tensor([2, 0, 0, 1])
    n_pairs = torch.tensor(3, dtype=torch.int32)
    pairs = Pairs(parent, torch.tensor([17, 0, 34, 9]), owner, n_pairs)
    expected = measure_columns(zero_filled, mask, profiles, ramps, pairs)
    found = measurement._measure_on_cuda(zero_filled, mask, profiles, ramps, pairs)
    for name in ("zero_filled", "mask", "magnitude", "mean", "std"):
        a, b = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(a[:3], b[:3], atol=2e-6, rtol=1e-5)
    assert found.mean[3] == found.std[3] == 0, "beyond the count nothing is made"


@pytest.mark.parametrize("is_by_target", [False, True])
def test_scores_are_those_of_matrix_products(
    is_by_target: bool, generator: torch.Generator
) -> None:
    n_rows, n_cols, n = 37, 34, 3
    target = torch.rand(2, n_rows, n_cols, generator=generator)
    image = torch.rand(n, n_rows, n_cols, generator=generator)
    rows = torch.tensor([1, 0, 0])
    scale, shift = torch.rand(2, 2 if is_by_target else n, generator=generator)
    scorer = SsimScorer(target, data_range=torch.tensor([1.0, 2.5]))
    expected = scorer.score(image, rows, scale=scale, shift=shift, is_by_target=is_by_target)
    n_images = torch.tensor(2, dtype=torch.int32)
    found = scorer._score_on_cuda(image, rows, (scale, shift), is_by_target, n_images)
    torch.testing.assert_close(found[:2], expected[:2], atol=1e-5, rtol=0)
    assert found[2] == 0, "beyond the count nothing is scored"
