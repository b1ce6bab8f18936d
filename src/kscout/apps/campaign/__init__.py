"""Many runs from one file: a grid, its state on disk, on one machine or a cluster."""
