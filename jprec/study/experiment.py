"""An experiment: a script whose record makes everything that a reader sees of it."""

import argparse
import dataclasses
import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax

from jprec import doctor, records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What a part leaves behind: anything that JSON has a form for.
Data = Any

#: Name of a part -> its data.
Parts = Mapping[str, Data]

Verdict = Literal["confirmed", "corrected", "refuted in miniature", "undecided", "needs a GPU"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What an experiment says of one claim, by the rule that its page states.

    Attributes:
      claim: Number of the claim, as in docs/claims.md: "A13", "B12", "M3.2".
      verdict: "confirmed"; "corrected" (right in part, or with another number); "refuted in
        miniature"; "undecided"; "needs a GPU".
      sentence: The evidence in one sentence, with its numbers.
    """

    claim: str
    verdict: Verdict
    sentence: str


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """A question that a script tries.

    Attributes:
      file: The script, `__file__`: its folder holds README.md and results/.
      question: One sentence.
      parts: small -> {name: function that computes the part}. A part is what can be lost when
        a run is interrupted: seconds to a minute each. `small` asks for a miniature.
      tables: parts -> {name of a generated part of README.md: Markdown}.
      figures: parts -> {file name in results/: figure}; drawn in jprec's style. The first by name
        is shown on the page of all experiments.
      findings: parts -> findings, by the decision rule that README.md states.
    """

    file: str
    question: str
    parts: Callable[[bool], Mapping[str, Callable[[], Data]]]
    tables: Callable[[Parts], Mapping[str, str]]
    figures: Callable[[Parts], "Mapping[str, Figure]"]
    findings: Callable[[Parts], Sequence[Finding]]

    @property
    def folder(self) -> Path:
        """The folder of the script."""
        return Path(self.file).resolve().parent

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.name

    def main(self, words: Sequence[str] | None = None) -> int:
        """Runs what is missing, writes record, figures and tables; 0, or 130 when interrupted."""
        parser = argparse.ArgumentParser(prog=self.name, description=self.question)
        parser.add_argument("--small", action="store_true", help="a miniature; the page stays")
        parser.add_argument(
            "--rebuild", action="store_true", help="tables and figures again, from the record"
        )
        parser.add_argument("--out", type=Path, default=self.folder / "results")
        options = parser.parse_args(words)
        file = options.out / "results.json"
        if options.rebuild:
            record = records.read_json(file)
        else:
            try:
                record = self._run(options.out, small=options.small)
            except KeyboardInterrupt:
                print("interrupted; what is finished is kept, and the next run goes on there")
                return 130
        record["findings"] = [dataclasses.asdict(f) for f in self.findings(record["parts"])]
        records.write_json(file, record)
        self.write(record, options.out, page=not record["small"])
        for table in self.tables(record["parts"]).values():
            print(table, end="\n\n")
        for finding in self.findings(record["parts"]):
            print(f"{finding.claim}: {finding.verdict}. {finding.sentence}")
        if record["small"]:
            print("A miniature: it shows that the experiment runs, and nothing else.")
        print(file)
        return 0

    def write(self, record: dict[str, Any], out: Path, *, page: bool) -> None:
        """Makes the figures in `out` and, if `page`, the tables of README.md from the record."""
        # Imported here: figures need the extra "lab", which studies without a report do not.
        from jprec import report

        with report.drawing():
            for name, figure in self.figures(record["parts"]).items():
                report.write_figure(out / name, figure)
        if page:
            readme = self.folder / "README.md"
            text = readme.read_text(encoding="utf-8")
            records.write_text(readme, report.renewed(text, self.tables(record["parts"])))

    def _run(self, out: Path, *, small: bool) -> dict[str, Any]:
        """The record; what an interrupted run of the same script finished is not run again."""
        start = time.monotonic()
        text = Path(self.file).read_bytes()
        made_by = f"{hashlib.sha256(text).hexdigest()[:16]}-{jax.__version__}-{small}"
        partial = out / "partial.json"
        kept = records.read_json(partial) if partial.is_file() else {}
        done = kept["parts"] if kept.get("made_by") == made_by else {}
        before = kept["seconds"] if done else 0.0
        todo = self.parts(small)
        for number, (name, compute) in enumerate(todo.items(), start=1):
            if name in done:
                continue
            began = time.monotonic()
            done[name] = compute()
            seconds = before + time.monotonic() - start
            records.write_json(partial, {"made_by": made_by, "seconds": seconds, "parts": done})
            took = time.monotonic() - began
            print(f"[{number}/{len(todo)}] {name}: {took:.1f} s", file=sys.stderr, flush=True)
        record: dict[str, Any] = {
            "experiment": self.name,
            "question": self.question,
            "small": small,
            "environment": doctor.environment(),
            "where": where(),
            "seconds": round(before + time.monotonic() - start, 1),
            # As read back from JSON, so that tables and figures see what a rebuild will see.
            "parts": {name: records.read_json(partial)["parts"][name] for name in todo},
        }
        partial.unlink()
        return record


def where() -> str:
    """Where results come from, in words: "emulated on a CPU", or the GPU."""
    if jax.default_backend() == "cpu":
        return "emulated on a CPU"
    return f"emulated, and native where it says so, on {jax.devices()[0].device_kind}"
