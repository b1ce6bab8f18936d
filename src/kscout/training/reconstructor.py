"""Supervised training of a reconstructor under random masks (arXiv 2010.16262, appendix A.1)."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.assemble import make_reconstructor
from kscout.compatibility import target_note
from kscout.config import (
    Component,
    JointTraining,
    ReconstructorConfig,
    ReconstructorTraining,
    warmed_rate,
)
from kscout.core import Measurement, Protocol, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import check_memory
from kscout.errors import ConfigError, unknown_name
from kscout.kernels.graphs import Backward, BatchGradients
from kscout.names import RECONSTRUCTORS, trainable_reconstructions
from kscout.randomness import keyed_generator
from kscout.reconstruction import is_learnable, save
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.runs import Run, RunRecord, read_run
from kscout.training.algorithm import Algorithm, EpochResult, Learner, optimizer_step
from kscout.training.augmentation import MaskDistribution, mirrored
from kscout.training.convolution import convolution, to_layout
from kscout.training.distributed import (
    average_gradients,
    from_main,
    is_main,
    n_processes,
    process_group,
    share,
    sum_over_processes,
)
from kscout.training.loop import OnStep, fixed_convolution, opened_run, train_epochs
from kscout.training.training_run import TrainingRun
from kscout.training.validation import VALIDATION_BATCH, panel, validation_ssim

ReconstructorLearner = Learner[Reconstructor, ReconstructorConfig]


def train_reconstructor(
    config: ReconstructorConfig,
    store: Store | Path | str,
    out: str | Path,
    *,
    device: str = "auto",
    on_step: OnStep = lambda _: None,
) -> RunRecord:
    """Train a reconstructor, or resume an interrupted training.

    Under `torchrun` all processes call this function, and the main one writes. An interrupted run
    ends with the same weights as an undisturbed one, on a CPU bit for bit.

    Args:
        config: what to train and how.
        store: dataset with the splits `train` and `val`.
        out: the run folder.
        device: `auto`, `cpu` or `cuda`.
        on_step: called after each optimizer step, and with the epoch's record after each epoch.
    """
    store = Store.open(store)
    training, inputs = config.training, {"store": store.fingerprint}
    with process_group(device) as place:
        # Before the folder is made: a mistake in settings or store leaves nothing behind.
        model = new_model(config.reconstructor, training.seed, training.protocol).to(place)
        store.kind.check_protocol(training.protocol)
        _check_centers(training, store)
        shape = [store.kind.shape(store.array(split).shape) for split in ("val", "train")][-1]
        note = target_note(model, store.kind.target_rule, shape[0])
        if note is not None and is_main():
            logging.getLogger(__name__).warning(note)
        n_images = min(training.batch_size, VALIDATION_BATCH)
        check_memory(
            n_images * model.n_bytes(*shape),
            place,
            f"a batch of {n_images:,} images of {shape[1]}x{shape[2]}",
            "lower --batch-size, or make the network smaller",
        )
        with opened_run(out, config, inputs, place) as run:
            if not from_main(run is not None and run.is_finished):
                slices, held_out = (store.split(name).to(place) for name in ("train", "val"))
                _train(run, model, config, slices, held_out, on_step)
            return from_main(read_run(out) if is_main() else None)  # type: ignore[return-value]


def _train(
    run: Run | None,
    model: Reconstructor,
    config: ReconstructorConfig,
    slices: SliceSet,
    held_out: SliceSet,
    on_step: OnStep,
) -> None:
    """Train to the last epoch; only the main process has a run to write to."""
    training = config.training
    backend = fixed_convolution(run, training.convolution, slices.device, trains=True)
    to_layout(model, backend)
    learner = Learner.of(model, config)
    training_run = TrainingRun.resume(learner, run, partial(_save, run))
    masks = masking_of(slices.n_cols, training).of_volumes(held_out.volumes)

    def validate(algorithm: Supervised) -> dict[str, float]:
        return {"val_ssim": validation_ssim(algorithm.evaluated(), held_out, masks, training)}

    @torch.no_grad()
    def picture(algorithm: Supervised) -> Tensor:
        model, mask = algorithm.evaluated().eval(), masks[:1].to(slices.device)
        batch = held_out.batch(torch.tensor([0]))
        image = batch.unnormalized(model(batch.kspace, mask & batch.selectable), training.protocol)
        return panel(batch.target[0], image[0], mask[0])

    score = validation_ssim(ZeroFilled(), held_out, masks, training)
    training_run.note(val_ssim_zero_filled=score)
    with convolution(backend):
        train_epochs(
            Supervised(learner, slices), training_run, validate, picture=picture, on_step=on_step
        )


def masking_of(n_cols: int, training: ReconstructorTraining) -> MaskDistribution:
    """Return the mask distribution of a training for a number of columns."""
    return MaskDistribution(n_cols, training.accelerations, training.center_fractions)


@final
class Supervised(Algorithm[Reconstructor, ReconstructorConfig]):
    """Trains a model on batches of slices; no step waits for the device."""

    def __init__(self, learner: ReconstructorLearner, slices: SliceSet) -> None:
        super().__init__(learner, len(slices))
        self.slices, self.training = slices, learner.config.training
        if self.training.batch_size < n_processes():
            raise ConfigError(
                f"a batch of {self.training.batch_size} cannot be shared by {n_processes()} "
                "processes; raise training.batch_size or start fewer"
            )
        self.masking = masking_of(slices.n_cols, self.training)
        first = share(torch.zeros(self.training.batch_size, dtype=torch.int64))
        self.gradients = gradients_of(learner.module, slices, first, self._backward)

    def begin_epoch(self, epoch: int) -> None:
        """Draw the order of the slices, their masks and their mirroring."""
        training, n_slices = self.training, len(self.slices)
        self.masks = self.masking.draw(n_slices, training.seed, "masks", epoch)
        drawn = keyed_generator(training.seed, "order", epoch)
        self.order = torch.randperm(n_slices, generator=drawn).split(training.batch_size)
        drawn = keyed_generator(training.seed, "mirrored", epoch)
        self.is_mirrored = (torch.rand(n_slices, generator=drawn) < 0.5) & training.flips
        self.learner.begin(epoch)

    def end_epoch(self, epoch: int) -> EpochResult:
        """Read the loss from the device, which no step waits for."""
        n_slices = len(self.slices)
        loss = float(sum_over_processes(self.sums["loss"])) / n_slices
        return EpochResult({"train_loss": loss}, {"n_slices": n_slices})

    def rate(self, epoch: int) -> float:
        return self._rate(epoch, self.n_steps - 1)

    def _rate(self, epoch: int, step: int) -> float:
        training, largest = self.training, self.learner.rate(epoch)
        if training.n_warm is None:
            return largest
        n_done, n_steps = (epoch - 1) * self.n_steps + step, training.n_epochs * self.n_steps
        return warmed_rate(largest, n_done, n_steps, min(training.n_warm, n_steps // 10))

    def take_step(self, epoch: int, step: int) -> None:
        """Take one optimizer step, and add up the loss of this process's share of the batch.

        Slices are read outside of the CUDA graph, since they may be stored in a file.
        """
        index, device = self.order[step], self.slices.device
        mine = share(index)
        summed = torch.zeros((), device=device)
        if len(mine):
            batch = self.slices.batch(mine)
            if self.training.flips:
                batch = mirrored(batch, self.is_mirrored[mine].to(device, non_blocking=True))
            mask = self.masks[mine].to(device, non_blocking=True) & batch.selectable
            summed = self.gradients([mask, *batch.tensors()]) * len(mine)
        else:
            self.learner.optimizer.zero_grad()
        average_gradients(self.learner.module.parameters(), len(mine) / len(index))
        optimizer_step(self.learner.optimizer, self._rate(epoch, step))
        self.add(loss=summed)
        self.means = {"loss": summed / max(1, len(mine))}

    def _backward(self, inputs: Sequence[Tensor]) -> Float[Tensor, ""]:
        mask, *tensors = inputs
        loss = training_loss(self.learner.module, SliceBatch(*tensors), mask, self.training)
        torch.autograd.backward(loss)
        return loss


def gradients_of(
    model: Reconstructor, slices: SliceSet, first: Int[Tensor, " batch"], backward: Backward
) -> BatchGradients:
    """Return the gradients of a loss; on CUDA batches as large as the first are one graph.

    The inputs of `backward` are the masks of a batch, then its tensors.
    """
    if slices.device.type != "cuda" or model.waits_for_device:
        return BatchGradients(backward, model.parameters())
    example = slices.batch(first)
    model.train()
    inputs = [example.selectable, *example.tensors()]
    return BatchGradients(backward, model.parameters(), inputs)


def training_loss(
    model: Reconstructor,
    batch: SliceBatch,
    mask: Bool[Tensor, "batch col"],
    training: ReconstructorTraining | JointTraining,
    start: Bool[Tensor, "batch col"] | None = None,
) -> Float[Tensor, ""]:
    """Return the model's own loss for one mask per slice.

    Sensitivities are found in the columns of `start`, with which acquisitions began; by default in
    all that is measured.
    """
    measured = Measurement.of(batch.kspace, mask)
    if start is not None:
        maps = model.calibrate(Measurement.of(batch.kspace, start))
        measured = replace(measured, maps=maps)
    return model.loss(model.reconstruct(measured), batch)


def _check_centers(training: ReconstructorTraining, store: Store) -> None:
    n_cols = store.array("train").shape[-1]
    n_center = min(round(n_cols * share) for share in training.center_fractions)
    if n_center < store.manifest.n_basis:
        raise ConfigError(
            f"coils were compressed by {store.manifest.n_basis} central columns, and some masks of "
            f"this training measure {n_center} of them; raise training.center_fractions, or "
            "compress by fewer (--compress-center)"
        )


def new_model(component: Component, seed: int, protocol: Protocol) -> Reconstructor:
    """Build a network with random initial weights; other components are errors."""
    if component.name not in RECONSTRUCTORS:
        choices = [*trainable_reconstructions(), "module:Class"]
        raise unknown_name("reconstruction", component.name, choices)
    model = make_reconstructor(component, seed=seed, protocol=protocol)
    check_trainable(model, protocol)
    return model


def check_trainable(model: Reconstructor, protocol: Protocol) -> None:
    """Raise an error for a reconstructor without parameters, or for another protocol."""
    name = type(model).__name__
    if not is_learnable(model):
        raise ConfigError(
            f"{name} has nothing to train; a learnable reconstructor has parameters, to which "
            "gradients flow from the images that `reconstruct` returns; kscout has "
            f"{', '.join(trainable_reconstructions())}"
        )
    if protocol != (model.protocol or "blind"):
        raise ConfigError(
            f"{name} gives images in units that it finds itself; train it with protocol blind "
            "(--protocol blind)"
        )


def _save(run: Run | None, path: Path, model: Reconstructor, epoch: int) -> None:
    assert run is not None
    training = run.config.training
    extra = {
        "epoch": epoch,
        "seed": training.seed,
        "protocol": training.protocol,
        "store": run.provenance.inputs["store"],
    }
    save(path, model, extra=extra)
