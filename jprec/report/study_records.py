"""The record of a study, read back from its folder."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jprec import records

SCHEMA = 1

ROLES = ("baseline", "claim", "control", "report", "twin")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of training, as the study announced it.

    Attributes:
      name: E.g. "tf32".
      policy: The policy in words or in its own spelling.
      what: One sentence.
      role: "baseline", "claim", "control", "report" or "twin".
      expected: "equivalent", "different", "identical" or None.
      twin_of: The arm that a twin must equal bit for bit, else None.
    """

    name: str
    policy: str
    what: str
    role: str
    expected: str | None
    twin_of: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One workload and optimiser, which `title` names; `guess` is the loss that guessing gives."""

    name: str
    title: str
    steps: int
    seeds: tuple[int, ...]
    margin: float
    margin_source: str
    guess: float
    baseline: str
    arms: tuple[Arm, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Histogram:
    """How often each binary exponent occurs in one kind of tensor, summed over seeds.

    Attributes:
      step: Step at which it was taken.
      tensor: "weights", "activations", "activation_gradients", "weight_gradients" or "updates".
      exponents: floor(log2 |x|), ascending.
      counts: Values with that exponent.
      zeros: Exact zeros, which have no exponent.
      nonfinite: Infinities and NaN.
      total: All values.
      flushed: For each scale, the nonzero values that FP16 rounds to zero after scaling.
    """

    step: int
    tensor: str
    exponents: tuple[int, ...]
    counts: tuple[int, ...]
    zeros: int
    nonfinite: int
    total: int
    flushed: tuple[tuple[int, int], ...]

    @property
    def nonzero(self) -> int:
        """Values that are finite and not zero."""
        return self.total - self.zeros - self.nonfinite


@dataclasses.dataclass(frozen=True, kw_only=True)
class Updates:
    """The distribution of |update| / ulp(weight), summed over seeds and steps.

    Attributes:
      format: Format in which the weights are stored, which gives the ulp.
      log2_ratio: floor(log2(|u| / ulp)), ascending.
      counts: Updates with that ratio.
      zeros: Updates that are exactly zero.
      lost: Updates that are not zero and leave their weight as it is.
      total: All updates.
    """

    format: str
    log2_ratio: tuple[int, ...]
    counts: tuple[int, ...]
    zeros: int
    lost: int
    total: int

    @property
    def lost_share(self) -> float:
        """Lost updates as a share of those that are not zero."""
        return self.lost / max(self.total - self.zeros, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossScale:
    """The loss scale: its log2 and whether the step was skipped, [seed][step]."""

    log2: tuple[tuple[int, ...], ...]
    skipped: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Test losses along the way, [point][seed]."""

    step: tuple[int, ...]
    test_loss: tuple[tuple[float, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """The result of one arm in one setting; tuples hold one entry a seed.

    Attributes:
      emulated: Whether the arm's arithmetic was emulated; if not, `backend` computed it itself.
      backend: E.g. "cpu" or "gpu".
    """

    setting: str
    arm: str
    emulated: bool
    backend: str
    seeds: tuple[int, ...]
    test_loss: tuple[float, ...]
    initial_test_loss: tuple[float, ...]
    test_accuracy: tuple[float, ...] | None
    weights_sha256: tuple[str, ...]
    curve: Curve
    loss_scale: LossScale | None
    histograms: tuple[Histogram, ...]
    updates: Updates | None

    @property
    def ran(self) -> str:
        """Where the result comes from, in words: "emulated on cpu" or "hardware (gpu)"."""
        return f"emulated on {self.backend}" if self.emulated else f"hardware ({self.backend})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
    """A cell without a result, and why as far as the journal knows."""

    setting: str
    arm: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyRecords:
    """Everything a study left behind that a report needs.

    Attributes:
      study: The study's name.
      question: What it asks.
      limits: What it does not show.
      command: The command that reproduces it.
      settings: In the study's order.
      environment: (name, value in words): versions, devices, flags.
      probes: (question, answer): what the backend was found to do.
      cells: Finished cells, in the order of settings and arms.
      missing: Cells without a result.
    """

    study: str
    question: str
    limits: str
    command: str
    settings: tuple[Setting, ...]
    environment: tuple[tuple[str, str], ...]
    probes: tuple[tuple[str, str], ...]
    cells: tuple[Cell, ...]
    missing: tuple[Missing, ...]

    def cell(self, setting: str, arm: str) -> Cell | None:
        """The finished cell of that name, or None."""
        found = [c for c in self.cells if (c.setting, c.arm) == (setting, arm)]
        return found[0] if found else None


def read_study(folder: str | Path) -> StudyRecords:
    """The records of the study in `folder`; cells without a result are listed as missing.

    Raises:
      ValueError: if the folder holds no study, or a record lacks a field or has another schema.
    """
    folder = Path(folder)
    path = folder / "study.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no study.json. Give the folder that a study wrote, e.g. "
            "runs/converges."
        )
    source = _Source(path, records.read_json(path))
    if "settings" not in source:
        raise ValueError(
            f"{path} has no settings yet: the study was interrupted before its margins were known. "
            "Run it again with the same command; finished cells are kept."
        )
    settings = tuple(_setting(_Source(path, s)) for s in source["settings"])
    cells, missing = _cells(folder, settings)
    environment = source["environment"]
    return StudyRecords(
        study=source["study"],
        question=source["question"],
        limits=source["limits"],
        command=source["command"],
        settings=settings,
        environment=tuple((str(k), _in_words(v)) for k, v in environment.items()),
        probes=tuple((str(p["question"]), str(p["answer"])) for p in source["probes"]),
        cells=cells,
        missing=missing,
    )


class _Source:
    """A JSON object of one file; a missing key is an error that names both."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        self.path, self._fields = path, fields
        schema = fields.get("schema", SCHEMA)
        if schema != SCHEMA:
            raise ValueError(
                f"{path}: schema {schema}, but this jprec reads schema {SCHEMA}. Read it with the "
                "version that wrote it, or run the study again."
            )

    def __getitem__(self, key: str) -> Any:
        if key not in self._fields:
            raise ValueError(
                f"{self.path}: no field {key!r}; it has {', '.join(map(str, self._fields))}. The "
                "record was not written by this version's study: run the study again."
            )
        return self._fields[key]

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def part(self, key: str) -> "_Source":
        return _Source(self.path, self[key])

    def floats(self, key: str) -> tuple[float, ...]:
        return tuple(records.as_floats(self[key]))

    def number(self, key: str) -> float:
        return records.as_floats([self[key]])[0]

    def ints(self, key: str) -> tuple[int, ...]:
        return tuple(int(v) for v in self[key])


def _setting(source: _Source) -> Setting:
    arms = tuple(
        Arm(**{f.name: part[f.name] for f in dataclasses.fields(Arm)})
        for part in (_Source(source.path, arm) for arm in source["arms"])
    )
    setting = Setting(
        name=source["name"],
        title=source["title"],
        steps=int(source["steps"]),
        seeds=source.ints("seeds"),
        margin=source.number("margin"),
        margin_source=source["margin_source"],
        guess=source.number("guess"),
        baseline=source["baseline"],
        arms=arms,
    )
    names = [arm.name for arm in arms]
    for arm in arms:
        if arm.role not in ROLES:
            raise ValueError(f"{setting.name}/{arm.name}: role {arm.role!r}; it is one of {ROLES}.")
        if (arm.role == "baseline") != (arm.name == setting.baseline):
            raise ValueError(
                f"{setting.name}/{arm.name}: role {arm.role!r}, but the setting's one baseline is "
                f"{setting.baseline!r}."
            )
        if arm.role == "twin" and arm.twin_of not in names:
            raise ValueError(
                f"{setting.name}/{arm.name}: twin of {arm.twin_of!r}; the setting's arms are "
                f"{names}."
            )
    if setting.baseline not in names:
        raise ValueError(f"{setting.name}: baseline {setting.baseline!r}; its arms are {names}.")
    return setting


def _cells(
    folder: Path, settings: Sequence[Setting]
) -> tuple[tuple[Cell, ...], tuple[Missing, ...]]:
    """The finished cells, and those without a result."""
    last_event = {
        event["cell"]: event
        for event in records.read_journal(folder / "journal.jsonl")
        if "cell" in event
    }
    cells, missing = [], []
    for setting in settings:
        for arm in setting.arms:
            path = folder / "cells" / setting.name / arm.name / "result.json"
            if path.is_file():
                cells.append(_cell(_Source(path, records.read_json(path))))
                continue
            failed = last_event.get(f"{setting.name}/{arm.name}", {}).get("event") == "failed"
            reason = "failed" if failed else "not finished"
            missing.append(Missing(setting=setting.name, arm=arm.name, reason=reason))
    return tuple(cells), tuple(missing)


def _cell(source: _Source) -> Cell:
    seeds = source.ints("seeds")
    cell = Cell(
        setting=source["setting"],
        arm=source["arm"],
        emulated=bool(source["emulated"]),
        backend=source["backend"],
        seeds=seeds,
        test_loss=source.floats("test_loss"),
        initial_test_loss=source.floats("initial_test_loss"),
        test_accuracy=None if source["test_accuracy"] is None else source.floats("test_accuracy"),
        weights_sha256=tuple(source["weights_sha256"]),
        curve=_curve(source.part("curve")),
        loss_scale=None if source["loss_scale"] is None else _loss_scale(source.part("loss_scale")),
        histograms=tuple(_histogram(_Source(source.path, h)) for h in source["histograms"] or ()),
        updates=None if source["updates"] is None else _updates(source.part("updates")),
    )
    for field in ("test_loss", "weights_sha256"):
        if len(getattr(cell, field)) != len(seeds):
            raise ValueError(
                f"{source.path}: {len(getattr(cell, field))} entries in {field}, but "
                f"{len(seeds)} seeds."
            )
    return cell


def _curve(source: _Source) -> Curve:
    return Curve(
        step=source.ints("step"),
        test_loss=tuple(tuple(records.as_floats(point)) for point in source["test_loss"]),
    )


def _loss_scale(source: _Source) -> LossScale:
    return LossScale(
        log2=tuple(tuple(int(v) for v in seed) for seed in source["log2"]),
        skipped=tuple(tuple(int(v) for v in seed) for seed in source["skipped"]),
    )


def _histogram(source: _Source) -> Histogram:
    return Histogram(
        step=int(source["step"]),
        tensor=source["tensor"],
        exponents=source.ints("exponents"),
        counts=source.ints("counts"),
        zeros=int(source["zeros"]),
        nonfinite=int(source["nonfinite"]),
        total=int(source["total"]),
        flushed=tuple(sorted((int(s), int(n)) for s, n in source["flushed"].items())),
    )


def _updates(source: _Source) -> Updates:
    return Updates(
        format=source["format"],
        log2_ratio=source.ints("log2_ratio"),
        counts=source.ints("counts"),
        zeros=int(source["zeros"]),
        lost=int(source["lost"]),
        total=int(source["total"]),
    )


def _in_words(value: Any) -> str:
    """A value of the environment as text; lists with commas."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_in_words(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_in_words, value))
    return "none" if value is None else str(value)
