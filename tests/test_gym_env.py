"""The environment keeps Gymnasium's rules, and its numbers are the simulator's."""

from typing import Any

import numpy as np
import pytest
import torch

from kscout.acquisition.episode import Simulator
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, WeightsError
from kscout.reconstruction.unet import UNet

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from kscout.gym_env import ENVIRONMENT, AcquisitionEnv, AcquisitionVectorEnv  # noqa: E402

N_SLICES, N_ROWS, N_COLS = 7, 12, 17
SETTINGS: dict[str, Any] = {"n_initial": 3, "horizon": 4}


@pytest.fixture
def slices(generator: torch.Generator) -> SliceSet:
    images = torch.rand(N_SLICES, N_ROWS, N_COLS, generator=generator).cumsum(dim=-1)
    return SliceSet.from_images(images, ["a"] * 4 + ["b"] * 3)


def reconstructor() -> UNet:
    torch.manual_seed(0)
    return UNet(n_channels=2, n_pools=1)


@pytest.mark.parametrize("horizon", [1, 4, N_COLS - 3])
def test_check_env_is_clean(slices: SliceSet, horizon: int) -> None:
    env = gymnasium.make(ENVIRONMENT, data=slices, n_initial=3, horizon=horizon)
    check_env(env.unwrapped)


def test_rewards_sum_to_the_gain_of_the_episode(slices: SliceSet) -> None:
    env = gymnasium.make(ENVIRONMENT, data=slices, reconstructor=reconstructor(), **SETTINGS)
    _, info = env.reset(seed=1, options={"row": 5})
    assert (info["volume"], info["slice"], info["step"]) == ("b", 1, 0)
    before, rewards, is_over, columns = info["ssim"], [], False, [1, 16, 4, 12]
    for column in columns:
        assert not is_over
        observation, reward, is_over, is_cut, info = env.step(column)
        rewards.append(reward)
        assert not is_cut
    assert is_over and sum(rewards) == pytest.approx(info["ssim"] - before, abs=1e-6)
    simulator = Simulator(slices.batch(torch.tensor([5])), reconstructor().eval())
    mask = torch.zeros(1, N_COLS, dtype=torch.bool)
    mask[:, [7, 8, 9, *columns]] = True
    state = simulator.start_from(mask)
    assert info["ssim"] == pytest.approx(float(state.score), abs=1e-5)
    assert np.array_equal(observation["measured"], mask[0].numpy())
    np.testing.assert_allclose(observation["image"], state.image[0].numpy(), atol=1e-4)


def test_an_episode_may_start_from_listed_columns(slices: SliceSet) -> None:
    env = AcquisitionEnv(slices, n_initial=[0, 5, 8], horizon=2)
    observation, _ = env.reset(seed=1)
    assert np.flatnonzero(observation["measured"]).tolist() == [0, 5, 8]


def test_a_reconstruction_is_given_by_name_too(slices: SliceSet) -> None:
    given = {"data": slices, "reconstructor": "total-variation", **SETTINGS}
    plain, named = (
        gymnasium.make(ENVIRONMENT, **options).reset(seed=0)[1]
        for options in ({**SETTINGS, "data": slices}, given)
    )
    assert plain["slice"] == named["slice"] and plain["ssim"] != named["ssim"]
    with pytest.raises(WeightsError, match="neither a file nor a run folder"):
        gymnasium.make(ENVIRONMENT, data=slices, reconstructor="sharp", **SETTINGS)


def test_a_reconstruction_for_other_images_is_noted(
    slices: SliceSet, caplog: pytest.LogCaptureFixture
) -> None:
    gymnasium.make(ENVIRONMENT, data=slices, reconstructor="knee-unet", **SETTINGS)
    (note,) = [x for x in caplog.messages if "images" in x]
    assert note.startswith("the reconstruction was trained on 128x128 images and is used here on ")


def test_only_unmeasured_columns_are_legal(slices: SliceSet) -> None:
    env = AcquisitionEnv(slices, **SETTINGS)
    observation, info = env.reset(seed=0)
    assert info["action_mask"].dtype == np.int8
    assert np.array_equal(info["action_mask"], 1 - observation["measured"])
    only = np.zeros(N_COLS, dtype=np.int8)
    only[2] = 1
    *_, info = env.step(env.action_space.sample(mask=only))
    assert np.flatnonzero(~env.action_masks()).tolist() == [2, 7, 8, 9]
    assert np.array_equal(info["action_mask"], env.action_masks())
    env.action_space.seed(0)
    drawn = {int(env.action_space.sample()) for _ in range(300)}
    assert drawn == set(range(N_COLS)) - {2, 7, 8, 9}
    many = AcquisitionVectorEnv(2, slices, **SETTINGS)
    _, facts = many.reset(seed=0)
    assert facts["action_mask"].shape == (2, N_COLS) and facts["_action_mask"].all()


@pytest.mark.parametrize("column", [8, -1, N_COLS])
def test_an_illegal_column_is_refused(slices: SliceSet, column: int) -> None:
    env = AcquisitionEnv(slices, **SETTINGS)
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=f"column {column} cannot be measured"):
        env.step(column)


