"""Searches over many slices at once do what an obvious one does slice by slice."""

import itertools
import math
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.core import Observation, Policy
from kscout.data.slices import SliceSet
from kscout.physics.sampling import center_mask
from kscout.policies.views import Recomputed
from kscout.reconstruction import load
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.baselines import search_trees
from kscout.training.baselines.alphazero import Episodes, SearchDraws, search_episodes
from kscout.training.baselines.settings import AlphaZeroTraining

N_SLICES, N_ROWS, N_COLS = 3, 7, 9
RULE = AlphaZeroTraining(exploration=1.0)


class ByImage(Policy):
    """Logits that depend on the image, so that every mask has its own."""

    def forward(self, seen: Observation) -> Tensor:
        return 2 * seen.image.mean(dim=1).sin()


@pytest.fixture
def simulator(generator: torch.Generator) -> Simulator:
    images = torch.rand(N_SLICES, N_ROWS, N_COLS, generator=generator)
    slices = SliceSet.from_images(images, ["a", "a", "b"])
    return Simulator(slices.batch(torch.arange(N_SLICES)), ZeroFilled())


def draws_of(n_slices: int, n_searches: int, horizon: int, n_cols: int) -> SearchDraws:
    generator = torch.Generator().manual_seed(1)
    shape = (n_slices, horizon, n_searches)
    uniforms = torch.rand(*shape, horizon, generator=generator)
    return SearchDraws(uniforms, torch.rand(*shape, n_cols, generator=generator) ** 3)


@dataclass
class Node:
    """Statistics of one mask of one slice."""

    pi: list[float] = field(default_factory=list)
    n: int = 0
    total: float = 0.0
    most: float = -math.inf


