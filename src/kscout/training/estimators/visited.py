"""States that policies visit, as rows of tensors: divided among policies, joined over steps."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cache, partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.core import Observation
from kscout.kernels.cuda import count_on
from kscout.policies.views import View
from kscout.training.replay import Rows

_SEEN = tuple(field.name for field in fields(Observation))


def observe(
    policies: Sequence[View],
    simulator: Simulator,
    state: State,
    n_left: Int[Tensor, " state"] | None = None,
) -> Observation:
    """Return what policies see, with a step for each state, as several steps will be joined."""
    seen = simulator.observe(policies[0].chooser, state, n_left=n_left)
    return replace(seen, step=count_on(state.mask.device, state.step).expand(len(state)))


def score(policies: Sequence[View], seen: Observation) -> Float[Tensor, "state col"]:
    """Let each policy score the columns of its own part of the states, on CUDA side by side."""
    rows, n_policies = rows_of(seen), len(policies)
    calls = [
        partial(policy, observation_of(part_of(rows, number, n_policies)))
        for number, policy in enumerate(policies)
    ]
    found = _side_by_side(calls, seen.image.device)
    return found[0] if n_policies == 1 else torch.cat(found)


def rows_of(seen: Observation, **more: Tensor) -> Rows:
    """Return the tensors of an observation, which has a step for each state, and further ones."""
    own = {name: getattr(seen, name) for name in _SEEN}
    return {**{name: value for name, value in own.items() if value is not None}, **more}


def observation_of(rows: Rows) -> Observation:
    """Return the observation among tensors."""
    return Observation(**{name: rows[name] for name in _SEEN if name in rows})  # type: ignore[arg-type]


def part_of(rows: Rows, number: int, n_parts: int) -> Rows:
    """Return one policy's rows: equal consecutive parts are those of one policy each."""
    return {name: value.chunk(n_parts)[number] for name, value in rows.items()}


def joined(steps: Sequence[Rows], n_at_once: int) -> Iterator[Rows]:
    """Yield at most so many consecutive rows at a time, from one step or several."""
    n_rows = [len(rows["mask"]) for rows in steps]
    for begin in range(0, sum(n_rows), n_at_once):
        pieces, at = [], 0
        for rows, n in zip(steps, n_rows, strict=True):
            first, last = max(begin - at, 0), min(begin + n_at_once - at, n)
            if first < last:
                pieces.append({name: value[first:last] for name, value in rows.items()})
            at += n
        yield {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def _side_by_side(functions: Sequence[Callable[[], Tensor]], device: torch.device) -> list[Tensor]:
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
