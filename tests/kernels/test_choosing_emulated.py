"""The kernels between the networks, run thread by thread on the CPU, agree with the plain code."""

import pytest
import torch
from emulated import HAS_COMPILER, emulate, nan
from torch import Tensor

from kscout.acquisition.choose import draw_unmeasured
from kscout.acquisition.episode import _distinct
from kscout.kernels.choosing import FILE
from kscout.metrics import SsimScorer, blur_matrix
from kscout.physics.candidates import Pairs, measure_columns
from kscout.physics.fourier import column_ramps, ifft_rows

pytestmark = pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")

Values = list[Tensor | int]


def empty(*shape: int) -> Tensor:
    return torch.full(shape, -99)


def count(n: int) -> Tensor:
    return torch.tensor(n, dtype=torch.int32)


@pytest.mark.parametrize("n_cols", [9, 33, 128])
def test_chosen_columns_are_those_that_torch_draws(n_cols: int) -> None:
    generator = torch.Generator().manual_seed(n_cols)
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

    blocked = torch.zeros_like(mask)
    columns, log_probs = empty(n_states, n_draws), nan(n_states, n_draws)
    given = [scores, mask, selectable, owner, uniforms]
    values: Values = [*given, blocked, columns, log_probs, n_cols, n_draws]
    emulate(FILE, "choose", (), (n_states, 1, 1), 32, values)
    assert torch.equal(blocked, expected.blocked)
    assert torch.equal(columns, expected.columns)
    torch.testing.assert_close(log_probs, expected.log_probs, atol=2e-6, rtol=0)


@pytest.mark.parametrize("n_states, n_draws", [(3, 5), (17, 8), (70, 1)])
def test_each_state_and_column_is_listed_once(n_states: int, n_draws: int) -> None:
    generator = torch.Generator().manual_seed(n_draws)
    columns = torch.randint(6, (n_states, n_draws), generator=generator)
    owner = torch.randint(1, 4, (n_states,), generator=generator)
    slot, pairs, n_distinct = _distinct(columns, owner)

    n = columns.numel()
    found, parent, column, owners = empty(n_states, n_draws), empty(n), empty(n), empty(n)
    n_found = count(-1)
    values: Values = [columns, owner, found, parent, column, owners, n_found, n_states, n_draws]
    # Two warps, so that a block takes several turns.
    emulate(FILE, "distinct", (2,), (1, 1, 1), 64, values)
    assert n_found == n_distinct < n or n_draws == 1
    assert torch.equal(found, slot)
    for a, b in zip((parent, column, owners), pairs[:3], strict=True):
        assert torch.equal(a, b), "also what comes after the last: it is read"


@pytest.mark.parametrize("has_choice", [False, True])
def test_following_copies_the_chosen_states_whole(has_choice: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    n_rows, n_cols, n_choices = 7, 9, 3 if has_choice else 1
    states = [
        torch.tensor([3, 1, 4, 2]),
        torch.randn(4, 1, n_rows, n_cols, dtype=torch.complex64, generator=generator),
        torch.rand(4, n_cols, generator=generator) < 0.5,
        torch.randn(4, n_rows, n_cols, generator=generator),
        *torch.randn(3, 4, generator=generator),
    ]
    slot = torch.randint(4, (5, n_choices), generator=generator)
    choice = torch.randint(n_choices, (5,), generator=generator)
    taken = [torch.zeros(5, *x.shape[1:], dtype=x.dtype) for x in states]
    values: Values = [
        slot,
        choice,
        n_choices,
        *states,
        *taken,
        n_rows * n_cols,
        n_rows * n_cols,
        n_cols,
    ]
    emulate(FILE, "follow", (), (5, 2, 1), 32, values)
    selection = slot[torch.arange(5), choice if has_choice else 0]
    for a, b in zip(taken, states, strict=True):
        assert torch.equal(a, b[selection])


def test_measuring_a_column_changes_image_mask_and_statistics() -> None:
    generator = torch.Generator().manual_seed(0)
    n_rows, n_cols, n = 21, 35, 4
    kspace = torch.randn(3, 1, n_rows, n_cols, dtype=torch.complex64, generator=generator)
    zero_filled = torch.randn(4, 1, n_rows, n_cols, dtype=torch.complex64, generator=generator)
    mask = torch.rand(4, n_cols, generator=generator) < 0.5
    profiles = ifft_rows(kspace).transpose(-2, -1).contiguous()
    ramps = column_ramps(n_cols)
    parent, owner = torch.tensor([0, 3, 1, 1]), torch.tensor([2, 0, 0, 1])
    column = torch.tensor([17, 0, 34, 9])
    expected = measure_columns(zero_filled, mask, profiles, ramps, Pairs(parent, column, owner))

    out, new_mask = torch.zeros_like(zero_filled), torch.zeros_like(mask)
    image, mean, std = nan(n, n_rows, n_cols), nan(n), nan(n)
    pairs, made = [parent, owner, column], [out, new_mask, image, mean, std]
    values: Values = [zero_filled, mask, profiles, ramps, *pairs, *made, count(3), n_rows, n_cols]
    emulate("candidates.cu", "measure", (3,), (n, 1, 1), 96, values)
    for a, b in zip(made, expected, strict=True):
        torch.testing.assert_close(a[:3], b[:3], atol=2e-6, rtol=1e-5)
    assert mean[3] == std[3] == 0 and image[3].isnan().all(), "beyond the count nothing is made"


@pytest.mark.parametrize("is_by_target", [False, True])
def test_scores_are_those_of_matrix_products(is_by_target: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    n_rows, n_cols, n = 37, 34, 3
    target = torch.rand(2, n_rows, n_cols, generator=generator)
    image = torch.rand(n, n_rows, n_cols, generator=generator)
    rows = torch.tensor([1, 0, 0])
    scale, shift = torch.rand(2, 2 if is_by_target else n, generator=generator)
    scorer = SsimScorer(target, data_range=torch.tensor([1.0, 2.5]))
    expected = scorer.score(image, rows, scale=scale, shift=shift, is_by_target=is_by_target)

    sums, means, n_tiles = nan(n, 4), nan(n), 4
    window = blur_matrix(11, "paper", torch.float32, torch.device("cpu"))[5]
    given = [image, scale, shift, rows, target, scorer.mean, scorer.variance, scorer.c1, scorer.c2]
    values: Values = [*given, window, sums, count(2), n_rows, n_cols, int(is_by_target)]
    emulate("ssim.cu", "score", (), (n_tiles, n, 1), 256, values)
    averaged: Values = [sums, means, count(2), n_tiles, n_rows * n_cols]
    emulate("ssim.cu", "average", (), (n, 1, 1), 32, averaged)
    torch.testing.assert_close(means[:2], expected[:2], atol=1e-5, rtol=0)
    assert means[2] == 0
