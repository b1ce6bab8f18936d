"""Joint training of reconstruction and acquisition: samplers, and the training loop.

| file | what |
|---|---|
| `train` | `train_joint`: opens the run, checks, trains |
| `algorithm` | updates of the reconstruction on pooled masks, and of the sampler for it |
| `sampler` | what a sampler is, how it acquires, and the samplers of `kscout.names.SAMPLERS` |
"""
