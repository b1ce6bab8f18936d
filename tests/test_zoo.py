"""The zoo's weights load by name, work together, and hide no path."""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kscout import policies, reconstruction
from kscout.acquisition.episode import Simulator
from kscout.acquisition.plan import Plan
from kscout.apps.cli import app
from kscout.compatibility import Use, network_notes
from kscout.compressed import plain_stem
from kscout.core import Observation
from kscout.data.makers.knee import draw_knee_volume
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, KScoutError, WeightsError
from kscout.evaluation.compare import evaluate
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.entries import resolve
from kscout.evaluation.running.trajectories import trajectories
from kscout.physics.sampling import center_mask
from kscout.policies.column import ColumnPolicy
from kscout.policies.conv import ConvPolicy
from kscout.policies.ensemble import EnsemblePolicy
from kscout.policies.fixed import FixedOrder
from kscout.policies.posterior import PosteriorPolicy
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.varnet import VarNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.weights import Weights, fingerprint, read_weights, save_weights
from kscout.zoo import REMOVED, ZOO, as_shipped, zoo_card, zoo_names, zoo_path

SIZES = ((128, 128), Plan(16, 16))
NETWORKS = {"knee": "knee-general-unet", "heads": "heads-general-unet"}


@pytest.fixture
def loose_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("name", ZOO)
def test_entries_load_by_name_and_stay_small(name: str) -> None:
    load = policies.load if ZOO[name] == "policy" else reconstruction.load
    kinds = {
        **{"unet": UNet, "varnet": VarNet},
        **{"greedy": ConvPolicy, "column": ColumnPolicy, "fixed": FixedOrder},
        **{"posterior": PosteriorPolicy, "ensemble": EnsemblePolicy},
    }
    kind = kinds[name.split("-")[-1]]
    loaded = load(name)
    assert isinstance(loaded, kind)
    assert not loaded.training
    assert all(value.dtype == torch.float32 for value in loaded.parameters())
    path = zoo_path(name)
    assert path is not None and path.stat().st_size < 16 * 2**20


def test_every_weights_file_of_the_zoo_is_in_its_table() -> None:
    path = zoo_path("knee-unet")
    assert path is not None
    for pattern in ("*.safetensors*", "*.md"):
        assert sorted(map(plain_stem, path.parent.glob(pattern))) == sorted(ZOO)


@pytest.mark.parametrize("name", [name for name in ZOO if name.endswith("-greedy")])
def test_trained_policies_look_at_the_image(name: str) -> None:
    images = torch.randn(2, 128, 128, generator=torch.Generator().manual_seed(3))
    mask = torch.zeros(2, 128, dtype=torch.bool)
    with torch.no_grad():
        scores = policies.load(name)(Observation(image=images, mask=mask))
    assert scores.shape == (2, 128)
    assert scores.isfinite().all()
    assert (scores[0] - scores[1]).abs().max() > 1e-2


