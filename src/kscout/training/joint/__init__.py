"""Joint training of reconstruction and acquisition: samplers, and the training loop.

| file | what |
|---|---|
| `train` | `train_joint`: opens the run, checks, trains |
| `algorithm` | updates of the reconstruction on pooled masks, and of the sampler for it |
| `pool` | the masks of the newest acquisitions |
| `sampler` | what a sampler is, and how it acquires |
| `blind`, `dense` | samplers, found by name in `kscout.names.SAMPLERS` |
"""
