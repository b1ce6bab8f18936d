"""Memory that several layouts share, one after the other."""

import torch
from torch import Tensor

from kscout.kernels.convolution import Empty, Workspace

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
