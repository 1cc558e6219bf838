"""What does this machine really do with a precision?"""

from jprec.doctor.environment import environment
from jprec.doctor.probes import Probe, probe_backend

__all__ = ["Probe", "environment", "probe_backend"]
