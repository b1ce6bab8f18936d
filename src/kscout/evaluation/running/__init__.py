"""Policies on a whole split: from names and paths to the acquisitions of every slice.

| file | content |
|---|---|
| `entries` | policies: checked, loaded, built; the start and budget of their trainings |
| `prepare` | policies, fitted orders, slices and a reconstruction on their device |
| `trajectories` | one policy on all slices |
| `recording` | files: each finished policy, a few slices with images |
"""
