"""What a column is worth at the end: by hand, and that it never ends below the fixed order."""

import pytest
import torch

from coil_slices import coil_batch
from kscout.acquisition.completion import Completion
from kscout.acquisition.episode import Simulator
from kscout.data.slices import SliceSet
from kscout.reconstruction.sense import Sense
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.estimators.labels import carried_on, mean_values
from kscout.training.fixed_order import fit_fixed_order

N_ROWS, N_COLS, N_INITIAL, HORIZON = 14, 11, 1, 4


@pytest.fixture(scope="module")
def slices() -> SliceSet:
    """Return images of few bright pixels: what a column adds depends much on the others."""
    generator = torch.Generator().manual_seed(1)
    images = (torch.rand(9, N_ROWS, N_COLS, generator=generator) > 0.8).float()
    return SliceSet.from_images(images, [str(n) for n in range(9)])


@pytest.fixture(scope="module")
def simulator(slices: SliceSet) -> Simulator:
    return Simulator(slices.batch(torch.arange(len(slices))), ZeroFilled())


def order_of(slices: SliceSet) -> list[int]:
    found = fit_fixed_order(slices, ZeroFilled(), n_initial=N_INITIAL, horizon=HORIZON)
    return found.order


def test_masks_are_filled_along_the_order_with_what_is_free() -> None:
    completion = Completion.of([4, 2, 0], 5, torch.device("cpu"))
    assert completion.ranked.tolist() == [4, 2, 0, 1, 3]
    # An order that is too short goes on from the center outwards.
    assert Completion.of([4], 5, torch.device("cpu")).ranked.tolist() == [4, 2, 1, 3, 0]
    mask = torch.tensor([[0, 0, 1, 0, 0], [0, 0, 1, 0, 0]], dtype=torch.bool)
    selectable = torch.ones(2, 5, dtype=torch.bool)
    selectable[1, 4] = False
    found = completion.masks(mask, torch.tensor([2, 2]), selectable)
    assert found.int().tolist() == [[1, 0, 1, 0, 1], [1, 1, 1, 0, 0]]


def test_values_are_scores_of_the_completed_masks(slices: SliceSet, simulator: Simulator) -> None:
    order = order_of(slices)
    completion = Completion.of(order, N_COLS, torch.device("cpu"))
    state = simulator.start(N_INITIAL)
    columns = torch.tensor([[0, order[1], 9]]).expand(len(slices), -1)
    found = completion.values(simulator, state, columns, torch.full((len(slices),), 2))
    center = N_COLS // 2

    def score(*taken: int) -> torch.Tensor:
        mask = torch.zeros(len(slices), N_COLS, dtype=torch.bool)
        mask[:, [center, *taken]] = True
        return simulator.start_from(mask).score

    fixed = score(order[0], order[1])
    assert not {0, 9} & set(order[:2])
    for at, column in ((0, 0), (2, 9)):
        torch.testing.assert_close(found[:, at], score(column, order[0]) - fixed)
    assert torch.equal(found[:, 1], torch.zeros(len(slices)))


def test_it_never_ends_below_the_fixed_order_where_the_next_gain_misleads(
    slices: SliceSet, simulator: Simulator
) -> None:
    completion = Completion.of(order_of(slices), N_COLS, torch.device("cpu"))
    everything = torch.arange(N_COLS).expand(len(slices), -1)
    patient = greedy = simulator.start(N_INITIAL)
    for step in range(HORIZON):
        left = torch.full((len(slices),), HORIZON - step)
        values = completion.values(simulator, patient, everything, left)
        chosen = values.masked_fill(patient.mask, -torch.inf).argmax(dim=-1)
        patient = simulator.acquire(patient, chosen)
        greedy = simulator.acquire(greedy, simulator.score_every_column(greedy).argmax(dim=-1))
    fixed = torch.zeros(len(slices), N_COLS, dtype=torch.bool)
    fixed[:, [N_COLS // 2, *completion.ranked[:HORIZON].tolist()]] = True
    bar = simulator.start_from(fixed).score
    assert (patient.score >= bar - 1e-6).all()
    assert patient.score.mean() > greedy.score.mean()
    assert (greedy.score < bar - 1e-4).any()


def test_mean_values_are_zero_for_the_columns_that_the_order_takes_anyway(slices: SliceSet) -> None:
    order = order_of(slices)
    completion = Completion.of(order, N_COLS, torch.device("cpu"))
    start = torch.arange(N_COLS) == N_COLS // 2
    found = mean_values(completion, slices, ZeroFilled(), start, HORIZON)
    for step in range(HORIZON):
        assert found[step, order[step:]].abs().max() == 0
        assert found[step, [N_COLS // 2, *order[:step]]].isnan().all()
    # The greedy order's last column is the best of all on average.
    assert found[-1].nan_to_num(-1).amax() == 0


def test_a_column_that_only_the_order_has_measured_keeps_its_worth() -> None:
    nan = torch.nan
    gains = torch.tensor([[nan, 3.0, 2.0], [nan, nan, 1.0], [nan, nan, nan]])
    wanted = torch.tensor([[3.0, 3.0, 2.0], [3.0, 3.0, 1.0], [3.0, 3.0, 1.0]])
    assert torch.equal(carried_on(gains), wanted)
    # No less than the best that is left, where units make a later gain the larger number.
    gains = torch.tensor([[3.0, 2.0, 1.0], [nan, 4.0, 2.0], [nan, nan, 2.0]])
    wanted = torch.tensor([[3.0, 2.0, 1.0], [4.0, 4.0, 2.0], [4.0, 4.0, 2.0]])
    assert torch.equal(carried_on(gains), wanted)


def test_columns_are_worth_what_coils_tell_with_the_sensitivities_of_the_start() -> None:
    batch = coil_batch()
    simulator = Simulator(batch, Sense(), protocol="blind")
    start = simulator.start(9)
    # Beside the start, so that a later mask has more of the center to find them in.
    first = int(start.mask[0].nonzero()[0])
    order, column = [first - 1, first + 9, first - 2], first + 10
    completion = Completion.of(order, batch.kspace.shape[-1], torch.device("cpu"))
    columns, n_left = torch.full((len(batch), 1), column), torch.full((len(batch),), 3)
    found = completion.values(simulator, start, columns, n_left)[:, 0]

    def acquired(*taken: int) -> torch.Tensor:
        state = start
        for one in taken:
            state = simulator.acquire(state, torch.full((len(batch),), one))
        return state.score

    wanted = acquired(column, order[0], order[1]) - acquired(*order)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    assert wanted.abs().max() > 1e-3
