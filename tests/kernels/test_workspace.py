"""Memory that several layouts share, one after the other."""

import pytest
import torch
from torch import Tensor

from kscout.kernels.convolution import Division, Empty, Workspace

CPU = torch.device("cpu")


def laid(space: Workspace, *shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    def layout(empty: Empty) -> list[Tensor]:
        return [empty(shape, dtype) for shape in shapes]

    return space.lay_out(layout)


def test_tensors_of_a_layout_do_not_overlap() -> None:
    found = laid(Workspace(CPU), (3, 5), (7,), (2, 2, 2), dtype=torch.float32)
    for number, one in enumerate(found):
        one.fill_(number)
    assert [one.unique().tolist() for one in found] == [[0], [1], [2]]
    assert [tuple(one.shape) for one in found] == [(3, 5), (7,), (2, 2, 2)]
    assert all(one.is_contiguous() for one in found)
    first = found[0].data_ptr()
    assert all((one.data_ptr() - first) % 256 == 0 for one in found)


def test_what_fits_takes_no_more_memory() -> None:
    space = Workspace(CPU)
    (large,) = laid(space, (1000,), dtype=torch.float32)
    (small,) = laid(space, (900,), dtype=torch.half)
    assert small.data_ptr() == large.data_ptr()
    assert [len(block) for block in space.blocks] == [4096]
    laid(space, (2000,), dtype=torch.float32)
    (again,) = laid(space, (10,), dtype=torch.half)
    assert again.data_ptr() == large.data_ptr() and len(space.blocks) == 2


@pytest.mark.parametrize("shape", [(4, 4), (4, 32), (8, 4), (8, 8), (16, 16), (32, 64), (256, 128)])
@pytest.mark.parametrize("n_out", [16, 32, 64, 512])
@pytest.mark.parametrize("n_in", [16, 48, 256, 1024])
def test_divisions_cover_image_and_channels_and_fit_the_chip(
    shape: tuple[int, int], n_out: int, n_in: int
) -> None:
    division = Division.of(*shape, n_in, n_out, ups=n_in > 16)
    rows_of_product, products_beside = max(1, 16 // shape[1]), max(1, division.n_cols // 16)
    n_below = division.n_rows // rows_of_product
    assert shape[0] % division.n_rows == shape[1] % division.n_cols == 0
    assert division.warps_m % products_beside == 0
    assert n_below % (division.warps_m // products_beside) == 0
    assert division.parts * division.n_part == n_out
    assert division.n_part % (division.warps_n * 16) == 0
    assert division.n_resident >= 1
    assert division.n_threads <= 256
    assert division.n_resident * (division.n_bytes + 1024) <= 228 * 1024
