"""Acquisition as a Gymnasium environment, single and vectorized.

Importing this module registers `kscout/Acquisition-v0`:

    import gymnasium, kscout.gym_env
    env = gymnasium.make("kscout/Acquisition-v0", data="store", n_initial=8, horizon=8)

An episode acquires one slice: an action measures a column, its reward is the gain in SSIM or in
another `metric`, and the episode ends after `horizon` columns. No other module of kscout needs
Gymnasium.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from kscout.acquisition.loop import Acquisition
from kscout.acquisition.plan import Plan
from kscout.compatibility import Use, network_notes, warn
from kscout.core import Protocol, Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.names import METRICS, metric_word
from kscout.reconstruction import load

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode
    from gymnasium.vector.utils import batch_space
except ModuleNotFoundError as error:
    raise ConfigError(
        "kscout.gym_env needs Gymnasium, which is not installed; run: pip install 'kscout[gym]'"
    ) from error

ENVIRONMENT = "kscout/Acquisition-v0"
IMAGE_BOUND = 1e3
"""Observed images are clipped to this number of standard deviations, far above realistic images."""

Array = NDArray[Any]
Info = dict[str, Any]
Arrays = dict[str, Array]


@final
class ColumnSpace(spaces.Discrete):  # type: ignore[misc]
    """Columns; `sample()` without a mask samples among those that can be measured now."""

    def __init__(self, n_cols: int) -> None:
        super().__init__(n_cols)
        self.legal = np.ones(n_cols, dtype=np.int8)

    def sample(self, mask: Array | None = None, probability: Array | None = None) -> np.int64:
        if probability is not None:
            return super().sample(probability=probability)
        return super().sample(mask=self.legal if mask is None else mask)


@final
class _Scanner:
    """Measures columns of several slices at once, for both environments."""

    def __init__(
        self,
        data: SliceSet | Path | str,
        split: str,
        reconstructor: Reconstructor | Path | str,
        plan: Plan,
    ) -> None:
        METRICS.resolve(plan.metric)
        self.plan, self.horizon = plan, plan.horizon
        self.slices = data if isinstance(data, SliceSet) else Store.open(data).split(split)
        if not len(self.slices) or self.horizon < 1:
            raise ConfigError(
                f"an episode needs a slice and a step, found {len(self.slices)} slices and "
                f"horizon = {self.horizon}; give a split that has slices and a horizon of 1 or more"
            )
        plan.check(self.slices.selectable)
        self.slices.check_start(plan.start)
        chosen = reconstructor if isinstance(reconstructor, Reconstructor) else load(reconstructor)
        protocol = chosen.protocol_for(plan.protocol)
        self.slices.check_protocol(protocol)
        columns = (plan.start, self.horizon) if isinstance(plan.start, int) else (0, 0)
        warn(network_notes(chosen, Use(self.slices.shape, *columns, protocol=protocol)))
        self.reconstructor = chosen.to(self.slices.device).eval()
        shape = self.slices.shape[1:]
        image = spaces.Box(-IMAGE_BOUND, IMAGE_BOUND, shape, np.float32)
        self.space = spaces.Dict({"image": image, "measured": spaces.MultiBinary(shape[1])})
        self._acquisition: Acquisition | None = None
        self._rows: list[int] = []

    def begin(self, rows: list[int]) -> None:
        if not all(0 <= row < len(self.slices) for row in rows):
            raise ConfigError(
                f"there is no slice at one of the rows {rows}; give rows 0..{len(self.slices) - 1}"
            )
        batch = self.slices.batch(torch.tensor(rows, dtype=torch.int64))
        simulator = self.plan.simulator(batch, self.reconstructor)
        self._rows, self._acquisition = rows, Acquisition(simulator, self.plan)

    @property
    def acquisition(self) -> Acquisition:
        if self._acquisition is None:
            raise ConfigError("no episode has begun; call reset() first")
        return self._acquisition

    @property
    def is_over(self) -> bool:
        return not self.acquisition.n_next

    def legal(self) -> Bool[np.ndarray, "batch col"]:
        return (~self.acquisition.blocked).cpu().numpy()

    def measure(self, columns: Int[np.ndarray, " batch"]) -> Float[np.ndarray, " batch"]:
        """Measure one column of each slice and return the gains in the metric."""
        before = self.acquisition.state.score
        if self.is_over:
            raise ConfigError(
                f"the episode is over: {self.horizon} columns were acquired; call reset() first"
            )
        for column, legal in zip(columns.tolist(), self.legal(), strict=True):
            if not (0 <= column < len(legal) and legal[column]):
                raise ConfigError(
                    f"column {column} cannot be measured now: it is measured already or "
                    "outside the matrix; choose a column where action_masks() is True"
                )
        chosen = torch.from_numpy(columns.astype(np.int64)).to(before.device)
        self.acquisition.measure(chosen[:, None])
        return (self.acquisition.state.score - before).double().cpu().numpy()

    def observe(self) -> Arrays:
        state = self.acquisition.state
        image = state.image.clamp(-IMAGE_BOUND, IMAGE_BOUND).float()
        return {
            "image": image.cpu().numpy().copy(),
            "measured": state.mask.to(torch.int8).cpu().numpy().copy(),
        }

    def facts(self, row: int) -> Info:
        state, at = self.acquisition.state, self._rows[row]
        return {
            "ssim": float(self.acquisition.simulator.ssim(state)[row]),
            metric_word(self.plan.metric): float(state.score[row]),
            "step": self.acquisition.n_acquired,
            "volume": self.slices.volumes[at],
            "slice": self.slices.slices[at],
            "action_mask": self.legal()[row].astype(np.int8),
        }


class AcquisitionEnv(gymnasium.Env):  # type: ignore[misc]
    """Acquires one slice per episode, sampled at random from a split.

    `reset(options={"row": 3})` selects the fourth slice of the split instead of a random one.
    `info["action_mask"]` marks the columns that can be measured next, as
    `action_space.sample(mask=...)` needs them.

    Args:
        data: slices, or the path of a store.
        split: of the store; slices come as they are.
        reconstructor: turns measured columns into images; one, or what
            `kscout.reconstruction.load` takes.
        n_initial: number of central columns measured at the start, or a list of columns.
        horizon: columns to acquire.
        protocol: how images are scored; not given: as the reconstruction was trained, else by
            `blind`.
        metric: what rewards are gains of: ssim, psnr, nmse (minus it), or `module:function`.
    """

    metadata: ClassVar[Info] = {"render_modes": []}

    def __init__(
        self,
        data: SliceSet | Path | str,
        *,
        split: str = "train",
        reconstructor: Reconstructor | Path | str = "zero-filled",
        n_initial: int | Sequence[int] = 8,
        horizon: int = 8,
        protocol: Protocol | None = None,
        metric: str = "ssim",
    ) -> None:
        plan = Plan(n_initial, horizon, protocol=protocol, metric=metric)
        self._scanner = _Scanner(data, split, reconstructor, plan)
        self.observation_space = self._scanner.space
        self.action_space = ColumnSpace(self._scanner.slices.n_cols)
        self.render_mode = None

    def action_masks(self) -> Bool[np.ndarray, " col"]:
        """Return the columns that can be measured next, for sb3-contrib's maskable algorithms."""
        return self._scanner.legal()[0]

    def reset(
        self, *, seed: int | np.integer | None = None, options: Info | None = None
    ) -> tuple[Arrays, Info]:
        super().reset(seed=None if seed is None else int(seed))
        given = (options or {}).get("row")
        drawn = int(self.np_random.integers(len(self._scanner.slices)))
        self._scanner.begin([drawn if given is None else int(given)])
        return self._observe(), self._scanner.facts(0)

    def step(self, action: int | np.generic | Array) -> tuple[Arrays, float, bool, bool, Info]:
        gain = float(self._scanner.measure(np.asarray(action).reshape(1))[0])
        return self._observe(), gain, self._scanner.is_over, False, self._scanner.facts(0)

    def _observe(self) -> Arrays:
        self.action_space.legal = self._scanner.legal()[0].astype(np.int8)
        return {name: value[0] for name, value in self._scanner.observe().items()}