@pytest.mark.parametrize("name", [name for name in ZOO if name.endswith("-column")])
@pytest.mark.parametrize("n_cols", [64, 320])
def test_column_networks_serve_other_matrix_sizes(name: str, n_cols: int) -> None:
    knee = draw_knee_volume(seed=2, volume=4, n_slices=1, size=n_cols)
    slices = SliceSet.from_images(torch.from_numpy(knee.stored), ["v"])
    policy = policies.load(name)
    plan = Plan(start=n_cols // 8, horizon=2, n_trajectories=1)
    (done,) = (one for _, one in trajectories(policy, slices, ZeroFilled(), plan))
    assert done.columns.shape == (1, 1, 2)
    # What it takes first lies beside the center, at the frequencies that it knows.
    assert (done.columns - n_cols // 2).abs().max() < n_cols // 4


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_path_that_is_called_like_an_entry_goes_first(
    is_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = FixedOrder(n_cols=9, order=[7, 2])
    name = "knee-base-greedy"
    policies.save(f"{name}/weights.safetensors" if is_folder else name, mine)
    loaded = policies.load(name)
    assert isinstance(loaded, FixedOrder)
    assert loaded.order == mine.order
    assert zoo_path(f"./{name}") is None


def test_a_path_object_is_never_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match="does not exist"):
        policies.load(Path("knee-base-greedy"))
    with pytest.raises(ConfigError, match="unknown policy"):
        resolve(Path("knee-base-greedy"), *SIZES)


def test_unknown_names_list_the_zoo() -> None:
    with pytest.raises(WeightsError, match="knee-base-greedy, knee-base-fixed, knee-long-fixed"):
        policies.load("knee-bass")
    with pytest.raises(WeightsError, match="of the zoo: knee-general-unet, knee-cotrained-16-unet"):
        reconstruction.load("knee-net")
    with pytest.raises(KScoutError, match="knee-base-fixed, knee-base-greedy"):
        resolve("knee-bass", *SIZES)
    with pytest.raises(ConfigError, match=r"zoo entry 'knee'.*knee-unet"):
        zoo_card("knee")


def test_an_entry_of_the_other_kind_says_how_it_is_loaded() -> None:
    with pytest.raises(WeightsError, match="give it as the reconstruction"):
        policies.load("knee-unet")
    with pytest.raises(WeightsError, match="give it as a policy"):
        reconstruction.load("knee-base-greedy")


@pytest.mark.parametrize(
    ("name", "method", "protocol"),
    [("knee-base-greedy", "greedy", "paper"), ("heads-general-16-column", "dense", "blind")],
)
def test_entries_enter_evaluations_under_their_name_or_a_label(
    name: str, method: str, protocol: str
) -> None:
    (plain,) = resolve(name, *SIZES)
    (labeled,) = resolve(f"mine={name}", *SIZES)
    assert (plain.name, labeled.name) == (name, "mine")
    for one in (plain, labeled):
        assert one.is_learned
        assert one.config is not None
        assert one.config["training"] == {"method": method, "seed": 0, "protocol": protocol}
        assert one.config["acquisition"] == {"n_initial": 16, "horizon": 16}


@pytest.mark.parametrize("family", NETWORKS)
def test_the_entries_work_together_on_one_slice(family: str) -> None:
    rows, cols = torch.arange(128.0)[:, None], torch.arange(128.0)
    images = torch.stack([torch.exp(-((rows - 60) ** 2 + (cols - at) ** 2) / 900) for at in (50,)])
    slices = SliceSet.from_images(images, ["one"], name="blob", split="test")
    setting = EvaluationSetting(n_initial=16, steps=2, argmax=True, device="cpu")
    # Those that try hundreds of columns are asked for one of them below.
    slow = ("-posterior", "-ensemble")
    network = NETWORKS[family]
    all_of_it = [name for name in zoo_names("policy") if name.startswith(f"{family}-general-16")]
    names = [name for name in all_of_it if not name.endswith(slow)]
    found = evaluate(names, slices, network, setting)
    assert [entry["policy"] for entry in found.summary["policies"]] == names
    assert found.summary["reconstructor"] == network


def test_a_removed_entry_is_rejected_with_its_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, instead in (("old", "older"), ("older", "knee-unet"), ("knee-base-fixed", "no")):
        monkeypatch.setitem(REMOVED, name, instead)
    for name in ("old", "older"):
        words = f"^the zoo entry '{name}' was replaced; use 'knee-unet'$"
        for ask in (zoo_card, reconstruction.load, policies.load, lambda x: resolve(x, *SIZES)):
            with pytest.raises(ConfigError, match=words):
                ask(name)
    assert isinstance(policies.load("knee-base-fixed"), FixedOrder)


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_the_replacement_of_a_removed_entry_exists(name: str) -> None:
    if name not in ZOO:
        with pytest.raises(ConfigError, match="was replaced") as caught:
            zoo_card(name)
        assert str(caught.value).split("'")[-2] in ZOO


@pytest.mark.parametrize("name", [name for name in ZOO if name.endswith("-ensemble")])
def test_ensembles_add_up_what_their_members_expect(name: str) -> None:
    policy = policies.load(name)
    assert isinstance(policy, EnsemblePolicy)
    path = zoo_path(name)
    assert path is not None and path.stat().st_size < 2048
    knee = draw_knee_volume(seed=2, volume=4, n_slices=1, size=128)
    slices = SliceSet.from_images(torch.from_numpy(knee.stored), ["v"])
    simulator = Simulator(slices.batch(torch.tensor([0])), ZeroFilled())
    # From 4 columns the sum decides after the columns of an order.
    n_initial, step = (4, 24) if "-4-" in name else (16, 4)
    mask = center_mask(128, n_initial + step, torch.device("cpu"))
    state = simulator.start_from(mask[None], step=step)
    seen = simulator.observe(policy, state, n_left=2)
    sampler = policies.load(f"{name.partition('-')[0]}-posterior")
    # Few images and columns: what is added does not depend on their number.
    for one in (policy.policies[0], sampler):
        one.n_draws, one.n_best = 3, 4
    with torch.no_grad():
        found, first = (one.bind(simulator.context)(seen) for one in (policy, sampler))
        column = policies.load(name.replace("-ensemble", "-column"))
        second = column(seen) * column.gain_units[step]
    weights, constant = policy.weights[step], policy.constants[step]
    torch.testing.assert_close(found, weights[0] * first + weights[1] * second + constant)


def test_an_ensemble_accepts_only_the_members_that_it_was_fitted_with(tmp_path: Path) -> None:
    path = zoo_path("knee-general-16-ensemble")
    assert path is not None
    read = read_weights(path)
    for changes, words in (
        ({"sha256": "0" * 64}, "with the digest 000000000000, and here it has"),
        ({"zoo": "knee-unet"}, "'knee-unet', which is no policy of this zoo"),
    ):
        members = [{**one, **changes} for one in read.arguments["members"]]
        file = tmp_path / "changed.safetensors"
        save_weights(file, replace(read, arguments={**read.arguments, "members": members}))
        with pytest.raises(WeightsError, match=words):
            policies.load(file)


@pytest.mark.parametrize("n_initial", [16, 4])
def test_a_co_trained_network_names_the_columns_that_it_was_trained_for(n_initial: int) -> None:
    network = reconstruction.load(f"knee-cotrained-{n_initial}-unet")
    own = Use((1, 128, 128), n_initial, 32 - n_initial, "blind")
    assert network_notes(network, own) == []
    (note,) = network_notes(network, replace(own, n_initial=8, horizon=2))
    n = f"{n_initial} + {32 - n_initial}"
    learned = f"the reconstruction learned together with a policy for {n} columns and is"
    assert f"{learned} used here with 8 + 2" in note


@pytest.mark.usefixtures("loose_umask")
def test_weights_files_can_be_read_by_whom_the_umask_admits(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    state = {"a": torch.ones(3)}
    save_weights(path, Weights("policy", "mine", {}, state))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_zoos_policies_know_the_zoos_reconstructions() -> None:
    """A policy is not warned of the network that it was trained with, whose file is rounded."""
    networks = {fingerprint(reconstruction.load(name)) for name in zoo_names("reconstructor")}
    for name in zoo_names("policy"):
        assert as_shipped(policies.load(name).recorded["reconstructor"]) in networks, name


def test_the_command_lists_names_and_shows_cards(capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> str:
        app(["zoo", *words], standalone_mode=False)
        return capsys.readouterr().out

    facts = json.loads(told("--json"))
    assert {name: one.pop("kind") for name, one in facts.items()} == ZOO
    assert facts["knee-base-greedy"] == {
        **{"images": "128x128", "columns": "16 + 16 of 128", "protocol": "paper"},
        "content": "the paper's network",
    }
    assert facts["heads8-varnet"]["images"] == "128x128, trained on 8 coils"
    assert facts["heads8-varnet"]["columns"] == "any"
    assert facts["knee-cotrained-16-unet"]["content"] == "the paper's U-Net, co-trained"
    head, *lines = told().splitlines()
    assert head.split() == ["name", "kind", *facts["heads-general-unet"]]
    lines = [line for line in lines if not line.startswith(" ")]
    assert [line.split()[:2] for line in lines] == [[*pair] for pair in ZOO.items()]
    assert all(own["columns"] in line for own, line in zip(facts.values(), lines, strict=True))
    assert told("knee-base-fixed") == zoo_card("knee-base-fixed") + "\n"
    assert json.loads(told("knee-unet", "--json"))["kind"] == "reconstructor"
    with pytest.raises(ConfigError, match="unknown zoo entry 'knee'"):
        told("knee")
