"""Joint training on CUDA: graphs and 16-bit views see a network that learns."""

from pathlib import Path

import pytest
import torch
from joint_runs import METHODS, joint_config
from training_stores import blob_store, stopping_at

from kscout import policies, reconstruction
from kscout.data.store import Store
from kscout.kernels.graphs import BatchGradients
from kscout.names import SAMPLERS
from kscout.reconstruction.unet import HalfPrecisionUNet, UNet
from kscout.training.joint.algorithm import Current
from kscout.training.joint.sampler import Material, Sampler
from kscout.training.joint.train import train_joint

pytestmark = pytest.mark.cuda

UNET = {"name": "unet", "n_channels": 16, "n_pools": 2}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return blob_store(tmp_path_factory.mktemp("store") / "store", n_rows=64, n_cols=64)


def test_half_precision_follows_the_network_inside_of_a_graph(store: Store) -> None:
    slices = store.split("train").to("cuda")
    torch.manual_seed(0)
    model = UNet(n_channels=16, n_pools=2).cuda()
    current = Current(model, slices)
    assert isinstance(current.view, HalfPrecisionUNet)
    batch = slices.batch(torch.arange(3))
    mask = (torch.arange(64, device="cuda") % 3 == 0).expand(3, -1)
    with torch.no_grad():
        before = model.eval()(batch.kspace, mask).image
        current.view(batch.kspace, mask)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = current.view(batch.kspace, mask).image
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        current.refresh()
        graph.replay()
        anew = Current(model, slices).view(batch.kspace, mask).image
        single = model(batch.kspace, mask).image
    # A view that is made of the changed network rounds as the graph does; one in single precision
    # is as far as sixteen bits, layer upon layer, carry it.
    torch.testing.assert_close(found, anew, rtol=0, atol=1e-3)
    assert (found - before).abs().mean() > 20 * (found - single).abs().mean()


@pytest.mark.parametrize("method", METHODS)
def test_every_sampler_trains_and_goes_on(method: str, store: Store, tmp_path: Path) -> None:
    config = joint_config(method, model=UNET, n_updates=12, convolution="auto")
    stop = stopping_at(3, 1)
    with pytest.raises(KeyboardInterrupt):
        train_joint(config, store, tmp_path / "run", device="cuda", on_step=stop)
    run = train_joint(config, store, tmp_path / "run", device="cuda")
    assert [record["n_updates"] for record in run.metrics] == [4, 8, 12]
    assert run.metrics[-1]["train_loss"] < run.metrics[0]["train_loss"] * 2
    network, policy = reconstruction.load(run.path), policies.load(run.path)
    assert all(p.isfinite().all() for one in (network, policy) for p in one.parameters())


@pytest.mark.parametrize("method", ["loupe", "straight-through"])
def test_draws_inside_of_a_graph_are_learned_from_as_outside(method: str, store: Store) -> None:
    slices, found = store.split("train").to("cuda"), []
    config = joint_config(method, model=UNET, n_updates=12, convolution="auto", precision="fp32")
    kind: type[Sampler] = SAMPLERS.resolve(method)
    for is_plain in (True, False):
        torch.manual_seed(0)
        current = Current(UNet(n_channels=16, n_pools=2).cuda(), slices)
        policy = kind.make_policy(config, slices).cuda()
        optimizer = torch.optim.Adam(policy.parameters())
        material = Material(config, slices, current.view, current.snapshot, optimizer)
        sampler = kind(policy, material)
        if is_plain:
            plain = BatchGradients(sampler._backward, policy.parameters())  # type: ignore[attr-defined]
            sampler.gradients = plain  # type: ignore[attr-defined]
        found.append([float(sampler.update(number)) for number in range(4)])
        assert (sampler.gradients.graph is None) == is_plain  # type: ignore[attr-defined]
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert len(set(found[0])) == 4


# Torch's own compiler uses what torch says not to use any more.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_gradients_lead_where_plain_ones_do(store: Store, tmp_path: Path) -> None:
    losses = []
    for is_compiled in (False, True):
        config = joint_config(
            "random", model=UNET, n_updates=12, convolution="auto", compile=is_compiled
        )
        run = train_joint(config, store, tmp_path / str(is_compiled), device="cuda")
        losses.append([record["train_loss"] for record in run.metrics])
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
    assert losses[1] != losses[0]