def test_steps_before_and_after_an_episode_are_refused(slices: SliceSet) -> None:
    env = AcquisitionEnv(slices, n_initial=3, horizon=1)
    with pytest.raises(ConfigError, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(ConfigError, match="the episode is over"):
        env.step(1)


def test_the_same_seed_draws_the_same_slices_and_another_seed_others(slices: SliceSet) -> None:
    env = AcquisitionEnv(slices, **SETTINGS)

    def drawn(seed: int) -> list[tuple[str, int]]:
        infos = [env.reset(seed=seed)[1], *(env.reset()[1] for _ in range(20))]
        return [(info["volume"], info["slice"]) for info in infos]

    assert drawn(3) == drawn(3) != drawn(4)
    assert len(set(drawn(3))) == N_SLICES


def test_the_vector_environment_is_as_many_single_ones(slices: SliceSet) -> None:
    shared = {"data": slices, "reconstructor": reconstructor(), **SETTINGS}
    many = gymnasium.make_vec(ENVIRONMENT, num_envs=3, **shared)
    assert isinstance(many.unwrapped, AcquisitionVectorEnv)
    singles = [AcquisitionEnv(**shared) for _ in range(3)]
    together, _ = many.reset(seed=5)
    alone = [env.reset(seed=5 + i)[0] for i, env in enumerate(singles)]
    actions = np.array([[0, 1, 2], [16, 16, 15], [3, 4, 5], [12, 11, 10]])
    for step, action in enumerate(actions):
        for name in ("image", "measured"):
            expected = np.stack([one[name] for one in alone])
            np.testing.assert_allclose(together[name], expected, atol=1e-4)
        assert together in many.observation_space
        together, rewards, over, cut, infos = many.step(action)
        results = [env.step(a) for env, a in zip(singles, action, strict=True)]
        alone = [result[0] for result in results]
        np.testing.assert_allclose(rewards, [result[1] for result in results], atol=1e-5)
        ssim = [result[4]["ssim"] for result in results]
        np.testing.assert_allclose(infos["ssim"], ssim, atol=1e-5)
        assert over.tolist() == [step == 3] * 3 and not cut.any()


def test_the_vector_environment_starts_anew_after_the_last_step(slices: SliceSet) -> None:
    many = AcquisitionVectorEnv(2, slices, n_initial=3, horizon=1)
    many.reset(seed=0)
    assert many.step(np.array([0, 1]))[2].all()
    observation, rewards, over, _, infos = many.step(np.array([0, 0]))
    assert observation["measured"].sum() == 6 and not rewards.any() and not over.any()
    assert infos["step"].tolist() == [0, 0]
    assert many.action_masks().sum() == 2 * (N_COLS - 3)


@pytest.mark.parametrize(
    "settings, sentence",
    [({"n_initial": 3, "horizon": 15}, "no column left"), ({"horizon": 0}, "a slice and a step")],
)
def test_impossible_episodes_are_refused(
    slices: SliceSet, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        AcquisitionEnv(slices, **settings)


def test_a_reset_may_name_its_slices(slices: SliceSet) -> None:
    many = AcquisitionVectorEnv(2, slices, **SETTINGS)
    infos = many.reset(options={"rows": [6, 0]})[1]
    assert infos["volume"].tolist() == ["b", "a"] and infos["slice"].tolist() == [2, 0]
    with pytest.raises(ConfigError, match=r"rows \[7\]; give rows 0..6"):
        AcquisitionEnv(slices, **SETTINGS).reset(options={"row": 7})


def test_a_seed_may_be_a_number_of_numpy(slices: SliceSet) -> None:
    many, one = AcquisitionVectorEnv(2, slices, **SETTINGS), AcquisitionEnv(slices, **SETTINGS)
    expected = many.reset(seed=3)[0]["image"]
    for seed in (np.int64(3), [3, 4], np.array([3, 4])):
        assert np.array_equal(many.reset(seed=seed)[0]["image"], expected)
    assert np.array_equal(one.reset(seed=np.int64(3))[0]["image"], expected[0])


def test_as_many_seeds_and_rows_as_environments_are_needed(slices: SliceSet) -> None:
    many = AcquisitionVectorEnv(2, slices, **SETTINGS)
    for rows in ([1], [1, 2, 3]):
        with pytest.raises(ConfigError, match=f"{len(rows)} rows were given for 2 environments"):
            many.reset(options={"rows": rows})
    with pytest.raises(ConfigError, match="1 seeds were given for 2 environments; give one each"):
        many.reset(seed=[5])


@pytest.mark.slow
def test_maskable_ppo_trains_on_legal_columns_only(generator: torch.Generator) -> None:
    contrib = pytest.importorskip("sb3_contrib")
    images = torch.rand(5, 16, 16, generator=generator).cumsum(dim=-1)
    env = gymnasium.make(
        ENVIRONMENT, data=SliceSet.from_images(images, ["a"] * 5), n_initial=4, horizon=4
    )
    model = contrib.MaskablePPO(
        "MultiInputPolicy", env, n_steps=64, batch_size=32, n_epochs=2, seed=0, device="cpu"
    )
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    # An illegal column would raise: 12 of 16 columns are free at most.
    model.learn(256)
    after = model.policy.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert model.num_timesteps == 256


@pytest.mark.parametrize(("metric", "word"), [("psnr", "psnr"), ("sharpness:edges", "score")])
def test_rewards_are_gains_of_the_metric_that_is_named(
    slices: SliceSet, metric: str, word: str
) -> None:
    env = AcquisitionEnv(slices, n_initial=2, horizon=2, metric=metric)
    _, before = env.reset(options={"row": 1})
    column = int(env.action_masks().nonzero()[0][0])
    _, reward, _, _, after = env.step(column)
    assert reward == pytest.approx(after[word] - before[word], abs=1e-5)
    plain = AcquisitionEnv(slices, n_initial=2, horizon=2)
    plain.reset(options={"row": 1})
    _, gain, _, _, facts = plain.step(column)
    assert after["ssim"] == pytest.approx(facts["ssim"], abs=1e-6) and gain != reward