class States:
    """All slices with the same columns, as they are asked for."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.known: dict[frozenset[int], State] = {}

    def __call__(self, columns: frozenset[int]) -> State:
        if columns not in self.known:
            mask = torch.zeros(N_SLICES, N_COLS, dtype=torch.bool)
            mask[:, sorted(columns)] = True
            self.known[columns] = self.simulator.start_from(mask)
        return self.known[columns]


class SlowTree:
    """The search of one slice as the formula says it, a dictionary of sets."""

    def __init__(self, state: States, number: int, rule: AlphaZeroTraining, budget: int) -> None:
        self.state, self.number, self.rule, self.budget = state, number, rule, budget
        self.nodes: dict[frozenset[int], Node] = {}
        self.values: list[float] = []

    def node(self, columns: frozenset[int]) -> Node:
        if columns not in self.nodes:
            state, node = self.state(columns), Node()
            seen = self.state.simulator.observe(ByImage(), state, n_left=None)
            logits = ByImage()(seen)[self.number].double()
            logits[sorted(columns)] = -torch.inf
            node.pi = logits.softmax(dim=0).tolist()
            self.nodes[columns] = node
        return self.nodes[columns]

    def scaled(self, value: float) -> float:
        low, high = min(self.values), max(self.values)
        return (value - low) / (high - low) if high > low else 0.0

    def chances(self, columns: frozenset[int], gammas: list[float]) -> list[float]:
        left = [a for a in range(N_COLS) if a not in columns]
        total, e = sum(gammas[a] for a in left), self.rule.noise_share
        pi = self.node(columns).pi
        return [
            (1 - e) * pi[a] + e * gammas[a] / total if a in left else 0.0 for a in range(N_COLS)
        ]

    def worth(self, columns: frozenset[int], a: int, chance: float) -> float:
        here, alpha = self.node(columns), self.rule.maximum_weight
        child = self.nodes.get(columns | {a}, Node())
        source = child if child.n else here
        mean, most = self.scaled(source.total / source.n), self.scaled(source.most)
        spread = chance * math.sqrt(here.n / (1 + child.n))
        return (1 - alpha) * mean + alpha * most + self.rule.exploration * spread

    def search(self, root: frozenset[int], uniforms: list[float], gammas: list[float]) -> None:
        path = [root]
        for uniform in uniforms[: self.budget - len(root)]:
            at = path[-1]
            chances = self.chances(at, gammas)
            if self.node(at).n == 0:
                running = list(itertools.accumulate(chances))
                column = next(a for a in range(N_COLS) if running[a] > uniform * running[-1])
            else:
                left = [a for a in range(N_COLS) if a not in at]
                column = max(left, key=lambda a: self.worth(at, a, chances[a]))
            path.append(at | {column})
        value = float(self.state(path[-1]).score[self.number])
        self.values.append(value)
        for columns in path:
            node = self.node(columns)
            node.n, node.total, node.most = node.n + 1, node.total + value, max(node.most, value)

    def children(self, root: frozenset[int]) -> list[Node]:
        return [
            self.nodes[root | {a}] if root | {a} in self.nodes else Node() for a in range(N_COLS)
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        RULE,
        replace(RULE, maximum_weight=0.0, noise_share=0.0, exploration=3.0),
        replace(RULE, maximum_weight=1.0, noise_share=0.6, exploration=0.2),
    ],
)
def test_lockstep_equals_an_obvious_search_of_each_slice(
    simulator: Simulator, rule: AlphaZeroTraining
) -> None:
    n_initial, horizon, n_searches = 2, 3, 12
    draws = draws_of(N_SLICES, n_searches, horizon, N_COLS)
    found = search_episodes(
        Recomputed(ByImage()), simulator, rule, draws, n_initial=n_initial, horizon=horizon
    )
    n_nodes, states = 0, States(simulator)
    for number in range(N_SLICES):
        tree = SlowTree(states, number, rule, n_initial + horizon)
        root = frozenset(center_mask(N_COLS, n_initial).nonzero()[:, 0].tolist())
        for step in range(horizon):
            assert sorted(root) == found.mask[number, step].nonzero()[:, 0].tolist()
            for search in range(n_searches):
                uniforms, gammas = (x[number, step, search].double().tolist() for x in draws)
                tree.search(root, uniforms, gammas)
            children = [Node() if a in root else x for a, x in enumerate(tree.children(root))]
            assert [child.n for child in children] == found.visits[number, step].tolist()
            ranks = [(child.n, child.total / max(1, child.n)) for child in children]
            root |= {ranks.index(max(ranks))}
        assert float(found.score[number]) == float(tree.state(root).score[number])
        assert float(found.best_score[number]) == max(tree.values)
        n_nodes += len(tree.nodes)
    assert found.n_reconstructions == n_nodes


@pytest.mark.slow
def test_the_best_mask_of_a_small_problem_is_found(generator: torch.Generator) -> None:
    n_initial, horizon, n_cols = 2, 3, 8
    images = torch.rand(4, 8, n_cols, generator=generator)
    slices = SliceSet.from_images(images, list("abcd"))
    simulator = Simulator(slices.batch(torch.arange(4)), ZeroFilled())
    start = center_mask(n_cols, n_initial)
    left = (~start).nonzero()[:, 0].tolist()
    sets = []
    for chosen in itertools.combinations(left, horizon):
        mask = start.clone()
        mask[list(chosen)] = True
        sets.append(mask)
    scores = torch.stack([simulator.start_from(mask.expand(4, -1)).score for mask in sets], dim=1)
    found = search_episodes(
        Recomputed(ByImage()),
        simulator,
        RULE,
        draws_of(4, 100, horizon, n_cols),
        n_initial=n_initial,
        horizon=horizon,
    )
    torch.testing.assert_close(found.best_score, scores.amax(dim=1))
    # Mirrored masks of real images have equal scores but for rounding.
    reached = simulator.start_from(found.best_mask).score
    torch.testing.assert_close(reached, scores.amax(dim=1))
    assert found.best_mask.sum(dim=1).tolist() == [n_initial + horizon] * 4
    # Each mask of a slice is reconstructed once, in whatever order its columns came.
    n_sets = sum(math.comb(len(left), n) for n in range(horizon + 1))
    assert found.n_reconstructions <= 4 * n_sets


class Counted(TorchDispatchMode):
    """Counts the operations that would wait for a device."""

    WAITING = ("nonzero", "_local_scalar_dense", "_unique2", "masked_select", "_to_copy")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        moves = name != "_to_copy" or "device" in (kwargs or {})
        if name in self.WAITING and moves:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


class Replayed:
    """Stands in for graphs: the function is run several times, then what it returned is copied."""

    waited: list[str]

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        kept = [x.clone() for x in given]
        with Counted() as counted:
            found = [self.function(*kept) for _ in range(2)][-1]
        Replayed.waited += counted.found
        return tuple(x.clone() for x in found)


def searched(simulator: Simulator, n_searches: int, horizon: int, n_initial: int = 2) -> Episodes:
    (n_slices, n_cols), device = simulator.batch.selectable.shape, simulator.batch.kspace.device
    draws = [x.to(device) for x in draws_of(n_slices, n_searches, horizon, n_cols)]
    given = (Recomputed(ByImage()), simulator, RULE, SearchDraws(*draws))
    return search_episodes(*given, n_initial=n_initial, horizon=horizon)


def test_steps_for_a_graph_wait_for_nothing_and_find_the_same(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.n_at_once = 2
    expected = searched(simulator, 7, 3)
    Replayed.waited = []
    monkeypatch.setitem(search_trees.PADS, "cpu", True)
    monkeypatch.setattr(search_trees, "Graphs", Replayed)
    found = searched(simulator, 7, 3)
    assert all(torch.equal(a, b) for a, b in zip(*map(_tensors, (found, expected)), strict=True))
    assert found.n_reconstructions == expected.n_reconstructions < N_SLICES * (1 + 7 * 6)
    assert not Replayed.waited


def _tensors(found: Episodes) -> list[Tensor]:
    return [x for x in astuple(found) if isinstance(x, Tensor)]


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["zero-filled", "knee-unet"])
def test_graphs_search_as_eager_code_on_cuda_does(
    name: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.rand(5, 128, 128, generator=generator)
    slices = SliceSet.from_images(images, list("aabbc")).to("cuda")
    model = load(name).frozen(precision="auto", n_rows=128, n_cols=128, device="cuda")
    simulator = Simulator(slices.batch(torch.arange(5, device="cuda")), model)
    found = searched(simulator, 12, 4, n_initial=16)
    # Batches as large as those of the graphs: sums of others are rounded otherwise.
    monkeypatch.setattr(search_trees, "Graphs", lambda function: function)
    expected = searched(simulator, 12, 4, n_initial=16)
    assert all(torch.equal(a, b) for a, b in zip(*map(_tensors, (found, expected)), strict=True))
    assert found.n_reconstructions == expected.n_reconstructions < 5 * (1 + 12 * 10)
    alone = simulator.start_from(found.best_mask).score
    torch.testing.assert_close(found.best_score, alone, atol=1e-4, rtol=0)
    # What counts of a padded batch is what it is without padding.
    some, n_images = found.mask[:, -1], torch.tensor(3, dtype=torch.int32, device="cuda")
    owner = torch.tensor([4, 1, 0, 2, 3], device="cuda")
    padded = simulator.start_from(some[owner], owner=owner, n_images=n_images)
    plain = simulator.start_from(some[owner[:3]], owner=owner[:3])
    torch.testing.assert_close(padded.image[:3], plain.image, atol=2e-2, rtol=0)
    torch.testing.assert_close(padded.score[:3], plain.score, atol=1e-4, rtol=0)
