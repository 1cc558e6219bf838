"""What is trained? Real data and small models, Flax NNX, with no word about precision."""

from jprec.workloads.catalogue import (
    digits_autoencoder,
    digits_cnn,
    digits_mlp,
    plays_transformer,
)
from jprec.workloads.workload import Workload, functions

__all__ = [
    "Workload",
    "digits_autoencoder",
    "digits_cnn",
    "digits_mlp",
    "functions",
    "plays_transformer",
]
