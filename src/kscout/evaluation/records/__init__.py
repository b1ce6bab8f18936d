"""What evaluations and analyses leave on disk, and how it is read again; nothing here needs torch.

| file | what |
|---|---|
| `results` | `results.csv`, the long table |
| `orders`, `average_policy` | what that table says about columns |
| `acquisitions`, `examples` | slices with their images |
| `reconstruction_row` | scores of a reconstruction in a comparison |
| `saved_settings` | the settings that results were made with |
| `run_names` | what tables call runs |
"""
