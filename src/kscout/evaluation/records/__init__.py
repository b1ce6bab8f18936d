"""Files that evaluations and analyses write, and their readers; nothing here needs torch.

| file | content |
|---|---|
| `results` | `results.csv`, the long table |
| `orders` | columns of each acquisition, from that table |
| `acquisitions` | slices with their images |
| `run_names` | names of runs in tables |
"""
