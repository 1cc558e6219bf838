"""What does a program really use, and what does this machine really do with a precision?"""

from jprec.doctor.audit import Audit, Operation, Total, audit
from jprec.doctor.audit_text import facts, page_facts, table
from jprec.doctor.environment import environment
from jprec.doctor.execution import Execution, Rule, execution
from jprec.doctor.findings import Finding
from jprec.doctor.probes import Probe, probe_backend
from jprec.doctor.request import Target, target
from jprec.doctor.roofline import Roofline

__all__ = [
    "Audit",
    "Execution",
    "Finding",
    "Operation",
    "Probe",
    "Roofline",
    "Rule",
    "Target",
    "Total",
    "audit",
    "environment",
    "execution",
    "facts",
    "page_facts",
    "probe_backend",
    "table",
    "target",
]
