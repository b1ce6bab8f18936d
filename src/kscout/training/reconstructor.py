"""Supervised training of a reconstructor under random masks (arXiv 2010.16262, section 3)."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.assemble import make_reconstructor, seeded_globals
from kscout.config import ReconstructorConfig, ReconstructorTraining, learning_rate_at
from kscout.core import Protocol, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import describe_device
from kscout.errors import ConfigError, RunError
from kscout.metrics import ssim
from kscout.randomness import keyed_generator
from kscout.reconstruction import is_learnable, save
from kscout.runs import Progress, Run, RunRecord, read_run
from kscout.training.checkpointing import checkpoint_of, load_checkpoint, restore, save_checkpoint
from kscout.training.convolution import choose_convolution, convolution, to_layout
from kscout.training.distributed import (
    average_gradients,
    from_main,
    is_main,
    n_processes,
    process_group,
    rank,
    share,
    sum_over_processes,
)
from kscout.training.gradients import EagerGradients, GraphedGradients
from kscout.training.masks import MaskDistribution

_VALIDATION_BATCH = 64

OnStep = Callable[[Progress], None]


class Best(NamedTuple):
    """The epoch with the best validation so far."""

    epoch: int
    val_ssim: float


def train_reconstructor(
    config: ReconstructorConfig,
    store: Store,
    out: str | Path,
    *,
    device: str = "auto",
    on_step: OnStep = lambda _: None,
) -> RunRecord:
    """Train a reconstructor, or go on with a training that was interrupted.

    Under `torchrun` all processes call this alike, and the main one writes. An interrupted run
    ends with the same weights as an undisturbed one, on a CPU bit for bit.

    Args:
        config: what to train and how.
        store: slices with the splits `train` and `val`.
        out: the run folder.
        device: `auto`, `cpu` or `cuda`.
        on_step: called after each optimizer step, and with the epoch's record after each epoch.
    """
    training, inputs = config.training, {"store": store.fingerprint}
    with process_group(device) as place:
        # Before the folder is made: a mistake in settings or store leaves nothing behind.
        model = make_reconstructor(
            config.reconstructor, seed=training.seed, protocol=training.protocol
        ).to(place)
        check_trainable(model, training.protocol)
        for split in ("train", "val"):
            store.array(split)
        words = describe_device(place, n_processes())
        with (
            Run.create_or_resume(out, config, inputs=inputs, device=words)
            if is_main()
            else nullcontext()
        ) as run:
            if not from_main(run is not None and run.is_finished):
                slices, held_out = (store.split(name).to(place) for name in ("train", "val"))
                _train(run, model, slices, held_out, training, on_step)
            return from_main(read_run(out) if is_main() else None)  # type: ignore[return-value]


def _train(
    run: Run | None,
    model: Reconstructor,
    slices: SliceSet,
    held_out: SliceSet,
    training: ReconstructorTraining,
    on_step: OnStep,
) -> None:
    """Train to the last epoch; only the main process has a run to write to."""
    backend = _fixed_convolution(run, training.convolution, slices.device)
    to_layout(model, backend)
    optimizer = torch.optim.Adam(model.parameters(), fused=slices.device.type == "cuda")
    checkpoint = from_main(load_checkpoint(run.checkpoint_path) if run else None)
    n_done, best = 0, Best(epoch=0, val_ssim=-math.inf)
    if checkpoint is not None:
        restore(checkpoint, model, optimizer)
        n_done, best = checkpoint["epoch"], Best(**checkpoint["facts"])
    if run is not None:
        run.rewind(n_done)

    masking = MaskDistribution(slices.n_cols, training.accelerations, training.center_fractions)
    held_out_masks = masking.of_volumes(held_out.volumes) & held_out.selectable.cpu()
    selectable = slices.selectable.cpu()
    with convolution(backend):
        learner = Learner(model, optimizer, slices, training)
        for epoch in range(n_done + 1, training.n_epochs + 1):
            begun = time.perf_counter()
            masks = masking.draw(len(slices), training.seed, "masks", epoch) & selectable
            loss = learner.pass_over_slices(epoch, masks, on_step)
            score = validation_ssim(model, held_out, held_out_masks, training)
            record = {
                "epoch": epoch,
                "train_loss": loss,
                "val_ssim": score,
                "learning_rate": learning_rate_at(training, epoch),
                "time_s": round(time.perf_counter() - begun, 3),
                "n_slices": len(slices),
            }
            if score > best.val_ssim:
                best = Best(epoch, score)
            if run is not None:
                # The checkpoint comes last: what a kill leaves ahead of it is made again, alike.
                run.log(record)
                _keep_weights(run, model, epoch, best.epoch, training)
                state = checkpoint_of(epoch, model, optimizer, best._asdict())
                save_checkpoint(run.checkpoint_path, state)
            on_step(Progress(epoch, training.n_epochs, learner.n_steps, learner.n_steps, record))
    if run is not None:
        _save(run.weights_path, run, model, training.n_epochs)
        run.finish({"best_epoch": best.epoch, "best_val_ssim": best.val_ssim})


@final
class Learner:
    """Takes a model through the training slices, batch by batch, never waiting for the device."""

    def __init__(
        self,
        model: Reconstructor,
        optimizer: torch.optim.Optimizer,
        slices: SliceSet,
        training: ReconstructorTraining,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.slices = slices
        self.training = training
        if training.batch_size < n_processes():
            raise ConfigError(
                f"a batch of {training.batch_size} cannot be shared by {n_processes()} processes; "
                "raise training.batch_size or start fewer"
            )
        self.n_steps = math.ceil(len(slices) / training.batch_size)

        def backward(inputs: Sequence[Tensor]) -> Tensor:
            mask, *tensors = inputs
            loss = training_loss(model, SliceBatch(*tensors), mask, training)
            torch.autograd.backward(loss)
            return loss

        self.gradients: EagerGradients | GraphedGradients
        if slices.device.type == "cuda":
            example = slices.batch(share(torch.zeros(training.batch_size, dtype=torch.int64)))
            model.train()
            self.gradients = GraphedGradients(
                backward, model.parameters(), [example.selectable, *example.tensors()]
            )
        else:
            self.gradients = EagerGradients(backward, model.parameters())

    def pass_over_slices(
        self, epoch: int, masks: Bool[Tensor, "slice col"], on_step: OnStep
    ) -> float:
        """Train for one epoch; return the mean loss, read from the device only at the end."""
        training, slices = self.training, self.slices
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(training, epoch)
        shuffle = keyed_generator(training.seed, "order", epoch)
        order = torch.randperm(len(slices), generator=shuffle)
        total = torch.zeros((), device=slices.device)
        self.model.train()
        with seeded_globals(training.seed, "dropout", epoch, rank()):
            for step, index in enumerate(order.split(training.batch_size), start=1):
                total += self.learn(index, masks)
                on_step(Progress(epoch, training.n_epochs, step, self.n_steps))
        mean = float(sum_over_processes(total)) / len(slices)
        if not math.isfinite(mean):
            raise RunError(
                f"the loss of epoch {epoch} is {mean}; lower training.learning_rate "
                f"(now {training.learning_rate}) and name another --out"
            )
        return mean

    def learn(self, index: Int[Tensor, " batch"], masks: Bool[Tensor, "slice col"]) -> Tensor:
        """Take one optimizer step; return the summed loss of this process's share of the batch.

        Slices are read here, not inside of a graph: they may lie in a file.
        """
        mine, device = share(index), self.slices.device
        summed = torch.zeros((), device=device)
        if len(mine):
            mask = masks[mine].to(device, non_blocking=True)
            summed = self.gradients([mask, *self.slices.batch(mine).tensors()]) * len(mine)
        else:
            self.optimizer.zero_grad()
        average_gradients(self.model.parameters(), len(mine) / len(index))
        self.optimizer.step()
        return summed


def training_loss(
    model: Reconstructor,
    batch: SliceBatch,
    mask: Bool[Tensor, "batch col"],
    training: ReconstructorTraining,
) -> Float[Tensor, ""]:
    """Return the model's own loss for one mask per slice, in the training's arithmetic."""
    with _arithmetic(training, mask.device):
        found = model(batch.kspace, mask)
    return model.loss(found, batch)


@torch.no_grad()
def validation_ssim(
    model: Reconstructor,
    slices: SliceSet,
    masks: Bool[Tensor, "slice col"],
    training: ReconstructorTraining,
) -> float:
    """Return the mean SSIM of reconstructions under fixed masks, by the run's protocol."""
    model.eval()
    total = torch.zeros((), device=slices.device)
    for index in torch.arange(len(slices)).split(_VALIDATION_BATCH):
        mine = share(index)
        if not len(mine):
            continue
        batch = slices.batch(mine)
        with _arithmetic(training, slices.device):
            found = model(batch.kspace, masks[mine].to(slices.device))
        image = batch.unnormalized(found, training.protocol)
        total += ssim(image, batch.target, data_range=batch.data_range).sum()
    return float(sum_over_processes(total)) / len(slices)


