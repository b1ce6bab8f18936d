"""Layers shared by networks of reconstructions and of policies."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


@final
class InstanceNorm(nn.Module):
    """Instance norm without parameters."""

    def forward(
        self, features: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch channel row col"]:
        if not torch.compiler.is_compiling():
            return F.instance_norm(features)
        # Torch's function calls batch norm, which a compiler cannot fuse, and which copies
        # features stored channels last.
        variance, mean = torch.var_mean(features.float(), dim=(2, 3), correction=0, keepdim=True)
        return ((features - mean) * torch.rsqrt(variance + 1e-5)).to(features.dtype)
