"""Commands that succeed in a copy of valid folders, before a case spoils something."""

NETWORK = [
    *("--set", "policy.n_hidden=4", "--set", "policy.n_channels=2", "--set", "policy.n_blocks=2")
]
POLICY = [
    *("train", "policy", "--data", "store", "--reconstructor", "./unet", "--n-initial", "2"),
    *("--steps", "3", *NETWORK, "--batch-size", "4", "--trajectories", "3", "--device", "cpu"),
]
UNET = [
    *("train", "reconstructor", "--data", "store", "--out", "trained", "--epochs", "1"),
    *("--batch-size", "4", "--set", "reconstructor.n_channels=2", "--device", "cpu"),
    *("--set", "reconstructor.n_pools=1", "--set", "training.accelerations=[4]"),
    *("--set", "training.center_fractions=[0.25]", "--convolution", "onednn"),
]
EVALUATE = [
    *("evaluate", "--data", "store", "--reconstructor", "zero-filled", "--n-initial", "2"),
    *("--steps", "3", "--trajectories", "2", "--out", "scored", "--device", "cpu"),
]
ENTROPY = [
    *("analyze", "entropy", "greedy", "--data", "store", "--reconstructor", "zero-filled"),
    *("--trajectories", "2", "--n-initial", "2", "--steps", "3", "--out", "analyzed"),
]
IMPORT = ["data", "import", "volumes", "--out", "imported", "--size", "16"]
MAKE = [
    *("data", "make", "knee", "--out", "made", "--volumes", "1,0,0", "--slices", "1"),
    *("--size", "64", "--workers", "1"),
]
RESUME = [*POLICY, "--out", "interrupted", "--epochs", "3", "--set", "training.convolution=onednn"]
FINISHED = [*POLICY, "--out", "greedy", "--epochs", "3"]
TRAIN = [*POLICY, "--out", "trained", "--epochs", "1", "--convolution", "onednn"]
EASY = [
    ["data", "info", "store"],
    ["data", "show", "store", "--out", "montage.png"],
    [*EVALUATE, "--policy", "greedy", "--policy", "random", "--reconstructor", "./unet"],
    ["report", "results", "analyses", "greedy", "-o", "page.html"],
    ["campaign", "status", "tiny.toml"],
]
"""Commands that succeed in a copy of all artifacts."""
