"""fastMRI's U-Net written out as functions of a state dict."""

import torch
from torch import Tensor
from torch.nn import functional as F


def instance_norm(features: Tensor) -> Tensor:
    mean = features.mean(dim=(2, 3), keepdim=True)
    variance = (features - mean).square().mean(dim=(2, 3), keepdim=True)
    return (features - mean) / (variance + 1e-5).sqrt()


def leaky(features: Tensor) -> Tensor:
    return torch.where(features > 0, features, 0.2 * features)


def block(state: dict[str, Tensor], name: str, features: Tensor) -> Tensor:
    for layer in (0, 4):
        kernel = state[f"{name}.layers.{layer}.weight"]
        features = leaky(instance_norm(F.conv2d(features, kernel, padding=1)))
    return features


def expected_output(state: dict[str, Tensor], image: Tensor, n_pools: int) -> Tensor:
    features, skips = image, []
    for level in range(n_pools):
        features = block(state, f"down_sample_layers.{level}", features)
        skips.append(features)
        n_rows, n_cols = features.shape[2] // 2, features.shape[3] // 2
        even = features[:, :, : 2 * n_rows, : 2 * n_cols]
        features = even.unflatten(3, (n_cols, 2)).unflatten(2, (n_rows, 2)).mean(dim=(3, 5))
    features = block(state, "conv", features)
    for level in range(n_pools):
        kernel = state[f"up_transpose_conv.{level}.layers.0.weight"]
        features = leaky(instance_norm(F.conv_transpose2d(features, kernel, stride=2)))
        skip = skips.pop()
        # Reflection repeats the line before the last one.
        if skip.shape[2] > features.shape[2]:
            features = torch.cat([features, features[:, :, -2:-1]], dim=2)
        if skip.shape[3] > features.shape[3]:
            features = torch.cat([features, features[:, :, :, -2:-1]], dim=3)
        name = f"up_conv.{level}" + (".0" if level == n_pools - 1 else "")
        features = block(state, name, torch.cat([features, skip], dim=1))
    last = f"up_conv.{n_pools - 1}.1"
    return F.conv2d(features, state[f"{last}.weight"], state[f"{last}.bias"])
