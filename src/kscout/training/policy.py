"""Training of policies by the paper's estimators: one seed, or several in lockstep.

Policies in lockstep differ in seed and gamma alone. Each sees its own slices in its own order and
makes its own draws, exactly as it would alone; only the reconstructions are made together.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from kscout.acquisition.episode import Simulator, check_budget, protocol_note
from kscout.acquisition.rollout import action_uniforms, rollout
from kscout.assemble import make_policy
from kscout.config import AcquisitionSetting, PolicyConfig, learning_rate_at
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import describe_device, peak_memory
from kscout.errors import ConfigError, RunError
from kscout.policies import save
from kscout.reconstruction import load
from kscout.runs import Progress, Run, RunRecord, read_run
from kscout.training.checkpointing import checkpoint_of, load_checkpoint, restore, save_checkpoint
from kscout.training.convolution import choose_convolution, convolution, to_layout
from kscout.training.distributed import (
    from_main,
    is_main,
    n_processes,
    process_group,
    share,
    sum_over_processes,
)
from kscout.training.lockstep import Lockstep
from kscout.weights import fingerprint

_VALIDATION_BATCH = {"cpu": 16, "cuda": 256}

OnStep = Callable[[Progress], None]


def train_policy(
    config: PolicyConfig,
    store: Store,
    reconstructor: str | Path,
    out: str | Path,
    *,
    device: str = "auto",
    on_step: OnStep = lambda _: None,
) -> RunRecord:
    """Train one policy on a frozen reconstructor, or go on with a training that was interrupted."""
    runs = train_policies([config], store, reconstructor, [out], device=device, on_step=on_step)
    return runs[0]


def train_policies(
    configs: Sequence[PolicyConfig],
    store: Store,
    reconstructor: str | Path,
    outs: Sequence[str | Path],
    *,
    device: str = "auto",
    on_step: OnStep = lambda _: None,
) -> list[RunRecord]:
    """Train policies in lockstep, each into its own run folder.

    Under `torchrun` all processes call this alike, and the main one writes.

    Args:
        configs: settings that differ in seed and gamma alone.
        store: slices with the splits `train` and `val`.
        reconstructor: what `kscout.reconstruction.load` takes; it stays frozen.
        outs: a run folder for each.
        device: `auto`, `cpu` or `cuda`.
        on_step: called after each optimizer step, and with the epoch's record after each epoch.
    """
    _check_alike(configs)
    with process_group(device) as place, ExitStack() as stack:
        frozen = load(reconstructor)
        inputs = {"store": store.fingerprint, "reconstructor": fingerprint(frozen)}
        slices, held_out = (store.split(name).to(place) for name in ("train", "val"))
        setting = configs[0].acquisition
        protocol = configs[0].training.protocol
        for note in (protocol_note(frozen, protocol), _size_note(setting, slices.n_cols)):
            if note is not None and is_main():
                logging.getLogger(__name__).warning(note)
        for split in (slices, held_out):
            check_budget(split.selectable, n_initial=setting.n_initial, horizon=setting.horizon)
        learners = []
        for config, out in zip(configs, outs, strict=True):
            policy = make_policy(
                config.policy,
                seed=config.training.seed,
                n_cols=slices.n_cols,
                n_rows=slices.images.shape[-2],
                n_initial=setting.n_initial,
                horizon=setting.horizon,
            )
            # Before the folder is made: a policy that cannot be trained leaves nothing behind.
            _check_trainable(config.policy.name, policy)
            run = None
            if is_main():
                words = describe_device(place, n_processes())
                opened = Run.create_or_resume(out, config, inputs=inputs, device=words)
                run = stack.enter_context(opened)
            learners.append(Learner.resume(config, policy.to(place), run))
        waiting = [learner for learner in learners if not learner.is_finished]
        if waiting:
            _train(waiting, slices, held_out, frozen, on_step)
        return from_main([read_run(out) for out in outs] if is_main() else [])


@final
@dataclass
class Learner:
    """One policy in training, its optimizer and its run; only the main process has the run."""

    config: PolicyConfig
    policy: Policy
    optimizer: torch.optim.Optimizer
    run: Run | None
    n_done: int = 0
    """Epochs done."""
    best_epoch: int = 0
    best_ssim: float = -math.inf
    is_finished: bool = False

    @classmethod
    def resume(cls, config: PolicyConfig, policy: Policy, run: Run | None) -> "Learner":
        """Start a policy's training, or put it back to its last whole epoch."""
        parameters = list(policy.parameters())
        optimizer = torch.optim.Adam(parameters, fused=parameters[0].device.type == "cuda")
        learner = cls(config, policy, optimizer, run)
        learner.is_finished = from_main(run is not None and run.is_finished)
        checkpoint = from_main(load_checkpoint(run.checkpoint_path) if run else None)
        if checkpoint is not None:
            restore(checkpoint, policy, optimizer)
            learner.n_done = checkpoint["epoch"]
            learner.best_epoch = checkpoint["facts"]["best_epoch"]
            learner.best_ssim = checkpoint["facts"]["best_ssim"]
        if run is not None and not learner.is_finished:
            run.rewind(learner.n_done)
        return learner

    def keep(
        self, epoch: int, train_ssim: float, val_ssim: float, shared: dict[str, Any]
    ) -> dict[str, Any]:
        """Write an epoch's record, weights and checkpoint, the checkpoint last."""
        if not math.isfinite(train_ssim):
            raise RunError(f"the scores of epoch {epoch} are not finite; lower the learning rate")
        self.n_done = epoch
        if val_ssim > self.best_ssim:
            self.best_epoch, self.best_ssim = epoch, val_ssim
        record = {
            "epoch": epoch,
            "train_ssim": train_ssim,
            "val_ssim": val_ssim,
            "learning_rate": learning_rate_at(self.config.training, epoch),
            **shared,
        }
        if self.run is not None:
            self._write(self.run, record)
        return record

    def _write(self, run: Run, record: dict[str, Any]) -> None:
        run.log(record)
        if self.n_done in self.config.training.keep_epochs:
            self._save(run.epoch_path(self.n_done))
        if self.best_epoch == self.n_done:
            self._save(run.best_path)
        facts = {"best_epoch": self.best_epoch, "best_ssim": self.best_ssim}
        state = checkpoint_of(self.n_done, self.policy, self.optimizer, facts)
        save_checkpoint(run.checkpoint_path, state)

    def finish(self) -> None:
        """Write the last epoch's weights and close the run."""
        if self.run is not None:
            self._save(self.run.weights_path)
            self.run.finish({"best_epoch": self.best_epoch, "best_val_ssim": self.best_ssim})

    def _save(self, path: Path) -> None:
        assert self.run is not None
        training, setting = self.config.training, self.config.acquisition
        extra = {
            "epoch": self.n_done,
            "method": training.method,
            "gamma": training.gamma,
            "seed": training.seed,
            "protocol": training.protocol,
            "n_initial": setting.n_initial,
            "horizon": setting.horizon,
            **self.run.provenance["inputs"],
        }
        save(path, self.policy, extra=extra)


