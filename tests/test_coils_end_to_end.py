"""A store of coils goes the whole way: reconstructions, policies, oracles, analyses, report."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from coil_data import coil_kspace, coil_store
from command_line import kscout
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import rollout
from kscout.acquisition.plan import Plan
from kscout.core import Observation, Policy
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.gym_env import AcquisitionEnv
from kscout.names import ANALYSES
from kscout.reconstruction import RECONSTRUCTORS
from kscout.reconstruction.varnet import VarNet

BUDGET = ("--n-initial", "9", "--steps", "2")
PAPER = ("--protocol", "paper")
GYM: dict[str, Any] = {"split": "test", "horizon": 2}
FAST = ("--epochs", "1", "--batch-size", "3", "--device", "cpu")
NETWORK = {"n_cascades": 1, "n_channels": 2, "n_pools": 2}
NETWORK |= {"sensitivity_channels": 2, "sensitivity_pools": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of four coils, networks trained on it, and an evaluation."""
    where = tmp_path_factory.mktemp("coils")
    coil_store(where / "store", size=(20, 34), noise=0.01)
    data, network = ("--data", where / "store"), []
    for key, value in NETWORK.items():
        network += ["--set", f"reconstructor.{key}={value}"]
    kscout(
        *("train", "reconstructor", "--model", "varnet", *data, *FAST, *network),
        *("--out", where / "varnet"),
    )
    given = (*data, "--reconstructor", where / "varnet", *BUDGET)
    small = ["--set", "policy.width=16", "--set", "policy.n_heads=2", "--set", "policy.n_layers=1"]
    small += ["--set", "training.n_best=1", "--set", "training.n_random=2"]
    small += ["--set", "training.n_repeats=1", "--set", "training.n_repeated=3"]
    kscout(
        *("train", "policy", "--method", "dense", "--policy", "column", *given, *FAST, *small),
        *("--out", where / "dense-seed0"),
    )
    conv = ["--set", "policy.n_channels=2", "--set", "policy.n_blocks=2"]
    conv += ["--set", "policy.n_hidden=9"]
    kscout(
        *("train", "policy", "--method", "greedy", "--policy", "conv", *given, *FAST, *conv),
        *("--trajectories", 2, "--out", where / "greedy-seed0"),
    )
    trained = (where / "dense-seed0", where / "greedy-seed0")
    names = ("random", "fixed", "na-oracle", "oracle", *trained)
    policies = [word for name in names for word in ("--policy", name)]
    kscout("evaluate", *given, *policies, "--trajectories", 1, "--out", where / "results")
    return where


@pytest.mark.slow
def test_every_policy_and_oracle_is_trained_and_scored_under_protocol_blind(place: Path) -> None:
    summary = json.loads((place / "results" / "summary.json").read_text())
    assert (summary["columns"], summary["protocol"]) == ("simulated", "blind")
    for run in ("varnet", "dense-seed0", "greedy-seed0"):
        assert 'protocol = "blind"' in (place / run / "config.toml").read_text()
    final = {row["policy"]: row["final"]["ssim"]["mean"] for row in summary["policies"]}
    assert len(final) == 6 and final["oracle"] >= final["random"]
    with (place / "results" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["step"] for row in rows} == {"0", "1", "2"}


@pytest.mark.slow
def test_reconstructions_are_compared_and_reported(place: Path, undrawn: None) -> None:
    names = [name for name in RECONSTRUCTORS if not name.endswith(("unet", "varnet"))]
    kscout(
        *("analyze", "reconstructions", *names, place / "varnet", "--data", place / "store"),
        *(*BUDGET, "--out", place / "analyses"),
    )
    with (place / "analyses" / "reconstructions.csv").open() as file:
        rows = {row["reconstruction"]: float(row["ssim"]) for row in csv.DictReader(file)}
    assert len(rows) == len(names) + 1
    assert rows["sense"] > rows["zero-filled"]
    kscout("report", place / "results", place / "analyses", "--out", place / "report.html")
    assert "sense-tv" in (place / "report.html").read_text()


POLICIES_OF_STORE = ("--data", "store", "--reconstructor", "zero-filled", *BUDGET)
ANALYZED: dict[str, tuple[object, ...]] = {
    "entropy": ("random", "--trajectories", 2, *POLICIES_OF_STORE),
    "unexplored": ("random", "--rare", 0.05, *POLICIES_OF_STORE),
    "policy": ("random", *POLICIES_OF_STORE),
    "examples": ("random", "--slice", 1, *POLICIES_OF_STORE),
    "snr": (
        *("greedy-seed0", "--data", "store", "--reconstructor", "./varnet"),
        *("--passes", 1, "--batch-size", 2, "--trajectories", 2, "--limit", 4),
    ),
    "curves": ("varnet", "greedy-seed0"),
    "gammas": ("results",),
    "masks": ("results",),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ANALYSES if name != "reconstructions"])
