"""Signal-to-noise ratio of gradients; the public name of `signal_to_noise`."""

from kscout.evaluation.analyses.snr import signal_to_noise

__all__ = ["signal_to_noise"]
