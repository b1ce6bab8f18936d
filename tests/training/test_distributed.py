"""Two processes under torchrun train like one with the same batches."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from training_stores import blob_store, run_command
from typer.testing import CliRunner

from coil_data import coil_store
from fuzz.forks import start
from kscout.apps.cli.train import app
from kscout.config import (
    AcquisitionSetting,
    Component,
    GreedyTraining,
    PolicyConfig,
    ReconstructorConfig,
    ReconstructorTraining,
)
from kscout.core import Protocol
from kscout.data import contents
from kscout.data.store import Store
from kscout.evaluation.compare import evaluate
from kscout.evaluation.request import EvaluationSetting
from kscout.runs import read_run
from kscout.training.distributed import (
    average_gradients,
    from_main,
    is_main,
    process_group,
    share,
    sum_over_processes,
)
from kscout.training.policy import train_policy
from kscout.training.reconstructor import train_reconstructor
from kscout.weights import read_weights


def run_shared(folder: Path, commands: Sequence[str]) -> None:
    """Check how gradients are shared, then run commands: in each of several processes."""
    torch.set_num_threads(1)
    with process_group("cpu"):
        # Five by two is three and two; one by two is one and none.
        for n_batch in (5, 1):
            weight = nn.Parameter(torch.ones(3))
            mine = share(torch.arange(n_batch))
            if len(mine):
                (weight * (mine[:, None] + torch.arange(3.0)).square()).sum(dim=1).mean().backward()
            average_gradients([weight], len(mine) / n_batch)
            if is_main():
                torch.save(weight.grad, folder / f"gradient-{n_batch}.pt")
        # Inside: a second group under one torchrun may find the addresses of the first.
        for command in commands:
            run_command(command.split())


def under_torchrun(work: Callable[[], None], folder: Path) -> None:
    """Do as torchrun does, in two processes that need not import torch.

    The test forks them itself: torch's launcher forks beside threads of its own, and a lock that
    one of these holds is never given back in the fork.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}

    def live(rank: int) -> int:
        os.environ.update(told, RANK=str(rank), LOCAL_RANK=str(rank), TORCHELASTIC_RUN_ID="one")
        work()
        return 0

    logs = [folder / f"rank-{rank}.log" for rank in range(2)]
    working = [start(partial(live, rank), folder, log) for rank, log in enumerate(logs)]
    codes = []
    while working:
        for child in [*working]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                continue
            working.remove(child)
            codes.append(os.waitstatus_to_exitcode(status))
            if codes[-1]:
                # The other would wait for it.
                for left in working:
                    os.killpg(left, signal.SIGKILL)
        time.sleep(0.02)
    output = "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
    assert codes == [0, 0], output


def test_alone_nothing_changes() -> None:
    parameter = nn.Parameter(torch.tensor([2.0, 3.0]))
    parameter.grad = torch.tensor([4.0, 5.0])
    average_gradients([parameter], weight=0.5)
    assert parameter.grad.tolist() == [4.0, 5.0]
    assert share(torch.arange(3)).tolist() == [0, 1, 2]
    assert sum_over_processes(torch.tensor(7.0)) == 7 and from_main("x") == "x" and is_main()


@pytest.mark.parametrize("fails", [False, True])
def test_processes_meet_when_they_join_and_unless_they_fail_when_they_leave(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    said: list[str] = []
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    for name in ("init_process_group", "all_reduce", "destroy_process_group"):
        monkeypatch.setattr(dist, name, lambda *_, name=name: said.append(name))
    with contextlib.suppress(ZeroDivisionError), process_group("cpu"):
        said.append("work")
        if fails:
            raise ZeroDivisionError
    before = ["init_process_group", "all_reduce", "work"]
    assert said == [*before, *([] if fails else ["all_reduce"]), "destroy_process_group"]


# Eleven slices in batches of five: the last batch of one leaves the second process idle.
COMMAND = (
    "reconstructor --epochs 3 --batch-size 5 --channels 3 --device cpu --convolution native "
    "--set reconstructor.n_pools=2"
)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    blob_store(tmp_path / "store", n_rows=16, n_cols=16)
    command = f"{COMMAND} --data {tmp_path / 'store'} --out {tmp_path}"
    alone = CliRunner().invoke(app, f"{command}/one".split())
    assert alone.exit_code == 0, alone.output
    shared = [f"{command}/two"]
    under_torchrun(lambda: run_shared(tmp_path, shared), tmp_path)
    for n_batch in (5, 1):
        gradient = torch.load(tmp_path / f"gradient-{n_batch}.pt", weights_only=True)
        # The mean over the whole batch of (i + j)^2.
        expected = [sum((i + j) ** 2 for i in range(n_batch)) / n_batch for j in range(3)]
        assert gradient.tolist() == pytest.approx(expected)
    one, two = (read_run(tmp_path / name) for name in ("one", "two"))
    assert two.provenance.device == "cpu x 2"
    for a, b in zip(one.metrics, two.metrics, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
        assert a["val_ssim"] == pytest.approx(b["val_ssim"], abs=1e-4)
    expected, other = (read_weights(run.path / "weights.safetensors").state for run in (one, two))
    for key, value in expected.items():
        # Adam divides by the gradient's size, so biases before instance norm follow rounding.
        is_rounding = key.endswith("bias")
        assert is_rounding or torch.allclose(other[key], value, atol=2e-4, rtol=0), key


UNET = ReconstructorConfig(
    Component("unet", {"n_channels": 2, "n_pools": 2}),
    ReconstructorTraining(n_epochs=2, batch_size=4, convolution="native"),
)
POLICY = PolicyConfig(
    Component("conv", {"n_channels": 2, "n_blocks": 2, "n_hidden": 8}),
    AcquisitionSetting(n_initial=4, horizon=2),
    GreedyTraining(n_epochs=1, batch_size=4, n_trajectories=3, convolution="native"),
)
EVALUATED = ("random", "fixed", "na-oracle", "oracle")


def results(store: Store, folder: Path) -> dict[str, Any]:
    protocol: Protocol = "blind" if store.kind.name == "kspace" else "paper"
    of_unet, of_policy = (
        replace(config, training=replace(config.training, protocol=protocol))
        for config in (UNET, POLICY)
    )
    unet = train_reconstructor(of_unet, store, folder / "unet", device="cpu")
    policy = train_policy(of_policy, store, unet.path, folder / "policy", device="cpu")
    setting = EvaluationSetting(
        n_initial=4, steps=2, trajectories=2, protocol=protocol, split="val", limit=4, device="cpu"
    )
    names = [*EVALUATED, str(policy.path)]
    evaluate(names, store, unet.path, setting, out=folder / "evaluation")
    weights = "weights.safetensors"
    return {
        "unet": (unet.path / weights).read_bytes(),
        "policy": (policy.path / weights).read_bytes(),
        "scores": (folder / "evaluation" / "results.csv").read_text(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("write", [blob_store, coil_store])
def test_lazy_slices_give_the_same_bytes(
    write: Callable[[Path], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write(tmp_path / "store")
    resident = results(store, tmp_path / "resident")
    monkeypatch.setattr(contents, "RESIDENT_SHARE", 0)
    assert not store.split("train").contents.is_resident
    assert results(store, tmp_path / "lazy") == resident
