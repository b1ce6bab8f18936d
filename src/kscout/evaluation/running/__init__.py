"""Policies on a whole split: from names and paths to the acquisitions of every slice.

| file | content |
|---|---|
| `setting` | default start, budget and protocol of a setting |
| `kinds` | checks of names and paths before anything is loaded |
| `entries`, `fixed_orders` | policies: loaded, built, fitted |
| `prepare` | policies, slices and a reconstruction on their device |
| `trajectories` | one policy on all slices |
| `finished`, `recording` | files: each finished policy, a few slices with images |
"""
