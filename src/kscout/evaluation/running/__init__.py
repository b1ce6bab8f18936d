"""Policies over a whole split: from what a user names to what each did on every slice.

| file | what |
|---|---|
| `setting` | how they run: what was asked for, and what runs tell |
| `entries`, `fixed_orders` | the policies: named, loaded, fitted |
| `prepare` | policies, slices and a reconstruction on their device |
| `trajectories` | one policy over all slices |
| `finished`, `recording` | what is kept: each finished policy, a few slices with images |
"""
