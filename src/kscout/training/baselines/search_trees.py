"""Search over sets of columns, with the trees of many slices side by side.

Jin, Unser and Yi, arXiv 1901.04547, with a frozen reconstructor and SSIM as the value, as in
arXiv 2010.16262. A node is a mask P of one slice, however it was reached, and P + a is that mask
with column a. A search goes from the present mask down to the budget: at a node that no search has
passed it draws a column from

    p(a) = (1 - e) pi(a) + e delta(a),    delta ~ Dirichlet(0.3),

where pi is the network's distribution; at a known node it takes the largest

    U(P, a) = (1 - alpha) Q(P + a) + alpha V(P + a) + c p(a) sqrt(N(P) / (n + N(P + a))),

with N the number of searches that passed a mask, Q the mean and V the maximum of the SSIM that they
ended with. There is no value network. The paper leaves open what an unvisited mask has: here the
values of P, and n = 1 visit more in the root than printed, which would divide by zero. Values are
scaled to 0..1 by the smallest and the largest that the slice's tree has seen, as SSIM differs by
thousandths and p would drown it.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import best_columns, column_log_probabilities, draw_columns
from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.kernels.graphs import Function, Graphs
from kscout.physics.sampling import Initial, start_mask
from kscout.policies.views import View
from kscout.randomness import keyed_generator
from kscout.training.baselines.settings import AlphaZeroTraining

PADS = {"cpu": False, "cuda": True}
"""Whether masks that are known already are padding of a batch rather than left out of it, by kind
of device: leaving them out would wait for the device at every step."""
_EMPTY = torch.iinfo(torch.int64).max
"""Key of a place without a node; sorted to the end."""


class _Index(NamedTuple):
    """Keys of every tree in order, and their nodes."""

    keys: Int[Tensor, "tree node"]
    nodes: Int[Tensor, "tree node"]


class _Position(NamedTuple):
    """One node of every tree, all with the same number of columns."""

    node: Int[Tensor, " tree"]
    key: Int[Tensor, " tree"]
    mask: Bool[Tensor, "tree col"]


@final
class Trees:
    """Statistics of all trees as arrays that stay in place: one row per slice, one place per node.

    A step of a search waits for nothing, and on CUDA it is one graph.
    """

    def __init__(
        self,
        policy: View,
        simulator: Simulator,
        rule: AlphaZeroTraining,
        *,
        n_searches: int,
        n_initial: Initial,
        horizon: int,
    ) -> None:
        self.policy, self.simulator, self.rule = policy, simulator, rule
        self.n_left, self.step = horizon, 0
        (n_trees, n_cols), device = simulator.batch.selectable.shape, simulator.batch.kspace.device
        mask = start_mask(n_initial, (n_trees, n_cols), device)
        self.maps = simulator.calibrate(mask)
        # A search adds at most the nodes below the present mask.
        n_most = 1 + n_searches * horizon * (horizon + 1) // 2
        # Sums of random 64-bit numbers identify the masks of a tree, in any order of columns.
        codes = torch.randint(-(2**62), 2**62, (n_cols,), generator=keyed_generator("masks"))
        self.codes = codes.to(device)
        self.keys = torch.full((n_trees, n_most), _EMPTY, dtype=torch.int64, device=device)
        self.index = _Index(torch.empty_like(self.keys), torch.empty_like(self.keys))
        self.visits = torch.zeros(n_trees, n_most, dtype=torch.int64, device=device)
        self.total = torch.zeros(n_trees, n_most, dtype=torch.float64, device=device)
        self.best = torch.full((n_trees, n_most), -torch.inf, dtype=torch.float64, device=device)
        self.prior = torch.zeros(n_trees, n_most, n_cols, device=device)
        self.n_nodes = torch.ones(n_trees, dtype=torch.int64, device=device)
        self.low = torch.full((n_trees, 1), torch.inf, dtype=torch.float64, device=device)
        self.high = -self.low
        self.best_mask = mask
        key = (mask * self.codes).sum(dim=-1)
        self.root = _Position(torch.zeros_like(self.n_nodes), key, mask)
        self.keys[:, 0] = key
        self.steps = torch.arange(horizon + 1, device=device)[:, None].repeat(1, n_trees)
        self._expand(self.root, torch.ones_like(self.n_nodes).bool(), self.steps[0], is_end=False)

    def ways_down(self) -> tuple[Function, Function]:
        """Return `_descend` to a mask before the budget, and to one at the budget.

        Not kept here: a graph holds what it reads, and trees that held it would be left in memory.
        """
        inner, last = (partial(self._descend, is_end) for is_end in (False, True))
        if not PADS[self.keys.device.type] or self.simulator.reconstructor.waits_for_device:
            return inner, last
        return Graphs(inner), Graphs(last)

    def search(
        self,
        ways_down: tuple[Function, Function],
        uniforms: Float[Tensor, "tree depth"],
        gammas: Float[Tensor, "tree col"],
    ) -> None:
        """Go down from the roots to the budget, and back up with the values found there."""
        self._sort()
        at, path = self.root, [self.root.node]
        for depth in range(self.n_left):
            descend = ways_down[depth + 1 == self.n_left]
            step = self.steps[self.step + depth + 1]
            *found, self.n_nodes = descend(*at, self.n_nodes, step, uniforms[:, depth], gammas)
            at = _Position(*found)
            path.append(at.node)
        value = self.best.gather(1, at.node[:, None])
        passed = torch.stack(path, dim=1)
        self.visits.scatter_add_(1, passed, torch.ones_like(passed))
        self.total.scatter_add_(1, passed, value.expand(passed.shape))
        self.best.scatter_reduce_(1, passed, value.expand(passed.shape), "amax")
        self.best_mask = torch.where(value > self.high, at.mask, self.best_mask)
        torch.minimum(self.low, value, out=self.low)
        torch.maximum(self.high, value, out=self.high)

    def decide(self) -> Int[Tensor, "tree col"]:
        """Measure the best column; return how many searches passed each child of the roots."""
        self._sort()
        node, is_known = self._children(self.root.key)
        blocked = self._blocked(self.root.mask)
        counts = self.visits.gather(1, node).masked_fill(~is_known | blocked, 0)
        mean = self._scaled(self.total.gather(1, node) / counts.clamp(min=1))
        column = best_columns(counts + mean.clamp(0, 1) / 2, blocked)[:, None]
        self.root = self._after(self.root, column, node.gather(1, column)[:, 0])
        self.n_left, self.step = self.n_left - 1, self.step + 1
        return counts

    def _descend(
        self,
        is_end: bool,
        node: Int[Tensor, " tree"],
        key: Int[Tensor, " tree"],
        mask: Bool[Tensor, "tree col"],
        n_nodes: Int[Tensor, " tree"],
        step: Int[Tensor, " tree"],
        uniforms: Float[Tensor, " tree"],
        gammas: Float[Tensor, "tree col"],
    ) -> tuple[Tensor, ...]:
        """Go one node down in every tree, making those that do not exist.

        Done again with the same arguments it writes the same numbers to the same places, which is
        what a graph asks for.

        Returns:
            Node, key and mask below, and the number of nodes then.
        """
        children, is_known = self._children(key)
        at = _Position(node, key, mask)
        column = self._choose(at, uniforms, gammas, (children, is_known))[:, None]
        is_new = ~is_known.gather(1, column)[:, 0]
        at = self._after(at, column, torch.where(is_new, n_nodes, children.gather(1, column)[:, 0]))
        # A known node has this key already.
        self.keys.scatter_(1, at.node[:, None], at.key[:, None])
        self._expand(at, is_new, step, is_end=is_end)
        return *at, n_nodes + is_new

    def _after(
        self, at: _Position, column: Int[Tensor, "tree 1"], node: Int[Tensor, " tree"]
    ) -> _Position:
        key = at.key + self.codes[column[:, 0]]
        return _Position(node, key, at.mask.scatter(1, column, True))

    def _choose(
        self,
        at: _Position,
        uniforms: Float[Tensor, " tree"],
        gammas: Float[Tensor, "tree col"],
        children: tuple[Int[Tensor, "tree col"], Bool[Tensor, "tree col"]],
    ) -> Int[Tensor, " tree"]:
        """Draw where no search has passed, take the largest U elsewhere."""
        rule, blocked, own = self.rule, self._blocked(at.mask), at.node[:, None]
        noise = gammas.double().masked_fill(blocked, 0.0)
        noise = noise / noise.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(noise.dtype).tiny)
        prior = self.prior[torch.arange(len(own), device=own.device), at.node].double()
        chances = (1 - rule.noise_share) * prior + rule.noise_share * noise
        # Scores that are not numbers find no column; weights that gave them end the training.
        drawn = draw_columns(chances.log(), uniforms[:, None])[:, 0].clamp(max=blocked.shape[1] - 1)
        child, is_known = children
        n_child = self.visits.gather(1, child).masked_fill(~is_known, 0)
        n_own = self.visits.gather(1, own)
        # A mask without values has those of the one before it.
        found, before = (
            (self.total.gather(1, node) / n, self.best.gather(1, node))
            for node, n in ((child, n_child), (own, n_own))
        )
        values = [torch.where(n_child > 0, *x) for x in zip(found, before, strict=True)]
        mean, most = map(self._scaled, values)
        spread = chances * (n_own / (1.0 + n_child)).sqrt()
        worth = (1 - rule.maximum_weight) * mean + rule.maximum_weight * most
        known = best_columns(worth + rule.exploration * spread, blocked)
        return torch.where(n_own[:, 0] == 0, drawn, known)

    def _expand(
        self,
        at: _Position,
        is_new: Bool[Tensor, " tree"],
        step: Int[Tensor, " tree"],
        *,
        is_end: bool,
    ) -> None:
        """Reconstruct new nodes, some at a time; keep pi, at the budget SSIM, and no image."""
        # The trees with a new node; or, padded, all, those first, and how many they are.
        if PADS[is_new.device.type]:
            n_new = is_new.sum(dtype=torch.int32)
            rows = (~is_new).to(torch.int8).argsort(stable=True)
        else:
            rows, n_new = is_new.nonzero()[:, 0], None
        n_done = 0
        # An empty tensor is split into one empty part.
        for owner in rows.split(self.simulator.n_at_once) if len(rows) else ():
            place = (owner, at.node[owner])
            state = self.simulator.start_from(
                at.mask[owner],
                owner=owner,
                maps=None if self.maps is None else self.maps[owner],
                n_images=None if n_new is None else (n_new - n_done).clamp(0, len(owner)),
            )
            n_done += len(owner)
            kept = self.best if is_end else self.prior
            found = state.score.double() if is_end else self._chances(state, step[owner])
            if n_new is not None:
                counts = is_new[owner] if is_end else is_new[owner, None]
                found = torch.where(counts, found, kept[place])
            kept[place] = found

    @torch.no_grad()
    def _chances(self, state: State, step: Int[Tensor, " state"]) -> Float[Tensor, "state col"]:
        seen = replace(self.simulator.observe(self.policy.chooser, state, n_left=None), step=step)
        logits = self.policy(seen).float()
        return column_log_probabilities(logits, self.simulator.blocked(state)).exp()

    def _blocked(self, mask: Bool[Tensor, "tree col"]) -> Bool[Tensor, "tree col"]:
        return mask | ~self.simulator.batch.selectable

    def _scaled(self, values: Float[Tensor, "tree col"]) -> Float[Tensor, "tree col"]:
        span = self.high - self.low
        return torch.where(span > 0, (values - self.low) / span, 0.0)

    def _sort(self) -> None:
        """Sort the keys for `_children`; a search never asks for nodes that it makes."""
        torch.sort(self.keys, dim=1, out=tuple(self.index))

    def _children(
        self, key: Int[Tensor, " tree"]
    ) -> tuple[Int[Tensor, "tree col"], Bool[Tensor, "tree col"]]:
        """Return the node after each column, and whether it exists; others get any node."""
        keys = key[:, None] + self.codes
        place = torch.searchsorted(self.index.keys, keys).clamp(max=self.keys.shape[1] - 1)
        return self.index.nodes.gather(1, place), self.index.keys.gather(1, place) == keys
