"""Independent work on CUDA side by side: a GPU too large for one small network serves several."""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor


def side_by_side(functions: Sequence[Callable[[], Tensor]], device: torch.device) -> list[Tensor]:
    """Call functions that do not depend on each other, on CUDA each on its own stream.

    The results may be used on the current stream. Works inside the capture of a graph, where the
    branches become parallel.
    """
    if device.type != "cuda" or len(functions) == 1:
        return [function() for function in functions]
    main = torch.cuda.current_stream(device)
    sides = _streams(len(functions), device)
    results = []
    for function, side in zip(functions, sides, strict=True):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            results.append(function())
    for result, side in zip(results, sides, strict=True):
        main.wait_stream(side)
        result.record_stream(main)
    return results


@cache
def _streams(n: int, device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(n)]
