"""Our greedy batch against the plain one: the same slices, draws and columns, turn by turn."""

from statistics import median
from typing import Any

import torch

from kscout.bench.engine import Engine
from kscout.bench.limits import wait
from kscout.bench.plain import PlainEstimate, PlainPolicy, PlainUNet, plain_greedy_gradients
from kscout.policies.conv import ConvPolicy
from kscout.reconstruction.precision import HalfPrecisionUNet

N_ROUNDS = 3


def compare_with_plain(engine: Engine, *, horizon: int, q: int) -> dict[str, Any]:
    """Time both, interleaved three times; return the median of the ratios and all that led to it.

    Both are warmed up before. Every round draws the same columns, so that gradients can be compared
    too: what is faster must also be the same.
    """
    device = engine.slices.device
    unet, policy = plain_copies(engine)
    uniforms, followed = engine.draws(horizon, q)
    times: dict[str, list[float]] = {"plain_s": [], "kscout_s": []}

    def plain() -> PlainEstimate:
        policy.zero_grad()
        return plain_greedy_gradients(
            policy,
            unet,
            engine.slices.images,
            engine.slices.data_range,
            n_initial=engine.size // 8,
            uniforms=uniforms,
            followed=followed,
        )

    expected, found = plain(), engine.greedy(horizon, q)
    for _ in range(N_ROUNDS):
        for name, run in (("plain_s", plain), ("kscout_s", lambda: engine.greedy(horizon, q))):
            begun = wait(device)
            run()
            times[name].append(wait(device) - begun)
    ratios = [a / b for a, b in zip(times["plain_s"], times["kscout_s"], strict=True)]
    distinct = [len(row.unique()) for row in expected.columns.flatten(0, 1)]
    return {
        "ratio": median(ratios),
        "ratios": ratios,
        **times,
        "n_slices": len(engine.slices),
        "horizon": horizon,
        "q": q,
        "convolution": engine.backend,
        "precision": "fp16" if isinstance(engine.frozen, HalfPrecisionUNet) else "fp32",
        "mean_distinct_of_q": sum(distinct) / len(distinct),
        "columns_equal": bool(torch.equal(expected.columns, found.columns)),
        "largest_reward_difference": float((expected.rewards - found.rewards).abs().max()),
        "relative_gradient_difference": _gradient_difference(policy, engine),
    }


def plain_copies(engine: Engine) -> tuple[PlainUNet, PlainPolicy]:
    """Return torch's modules with the engine's weights."""
    own, device = engine.policy, engine.slices.device
    assert isinstance(own, ConvPolicy)
    unet = PlainUNet(n_channels=engine.unet.n_channels, n_pools=engine.unet.n_pools)
    unet.load_state_dict(engine.unet.network.state_dict())
    policy = PlainPolicy(
        n_cols=own.n_cols, n_channels=own.n_channels, n_blocks=own.n_blocks, n_hidden=own.n_hidden
    )
    policy.load_state_dict(own.state_dict())
    return unet.to(device).eval().requires_grad_(False), policy.to(device)


def _gradient_difference(policy: PlainPolicy, engine: Engine) -> float:
    """Return the largest difference over the largest gradient of the last layer."""
    name = "fc_out.4.weight"
    expected, found = (x.get_parameter(name).grad for x in (policy, engine.policy))
    assert expected is not None and found is not None
    return float((expected - found).abs().max() / expected.abs().max())