def test_every_analysis_takes_coils(
    name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> None:
    monkeypatch.chdir(place)
    kscout("analyze", name, *ANALYZED[name], "--out", tmp_path)
    with (tmp_path / f"{ANALYSES.resolve(name).file}.csv").open() as table:
        assert list(csv.DictReader(table))


@pytest.mark.slow
def test_an_environment_acquires_columns_of_coils(place: Path) -> None:
    env = AcquisitionEnv(place / "store", reconstructor="sense", n_initial=9, **GYM)
    seen, _ = env.reset(seed=0)
    assert seen["image"].shape == (20, 34)
    _, _, is_over, _, told = env.step(env.action_space.sample())
    assert not is_over and "ssim" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["evaluate", "analyze", "reconstructor", "policy", "joint", "gym"]
)
def test_protocol_paper_is_refused_with_the_reason(
    command: str, place: Path, tmp_path: Path
) -> None:
    data, given = ("--data", place / "store"), ("--reconstructor", "zero-filled", *BUDGET)
    words = {
        "evaluate": ("evaluate", *data, *given, "--policy", "random"),
        "joint": ("train", "joint", *data, *BUDGET, "--method", "fixed"),
        "analyze": ("analyze", "reconstructions", "zero-filled", *data),
        "reconstructor": ("train", "reconstructor", *data),
        "policy": ("train", "policy", *data, *given),
    }
    with pytest.raises(ConfigError, match=r"protocol paper .* fully sampled target.*blind"):
        if command == "gym":
            AcquisitionEnv(place / "store", n_initial=9, horizon=2, protocol="paper")
        else:
            kscout(*words[command], *PAPER, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


WITHOUT_BASIS: dict[str, tuple[object, ...]] = {
    "evaluate": ("evaluate", "--policy", "random"),
    "export": ("data", "export", "--policy", "random", "--format", "nifti"),
    "policy": ("train", "policy"),
    "reconstructor": ("train", "reconstructor", "--model", "varnet"),
}


@pytest.mark.parametrize(
    ("command", "network"),
    [
        *((name, "zero-filled") for name in WITHOUT_BASIS),
        ("evaluate", "sense"),
        ("policy", "sense"),
    ],
)
def test_too_few_columns_for_compression_or_sensitivities_leave_nothing_behind(
    command: str, network: str, tmp_path: Path
) -> None:
    is_sense = network == "sense"
    store = coil_store(tmp_path / "store", virtual=None if is_sense else (4, 8)).path
    data = (store,) if command == "export" else ("--data", store)
    given = ("--reconstructor", network, "--n-initial", 5, "--steps", 2)
    given = () if command == "reconstructor" else given
    told = (
        "need 8 to 20 central columns, found 5" if is_sense else "compressed by 8 central columns"
    )
    with pytest.raises(ConfigError, match=told):
        kscout(*WITHOUT_BASIS[command], *data, *given, "--out", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


class Attentive(Policy):
    """Scores columns by all that it is shown, so that any leak changes what it chooses."""

    is_stochastic = False
    needs_measurement = True

    def forward(self, seen: Observation) -> torch.Tensor:
        assert seen.zero_filled is not None and seen.zero_filled.shape[1] == 1
        shown = seen.zero_filled[:, 0].abs() + seen.image
        return (shown * torch.signbit(seen.zero_filled[:, 0].real)).sum(dim=1)


@pytest.mark.parametrize("unseen", [-5.0, -0.0, torch.nan])
@pytest.mark.parametrize("name", ["zero-filled", "zero-filled-weighted", "sense", "varnet"])
def test_no_choice_depends_on_what_was_not_measured(name: str, unseen: float) -> None:
    kspace = coil_kspace(2, 3, 20, 34, noise=0.01)
    torch.manual_seed(0)
    model = VarNet(**NETWORK) if name == "varnet" else RECONSTRUCTORS[name]()
    model = model.eval().requires_grad_(False)

    def acquired(given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        slices = SliceSet.from_kspace(kspace, ["a", "a"]).batch(torch.arange(2))
        simulator = Simulator(slices, model, protocol="blind")
        simulator.column_images = Simulator(
            type(slices)(given, *slices.tensors()[1:]), model, protocol="blind"
        ).column_images
        simulator.batch = type(slices)(given, *slices.tensors()[1:])
        found = rollout(Attentive(), simulator, Plan(9, 2), keep_images=True)
        assert found.images is not None
        return found.columns, found.images

    columns, images = acquired(kspace)
    measured = torch.zeros(2, 34, dtype=torch.bool)
    measured[:, 13:22] = True
    measured = measured.scatter(-1, columns[:, 0], True)
    changed = torch.where(measured[:, None, None], kspace, complex(unseen, unseen))
    again, same = acquired(changed)
    assert torch.equal(columns, again) and torch.equal(images, same)