def _train(
    learners: list[Learner],
    slices: SliceSet,
    held_out: SliceSet,
    reconstructor: Reconstructor,
    on_step: OnStep,
) -> None:
    training = learners[0].config.training
    n_rows, n_cols = slices.images.shape[-2:]
    frozen = reconstructor.frozen(
        precision=training.precision, n_rows=n_rows, n_cols=n_cols, device=slices.device
    )
    backend = _fixed_convolution(learners, slices.device)
    to_layout(frozen, backend)
    together: dict[int, Lockstep] = {}
    with convolution(backend):
        for epoch in range(min(x.n_done for x in learners) + 1, training.n_epochs + 1):
            # A kill may have left some policies an epoch behind: those catch up first.
            active = [learner for learner in learners if learner.n_done < epoch]
            if len(active) not in together:
                together = {len(active): _lockstep(active, slices, frozen)}
            lockstep = together[len(active)]
            begun = time.perf_counter()
            train_ssim = lockstep.pass_over_slices(epoch, on_step)
            val_ssim = [
                _validation_ssim(learner, policy, held_out, frozen)
                for learner, policy in zip(active, lockstep.choosing_policies(), strict=True)
            ]
            shared = {
                "time_s": round(time.perf_counter() - begun, 3),
                "n_lockstep": len(active),
                "n_reconstructions": lockstep.n_reconstructions,
                "peak_memory_bytes": peak_memory(slices.device),
            }
            records = [
                learner.keep(epoch, seen, unseen, shared)
                for learner, seen, unseen in zip(active, train_ssim, val_ssim, strict=True)
            ]
            n_steps = lockstep.n_steps
            on_step(Progress(epoch, training.n_epochs, n_steps, n_steps, records[0]))
    for learner in learners:
        learner.finish()


