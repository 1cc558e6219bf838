"""`jprec probe`: what does this machine do with a precision?"""

import dataclasses
import textwrap
from typing import Any

from jprec import records
from jprec.cli.trouble import Trouble


@dataclasses.dataclass(frozen=True)
class Probe:
    """Prints what this backend does with precision: casts, products, presets, subnormals.

    Versions and devices come first, then one answer a question, in words.
    """

    json: bool = False
    """Print JSON for machines."""

    def run(self) -> int:
        """Prints the probes; 0."""
        from jprec import doctor

        environment = doctor.environment()
        try:
            probes = doctor.probe_backend()
        except RuntimeError as error:
            raise Trouble(str(error)) from error
        if self.json:
            found = {"environment": environment, "probes": [vars(p) for p in probes]}
            print(records.dumps(found, indent=1))
            return 0
        for name, value in environment.items():
            print(f"{name:>26}  {_words(value)}")
        for probe in probes:
            print(f"\n{probe.question}")
            print(textwrap.fill(probe.answer, 96, initial_indent="  ", subsequent_indent="  "))
        return 0


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
