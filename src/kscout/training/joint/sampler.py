"""The interface of samplers, which choose the columns of a reconstruction in training."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kscout.acquisition.choose import check_chosen, choose_columns
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import Acquisition
from kscout.acquisition.plan import training_plan
from kscout.config import JointConfig, JointTraining
from kscout.core import Observation, Policy, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import RunError
from kscout.json_types import StateDict
from kscout.physics.sampling import start_mask
from kscout.training.policy import new_policy


@final
class Pair(nn.Module):
    """A reconstruction and the policy that chooses its columns."""

    def __init__(self, reconstructor: Reconstructor, policy: Policy) -> None:
        super().__init__()
        self.reconstructor, self.policy = reconstructor, policy


@final
@dataclass(frozen=True)
class Material:
    """The input of a sampler."""

    config: JointConfig
    slices: SliceSet
    """The training slices."""
    view: Reconstructor
    """The reconstruction at its last update, frozen, in fast arithmetic."""
    snapshot: Reconstructor
    """The same in plain arithmetic, differentiable with respect to the measurement."""
    optimizer: torch.optim.Optimizer
    """The optimizer of the pair; a step changes only parameters with a gradient."""


class Sampler(ABC):
    """Chooses columns by a policy, which it may train together with the reconstruction.

    A new one sets `settings` and overrides what it does: `renew` at the beginning and once an
    epoch, `update` after every few updates of the reconstruction. Neither is called before the
    first `random_share` of the updates is done.

    Args:
        policy: what chooses, on its device.
        material: what it chooses for.
    """

    settings: ClassVar[type[JointTraining]] = JointTraining
    looks: ClassVar[bool] = True
    """Whether choices depend on the slice; otherwise no image is reconstructed for them."""

    def __init__(self, policy: Policy, material: Material) -> None:
        self.learner, self.material = policy, material

    @property
    def policy(self) -> Policy:
        """The policy that acquires, is validated and is saved."""
        return self.learner

    @classmethod
    def make_policy(cls, config: JointConfig, slices: SliceSet) -> Policy:
        """Build the initial policy of a training."""
        return new_policy(config, slices)

    @classmethod
    def n_bytes(cls, config: JointConfig, slices: SliceSet, n_image: int) -> int:
        """Return the least memory of the sampler, without slices and networks.

        Args:
            config: all settings.
            slices: the training slices.
            n_image: bytes that one more image takes in the reconstruction.
        """
        return 0

    @abstractmethod
    def renew(self, epoch: int, *, is_first: bool) -> None:
        """Renew the sampler, once per epoch.

        Args:
            epoch: counted from 1.
            is_first: whether the sampler has not been asked before.
        """

    def is_due(self, number: int) -> bool:
        """Return whether `update` follows an update of the reconstruction, counted from 0."""
        return False

    def update(self, number: int) -> Float[Tensor, ""]:
        """Train on some slices; return their mean score.

        Args:
            number: updates before this one.
        """
        raise RunError(
            f"{type(self).__name__} says that it is due to learn and does not say how; give it "
            "`update`, or leave `is_due` as it is"
        )

    def state(self) -> StateDict:
        """Return the content of a checkpoint besides weights and optimizer."""
        return {}

    def restore(self, state: StateDict) -> None:
        """Restore the content of `state` after at least one `renew`."""
        if state:
            raise RunError(
                f"the checkpoint holds {', '.join(map(str, state))} of {type(self).__name__}, "
                "which has no `restore`; give it one, or delete checkpoint.pt to train from the "
                "start"
            )


@torch.no_grad()
def acquire(
    policy: Policy,
    batch: SliceBatch,
    config: JointConfig,
    uniforms: Float[Tensor, "slice step"],
    view: Reconstructor | None,
) -> Bool[Tensor, "slice moment col"]:
    """Acquire slices by a policy; return the masks of all steps, the start first."""
    setting = config.acquisition
    device = batch.kspace.device
    start = start_mask(setting.start, batch.selectable.shape, device)
    if view is None:
        columns = _blindly(policy, start, batch.selectable, uniforms)
    else:
        simulator = Simulator(batch, view, protocol=config.training.protocol)
        acquisition = Acquisition(simulator, training_plan(config))
        columns = _looking(policy.bind(simulator.context), acquisition, uniforms)
    masks = moments_of(start, columns)
    n_measured = masks.sum(dim=-1)
    is_wrong = n_measured[:, -1] != n_measured[:, 0] + setting.horizon
    check_chosen(is_wrong.any(), "the sampler")
    return masks


def _looking(
    policy: Policy, acquisition: Acquisition, uniforms: Float[Tensor, "slice step"]
) -> Int[Tensor, "slice step"]:
    columns = []
    # The last image is not needed, so it is not reconstructed.
    while acquisition.n_next:
        scores, draws = acquisition.scores(policy).float(), uniforms[:, acquisition.n_acquired]
        columns.append(choose_columns(policy, scores, acquisition.blocked, draws)[:, None])
        acquisition.measure(columns[-1])
    return torch.cat(columns, dim=1)


def _blindly(
    policy: Policy,
    start: Bool[Tensor, "slice col"],
    selectable: Bool[Tensor, "slice col"],
    uniforms: Float[Tensor, "slice step"],
) -> Int[Tensor, "slice step"]:
    mask, columns = start, []
    for step in range(uniforms.shape[1]):
        seen = without_image(mask, step)
        column = choose_columns(policy, policy(seen), mask | ~selectable, uniforms[:, step])
        mask = mask.scatter(-1, column[:, None], True)
        columns.append(column)
    return torch.stack(columns, dim=1)


def without_image(mask: Bool[Tensor, "slice col"], step: int) -> Observation:
    """Return the observation of a policy that uses no image."""
    image = torch.zeros(len(mask), 1, mask.shape[1], device=mask.device)
    return Observation(image=image, mask=mask, step=step)


def moments_of(
    start: Bool[Tensor, "slice col"], columns: Int[Tensor, "slice step"]
) -> Bool[Tensor, "slice moment col"]:
    """Return the masks before and after each column."""
    taken = nn.functional.one_hot(columns, start.shape[1]).cumsum(dim=1).bool()
    return torch.cat([start[:, None], start[:, None] | taken], dim=1)