def _lockstep(learners: list[Learner], slices: SliceSet, frozen: Reconstructor) -> Lockstep:
    return Lockstep(
        [learner.policy for learner in learners],
        [learner.optimizer for learner in learners],
        [learner.config for learner in learners],
        slices,
        frozen,
    )


@torch.no_grad()
def _validation_ssim(
    learner: Learner, policy: Policy, slices: SliceSet, frozen: Reconstructor
) -> float:
    """Return mean SSIM at the end of one trajectory per held-out slice, always the same draws."""
    training, setting = learner.config.training, learner.config.acquisition
    learner.policy.eval()
    uniforms = action_uniforms(len(slices), 1, setting.horizon, training.seed, "validation")
    uniforms = uniforms.to(slices.device)
    total = torch.zeros((), device=slices.device)
    everything = torch.arange(len(slices), device=slices.device)
    for index in everything.split(_VALIDATION_BATCH[slices.device.type]):
        mine = share(index)
        if len(mine):
            simulator = Simulator(slices.batch(mine), frozen, protocol=training.protocol)
            found = rollout(
                policy,
                simulator,
                n_initial=setting.n_initial,
                horizon=setting.horizon,
                uniforms=uniforms[mine],
            )
            total += found.ssim[:, 0, -1].sum()
    return float(sum_over_processes(total)) / len(slices)


def _size_note(setting: AcquisitionSetting, n_cols: int) -> str | None:
    """Return a sentence where the images are not of the size that a setting is meant for."""
    if setting.size in (None, n_cols):
        return None
    return (
        f"the setting {setting.n_initial} + {setting.horizon} columns is meant for {setting.size}, "
        f"and the images have {n_cols}; name --n-initial and --steps, or another --preset, if it "
        "was not chosen for them"
    )


def _check_trainable(name: str, policy: Policy) -> None:
    """Refuse a policy without weights, and one whose scores are others each time it looks."""
    if not list(policy.parameters()):
        raise ConfigError(
            f"policy {name!r} has nothing to train; use a learnable one, e.g. policy.name = 'conv'"
        )
    for path, module in policy.named_modules():
        if isinstance(module, _BatchNorm) or _dropout(module) > 0:
            raise ConfigError(
                f"policy {name!r} has a {type(module).__name__} at {path!r}, and "
                "gradients must belong to the network that drew the columns: set dropout to 0, "
                "and normalize each image alone, e.g. by InstanceNorm2d or GroupNorm"
            )


def _dropout(module: nn.Module) -> float:
    """Return the share of features that a module drops at random while it trains."""
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout
    return module.p if isinstance(module, _DropoutNd) else 0.0


def _check_alike(configs: Sequence[PolicyConfig]) -> None:
    """Refuse to run policies in lockstep whose settings would want different batches."""
    plain = [replace(c, training=replace(c.training, seed=0, gamma=1.0)) for c in configs]
    if any(config != plain[0] for config in plain):
        raise ConfigError(
            "policies in lockstep differ in more than seed and gamma; train them one by one"
        )


def _fixed_convolution(learners: list[Learner], device: torch.device) -> str:
    """Return the convolution backend: the one a run recorded, else the wanted one."""
    if is_main():
        runs = [learner.run for learner in learners if learner.run is not None]
        noted = [run.provenance["convolution"] for run in runs if "convolution" in run.provenance]
        wanted = noted[0] if noted else learners[0].config.training.convolution
        name = choose_convolution(wanted, device, trains=False)
        for run in runs:
            if "convolution" not in run.provenance:
                run.note(convolution=name)
        return from_main(name)
    return from_main("")
