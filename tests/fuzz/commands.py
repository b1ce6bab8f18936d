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
JOINT = [
    *("train", "joint", "--data", "store", "--out", "joined", "--method", "dense", "--policy"),
    *("conv", *NETWORK, "--n-initial", "2", "--steps", "3", "--updates", "2"),
    *("--checkpoints", "1", "--batch-size", "4", "--device", "cpu", "--set", "training.n_pool=8"),
    *("--set", "reconstructor.n_channels=2", "--set", "reconstructor.n_pools=1"),
    *("--set", "training.sampler_every=2", "--set", "training.sampler_batch=3"),
    *("--set", "training.convolution=onednn"),
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
CAMPAIGN = ["campaign", "run", "tiny.toml", "--workers", "0", "--device", "cpu", "--no-report"]
SERVE = ["serve", "--reconstructor", "zero-filled", "--policy", "center-out", "--device", "cpu"]
EXPORT = [
    *("data", "export", "store", "--format", "nifti", "--reconstructor", "./unet"),
    *("--device", "cpu", "--out", "images"),
]
_SCAN = ["--n-cols", "16", "--n-initial", "3", "--steps", "4", "--fov-mm", "220"]
ORDER = ["export", "order", "center-out", *_SCAN, "--out", "order.csv"]
PULSEQ = ["export", "pulseq", "center-out", *_SCAN, "--n-rows", "16", "--out", "scan.seq"]
CURVES = ["analyze", "curves", "greedy", "--out", "analyzed"]
MASKS = ["analyze", "masks", "results", "--out", "analyses"]
REPORT = ["report", "results", "analyses", "greedy", "-o", "page.html"]
INFO = ["data", "info", "store"]
SHOW = ["data", "show", "store", "--split", "test", "--out", "montage.png"]
STATUS = ["campaign", "status", "tiny.toml"]
RANDOM = [*EVALUATE, "--policy", "random"]
GREEDY = [*EVALUATE, "--policy", "greedy"]
EASY = [INFO, SHOW, [*GREEDY, "--policy", "random", "--reconstructor", "./unet"], REPORT, STATUS]
"""Commands that succeed in a copy of all artifacts, and start no threads."""