class AcquisitionVectorEnv(gymnasium.vector.VectorEnv):  # type: ignore[misc]
    """Acquires `num_envs` slices together, reconstructing them in one batch.

    With seed s the i-th slice is that of `AcquisitionEnv` with seed s + i. All episodes
    have the same length; the step after the last one resets all of them and ignores its actions.
    `reset(options={"rows": [3, 0]})` selects these slices, one per environment.

    Args:
        num_envs: number of slices at once; other arguments as in `AcquisitionEnv`.
    """

    metadata: ClassVar[Info] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        num_envs: int,
        data: SliceSet | Path | str,
        *,
        split: str = "train",
        reconstructor: Reconstructor | Path | str = "zero-filled",
        n_initial: int | Sequence[int] = 8,
        horizon: int = 8,
        protocol: Protocol | None = None,
        metric: str = "ssim",
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs = {num_envs} acquires nothing; give 1 or more")
        plan = Plan(n_initial, horizon, protocol=protocol, metric=metric)
        self._scanner = _Scanner(data, split, reconstructor, plan)
        self.num_envs = num_envs
        self.single_observation_space = self._scanner.space
        self.single_action_space = spaces.Discrete(self._scanner.slices.n_cols)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators = [np.random.default_rng() for _ in range(num_envs)]

    def action_masks(self) -> Bool[np.ndarray, "env col"]:
        """Return the columns that can be measured next, per slice."""
        return self._scanner.legal()

    def reset(
        self,
        *,
        seed: int | np.integer | Sequence[int | np.integer | None] | Array | None = None,
        options: Info | None = None,
    ) -> tuple[Arrays, Info]:
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + i for i in range(self.num_envs)]
        if seed is not None:
            self._check_count("seeds", list(seed))
            seeds = [None if one is None else int(one) for one in seed]
            self._generators = [gymnasium.utils.seeding.np_random(one)[0] for one in seeds]
        n_slices = len(self._scanner.slices)
        drawn = [int(rng.integers(n_slices)) for rng in self._generators]
        rows = [int(row) for row in (options or {}).get("rows", drawn)]
        self._check_count("rows", rows)
        self._scanner.begin(rows)
        return self._scanner.observe(), self._facts()

    def _check_count(self, name: str, given: Sequence[object]) -> None:
        if len(given) != self.num_envs:
            raise ConfigError(
                f"{len(given)} {name} were given for {self.num_envs} environments; give one each"
            )

    def step(self, actions: Array) -> tuple[Arrays, Array, Array, Array, Info]:
        never = np.zeros(self.num_envs, dtype=np.bool_)
        if self._scanner.is_over:
            observation, facts = self.reset()
            return observation, np.zeros(self.num_envs), never, never.copy(), facts
        gains = self._scanner.measure(np.asarray(actions).reshape(self.num_envs))
        over = np.full(self.num_envs, self._scanner.is_over)
        return self._scanner.observe(), gains, over, never, self._facts()

    def _facts(self) -> Info:
        each = [self._scanner.facts(row) for row in range(self.num_envs)]
        facts = {name: np.array([one[name] for one in each]) for name in each[0]}
        # Gymnasium's convention: `_name` marks the environments that returned a value.
        given = {f"_{name}": np.ones(self.num_envs, dtype=np.bool_) for name in facts}
        return {**facts, **given}


def register() -> None:
    """Register `kscout/Acquisition-v0` for `gymnasium.make` and `gymnasium.make_vec`."""
    if ENVIRONMENT not in gymnasium.registry:
        gymnasium.register(
            id=ENVIRONMENT,
            entry_point="kscout.gym_env:AcquisitionEnv",
            vector_entry_point="kscout.gym_env:AcquisitionVectorEnv",
        )


register()

__all__ = ["ENVIRONMENT", "AcquisitionEnv", "AcquisitionVectorEnv", "register"]
