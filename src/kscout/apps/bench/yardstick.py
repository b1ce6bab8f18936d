"""A training's greedy batch compared with the plain one: same slices and samples, interleaved."""

from statistics import median

import torch
from torch import Tensor, nn

from kscout.apps.bench.engine import Engine, TrainingBatch, Workload
from kscout.apps.bench.limits import wait
from kscout.apps.bench.plain import PlainEstimate, PlainPolicy, PlainUNet, plain_greedy_gradients
from kscout.json_types import JsonObject

N_ROUNDS = 3


def compare_with_plain(engine: Engine, *, horizon: int, q: int) -> JsonObject:
    """Time both, interleaved three times; return the median of the ratios and all measured values.

    Both are warmed up before: kernels compiled, graphs captured. A faster batch must also compute
    the same, so gradients are also compared, outside the timing and with the columns of the plain
    implementation: if the arithmetic differs, the same random numbers may select other columns.
    """
    batch = TrainingBatch(engine, Workload(len(engine.slices), horizon, q))
    unet, policy = plain_unet(engine), plain_policy(batch)
    index, uniforms, followed = batch.inputs
    times: dict[str, list[float]] = {"plain_s": [], "kscout_s": []}

    def plain() -> PlainEstimate:
        policy.zero_grad()
        return plain_greedy_gradients(
            policy,
            unet,
            engine.slices.magnitudes(index),
            engine.slices.data_range[index],
            n_initial=engine.size // 8,
            uniforms=uniforms,
            followed=followed,
        )

    expected = plain()
    batch.gradients()
    for _ in range(N_ROUNDS):
        for name, run in (("plain_s", plain), ("kscout_s", batch.gradients)):
            begun = wait(engine.device)
            run()
            times[name].append(wait(engine.device) - begun)
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
        "precision": engine.frozen.precision,
        "arithmetic": engine.arithmetic,
        "mean_distinct_of_q": sum(distinct) / len(distinct),
        **_compare_results(batch, policy, expected),
    }


def _compare_results(
    batch: TrainingBatch, policy: PlainPolicy, expected: PlainEstimate
) -> JsonObject:
    """Return how far rewards and gradients differ for the columns of the plain implementation.

    `columns_equal` compares sampled columns, and is None if the arithmetic differs.
    """
    is_alike = batch.engine.frozen.precision == "fp32" and batch.engine.device.type == "cpu"
    columns = batch.estimate().columns if is_alike else None
    estimate = batch.estimate(expected.columns)
    name = "fc_out.4.weight"
    last = policy.get_parameter(name).grad, batch.policy.get_parameter(name).grad
    assert last[0] is not None and last[1] is not None
    furthest = (last[0] - last[1]).abs().max() / last[0].abs().max()
    return {
        "columns_equal": None if columns is None else torch.equal(expected.columns, columns),
        "largest_reward_difference": float((expected.rewards - estimate.rewards).abs().max()),
        "relative_gradient_difference": float(furthest),
        "gradient_cosine": gradient_cosine(policy, batch.policy),
    }


def gradient_cosine(first: nn.Module, second: nn.Module) -> float:
    """Return the cosine of the angle between the gradients of two networks with the same names.

    In 16 bit the direction is more informative than the largest difference: rounding moves some
    maxima of 2x2 pixels, and with each a gradient from one weight to others.
    """
    a, b = (_flat_gradient(network) for network in (first, second))
    return float(a @ b / (a.norm() * b.norm()))


def _flat_gradient(network: nn.Module) -> Tensor:
    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for _, parameter in sorted(network.named_parameters())
    ]
    return torch.cat([gradient.flatten() for gradient in gradients]).double()


def plain_unet(engine: Engine) -> PlainUNet:
    """Return torch's modules with the engine's weights."""
    unet = PlainUNet(n_channels=engine.unet.n_channels, n_pools=engine.unet.n_pools)
    unet.load_state_dict(engine.unet.network.state_dict())
    return unet.to(engine.device).eval().requires_grad_(False)


def plain_policy(batch: TrainingBatch) -> PlainPolicy:
    """Return torch's modules with the weights of the batch's policy."""
    own = batch.policy
    policy = PlainPolicy(
        n_cols=own.n_cols, n_channels=own.n_channels, n_blocks=own.n_blocks, n_hidden=own.n_hidden
    )
    policy.load_state_dict(own.state_dict())
    return policy.to(batch.engine.device)
