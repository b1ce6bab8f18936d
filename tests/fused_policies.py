"""What the gradients of a fused policy are held to."""

from torch import Tensor, nn
from torch.nn import functional as F

from kscout.policies.conv import ConvPolicy


def scores_from(policy: ConvPolicy, image: Tensor, outputs: list[Tensor], dense: Tensor) -> Tensor:
    """Run the network in 32 bit, but go on from a fused pass's outputs.

    So both take the same maxima of 2x2 pixels, and the same hidden units are on: rounding moves
    some, and with each a gradient.

    Args:
        policy: the network.
        image: what it sees.
        outputs: of each convolution, channels last.
        dense: of the first dense layer.
    """
    features = image[:, None]
    layers = [layer for layer in policy.modules() if isinstance(layer, nn.Conv2d)]
    for number, (layer, values) in enumerate(zip(layers, outputs, strict=True)):
        own = F.conv2d(features, layer.weight, padding=1)
        given = values[..., : len(layer.weight)]  # more channels, where the kernels add some
        own = own + (given.float().permute(0, 3, 1, 2) - own).detach()
        features = F.instance_norm(own).relu()
        features = F.max_pool2d(features, 2) if number else features
    own = policy.fc_out[0](features.flatten(start_dim=1))
    return policy.fc_out[1:](own + (dense - own).detach())
