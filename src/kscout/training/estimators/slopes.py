"""Slopes: how steeply the score rises when a column is weighed in, of all columns at once.

Measured with weight w, column v adds w times itself to the zero-filled image x. Its gain is what
the score s rises by from w = 0 to 1, and costs a reconstruction. Its slope at w = 0 is

    ds/dw_v = Re sum_r conj(G[r, v]) k[r, v],    G = F ds/dx,

with k-space k and the unitary transform F: one backward pass tells that of every column. On the way
to 1 the score rises ever less steeply, so that a gain is a share of the slope. Level and share are
found for each step along a fixed order, where the mean gains of all columns are known. Those of
columns whose opposite is measured are others: for a real image both tell the same, so that the
score soon stops to rise. They are few, so that all steps find them together.

Where labels are what a column is worth at the end (`labels`), slopes are those of the completed
mask; a column that the fixed order takes anyway is worth nothing more.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.completion import Completion
from kscout.acquisition.episode import Simulator, how_many_at_once
from kscout.acquisition.state import State
from kscout.config import DenseTraining, PolicyConfig
from kscout.core import Measurement, Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.names import METRICS
from kscout.physics.fourier import fft2c, opposite
from kscout.physics.sampling import start_mask
from kscout.training.convolution import choose_convolution, convolution
from kscout.training.replay import Rows

_N_KEPT = 4
"""Times as much memory as an image takes without gradients, since features are kept for them."""
_N_COMPILED = 256
"""States that compiled passes are built for; fewer are filled up."""


@final
@dataclass(frozen=True)
class Slopes:
    """What columns are worth by their slopes."""

    reconstructor: Reconstructor
    """One that gradients flow through."""
    level: Float[Tensor, "row 2"]
    """What a column without slope gains, by the number of columns measured: one whose opposite is
    not measured, and one whose opposite is."""
    share: Float[Tensor, "row 2"]
    """Which part of its slope a column gains, likewise."""
    is_compiled: bool = False
    """Whether passes are built for a number of states, to which they are filled up."""

    def compiled(self) -> "Slopes":
        """Return the same whose passes torch.compile builds."""
        built = deepcopy(self.reconstructor)
        built.compile_passes()
        return replace(self, reconstructor=built, is_compiled=True)

    def of(
        self,
        simulator: Simulator,
        state: State,
        row: Int[Tensor, " state"],
        completion: Completion | None,
        n_left: Int[Tensor, " state"],
    ) -> Float[Tensor, "state col"]:
        """Return what slopes let expect of all columns of each state: gains, or worth at the end.

        Args:
            simulator: whose states.
            state: where columns are weighed in.
            row: of level and share, for each state.
            completion: what takes the columns that are left; None for gains.
            n_left: how many those are.
        """
        end = state
        if completion is not None:
            mask = completion.masks(state.mask, n_left, simulator.batch.selectable[state.owner])
            end = simulator.start_from(mask, owner=state.owner, maps=state.maps)
        found = column_slopes(self.reconstructor, simulator, end, fills=self.is_compiled)
        told = _told(end.mask).long()
        found = self.level[row].gather(-1, told) + self.share[row].gather(-1, told) * found
        return found.masked_fill(end.mask & ~state.mask, 0.0)

    def added(
        self,
        labelled: Sequence[Rows],
        simulator: Simulator,
        state: State,
        row: Int[Tensor, " state"],
        completion: Completion | None,
        unit: Float[Tensor, " state"],
    ) -> list[Rows]:
        """Return labelled states with their slopes, which are found for many steps at once.

        Args:
            labelled: by step.
            simulator: whose states.
            state: all of them, step by step.
            row: as in `of`.
            completion: likewise.
            unit: what slopes of each state are told in.
        """
        n_left = torch.cat([rows["n_left"] for rows in labelled])
        sizes = [len(rows["mask"]) for rows in labelled]
        found = self.of(simulator, state, row, completion, n_left) / unit[:, None]
        parts = zip(
            found.split(sizes), (~simulator.blocked(state)).split(sizes), labelled, strict=True
        )
        return [{**own, "slopes": slopes, "is_open": is_open} for slopes, is_open, own in parts]

    @classmethod
    def fitted(
        cls,
        frozen: Reconstructor,
        slices: SliceSet,
        config: PolicyConfig,
        order: list[int],
        gains: Float[Tensor, "row col"],
    ) -> "Slopes":
        """Find what slopes are worth along a fixed order.

        Args:
            frozen: what columns are tried on.
            slices: whose mean slopes are taken.
            config: says where the order begins, and what is scored.
            order: the columns.
            gains: mean labels before each of them; those of measured columns do not count.
        """
        plain, device, training = differentiable(frozen), gains.device, config.training
        assert isinstance(training, DenseTraining)
        start = config.spanned[0] if training.starts else config.acquisition.start
        mask = start_mask(start, (1, slices.n_cols), device).clone()
        selectable = slices.selectable.any(dim=0).to(device)[None]
        first, end = mask.clone(), mask
        if completes := training.completion != "none":
            # Completed, all masks along the order are the same.
            n_left = torch.tensor([len(order)], device=device)
            end = Completion.of(order, slices.n_cols, device).masks(mask, n_left, selectable)
        alone, points = [], []
        for row, column in enumerate(order):
            if row == 0 or not completes:
                slopes = _mean_slopes(plain, frozen, slices, end, config, first)
            is_open, told = (selectable & ~end)[0], _told(end)[0]
            known = torch.stack([slopes, gains[row]], dim=-1)
            alone.append(_line(known[is_open & ~told]))
            points.append(known[is_open & told])
            mask[:, column] = True
        # Worth nothing where none was met.
        opposed = torch.zeros(2, device=device)
        if len(together := torch.cat(points)):
            opposed = _line(together)
        lines = torch.stack([torch.stack(alone), opposed.expand(len(alone), 2)], dim=1)
        level, share = lines.unbind(dim=-1)
        return cls(plain, level, share)

    @classmethod
    def restored(cls, frozen: Reconstructor, line: Float[Tensor, "2 row 2"]) -> "Slopes":
        """Take what `line` gave."""
        level, share = line.unbind()
        return cls(differentiable(frozen), level, share)

    @property
    def line(self) -> Float[Tensor, "2 row 2"]:
        """Levels and shares, for a checkpoint."""
        return torch.stack([self.level, self.share]).cpu()


def differentiable(frozen: Reconstructor) -> Reconstructor:
    """Return what gives the images of a frozen reconstructor with gradients."""
    plain = frozen.differentiable()
    if plain is None:
        raise ConfigError(
            f"training.slopes asks how a score changes with columns that are not measured, and a "
            f"{type(frozen).__name__} looks at measured columns alone; leave it out"
        )
    return plain


def column_slopes(
    reconstructor: Reconstructor,
    simulator: Simulator,
    state: State,
    *,
    fills: bool = False,
) -> Float[Tensor, "state col"]:
    """Return ds/dw of every column of every state, some states at a time.

    Args:
        reconstructor: one that gradients flow through.
        simulator: whose states.
        state: where columns are weighed in.
        fills: whether all parts have the same number of states, some of them for nothing, as
            passes that are compiled need it.
    """
    n_states, device = len(state), state.mask.device
    shape = simulator.batch.kspace.shape[1:]
    most = max(1, how_many_at_once(reconstructor, shape, device) // _N_KEPT)
    places = torch.arange(n_states, device=device)
    if fills:
        most = min(most, _N_COMPILED)
        places = torch.nn.functional.pad(places, (0, -n_states % most))
    # Convolutions that are fast forwards may be slow backwards.
    with convolution(choose_convolution("auto", device, trains=True)):
        parts = [_slopes(reconstructor, simulator, state.rows(x)) for x in places.split(most)]
    return torch.cat(parts)[:n_states]


def _slopes(
    reconstructor: Reconstructor, simulator: Simulator, state: State
) -> Float[Tensor, "state col"]:
    truth, metric = simulator.batch.rows(state.owner), METRICS.resolve(simulator.metric)
    with torch.enable_grad():
        zero_filled = state.zero_filled.detach().requires_grad_(True)
        measured = Measurement(zero_filled, state.mask, maps=state.maps)
        # As coarse as what columns are tried in. Kept casts of weights would outlive a graph that
        # they were made in.
        is_half = simulator.reconstructor.precision == "fp16"
        with torch.autocast("cuda", torch.bfloat16, enabled=is_half, cache_enabled=False):
            found = reconstructor.reconstruct(measured)
        image = truth.unnormalized(found, simulator.protocol)
        score = metric(image, truth.target, data_range=truth.data_range)
        if not score.requires_grad:
            raise ConfigError(
                f"training.slopes asks how the metric {simulator.metric} changes with an image, "
                "and no gradients flow through it; leave it out"
            )
        (gradient,) = torch.autograd.grad(score.sum(), zero_filled)
    return (fft2c(gradient).conj() * truth.kspace).real.sum(dim=(1, 2))


def _mean_slopes(
    plain: Reconstructor,
    frozen: Reconstructor,
    slices: SliceSet,
    mask: Bool[Tensor, "1 col"],
    config: PolicyConfig,
    start: Bool[Tensor, "1 col"],
) -> Float[Tensor, " col"]:
    training, total = config.training, torch.zeros(slices.n_cols, device=mask.device)
    how = {"protocol": training.protocol, "metric": training.metric}
    for batch in slices.batches(16):
        simulator = Simulator(batch.to(mask.device), frozen, **how)  # type: ignore[arg-type]
        maps = simulator.calibrate(start.expand(len(batch), -1))
        state = simulator.start_from(mask.expand(len(batch), -1), maps=maps)
        total += column_slopes(plain, simulator, state).sum(dim=0)
    return total / len(slices)


def _told(mask: Bool[Tensor, "state col"]) -> Bool[Tensor, "state col"]:
    """Say which columns' opposites are measured."""
    return mask[:, opposite(mask.shape[1], mask.device)]


def _line(points: Float[Tensor, "point 2"]) -> Float[Tensor, " 2"]:
    """Return level and share of the line through mean slopes and gains, by least squares.

    Without any point both are zero.
    """
    if not len(points):
        return points.new_zeros(2)
    (slope, gain), apart = points.mean(dim=0), points - points.mean(dim=0)
    share = apart.prod(dim=-1).sum() / apart[:, 0].square().sum().clamp(min=1e-20)
    return torch.stack([gain - share * slope, share])


def filled_in(rows: Rows) -> Rows:
    """Return labelled states with a label for every column: its gain where it was tried."""
    if "slopes" not in rows:
        return rows
    rest = {**rows}
    slopes, is_open = rest.pop("slopes"), rest.pop("is_open")
    columns = torch.arange(slopes.shape[1], device=slopes.device).expand(slopes.shape)
    # Columns that stand in where too few are left are not open.
    gains = slopes.scatter(-1, rows["columns"], rows["gains"])
    return {**rest, "columns": columns, "gains": gains, "is_valid": is_open}
