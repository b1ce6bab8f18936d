"""Baselines from the literature, for comparisons; nothing else imports this package.

| file | method | after |
|---|---|---|
| `alphazero`, `search_trees` | `train policy --method alphazero` | arXiv 1901.04547 |
| `ddqn` | `train policy --method ddqn` | arXiv 2007.10469 |
| `loupe` | `train joint --method loupe` | arXiv 1901.01960 |
| `straight_through` | `train joint --method straight-through` | arXiv 2105.06460, 2203.16392 |

`settings` has the settings of all of them, `episodic` what AlphaZero and DDQN share. The methods
are found by name (`kscout.names`). The networks `alphazero` and `density` are in `kscout.policies`,
so that trained ones load without this package.
"""