def check_trainable(model: Reconstructor, protocol: Protocol) -> None:
    """Refuse a reconstructor without parameters, and one that another protocol is for."""
    name = type(model).__name__
    if not is_learnable(model):
        raise ConfigError(
            f"{name} has nothing to train; a learnable reconstructor has parameters, to which "
            "gradients flow from the images that `reconstruct` returns"
        )
    if protocol != (model.protocol or "blind"):
        raise ConfigError(
            f"{name} gives images in units that it finds itself; train it with protocol blind"
        )


def _arithmetic(training: ReconstructorTraining, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=training.precision == "bf16")


def _fixed_convolution(run: Run | None, wanted: str, device: torch.device) -> str:
    """Return the run's convolution backend: the recorded one, else the wanted one."""
    if run is not None and "convolution" not in run.provenance:
        run.note(convolution=choose_convolution(wanted, device, trains=True))
    return from_main(run.provenance["convolution"] if run is not None else "")


def _keep_weights(
    run: Run, model: Reconstructor, epoch: int, best_epoch: int, training: ReconstructorTraining
) -> None:
    if epoch in training.keep_epochs:
        _save(run.epoch_path(epoch), run, model, epoch)
    if epoch == best_epoch:
        _save(run.best_path, run, model, epoch)


def _save(path: Path, run: Run, model: Reconstructor, epoch: int) -> None:
    training = run.config.training
    extra = {
        "epoch": epoch,
        "seed": training.seed,
        "protocol": training.protocol,
        "precision": training.precision,
        "store": run.provenance["inputs"]["store"],
    }
    save(path, model, extra=extra)
