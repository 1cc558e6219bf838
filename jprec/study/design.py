"""What a study is: settings, each with its arms, seeds and margin, fixed before it runs."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import optax

from jprec.study.arms import Arm, arm
from jprec.workloads import Workload


def _check_name(name: str, what: str) -> None:
    """Refuses a name that is no good as the name of a folder."""
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*", name):
        raise ValueError(
            f"{what} {name!r}: the name is that of a folder, so it has letters, digits, '_', '-' "
            "and '.' only."
        )


#: Pilot seeds fix the margin and are never judged; judged seeds count from 0.
PILOT_SEEDS = tuple(range(10_000, 10_032))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """A workload with an optimiser, trained in several arms that share weights and batches.

    Attributes:
      name: Spelling in tables and folders.
      workload: A `Workload`, or a function of no arguments that makes one (called when it is
        trained, so that listing studies loads no data).
      optimizer: Any Optax transformation; it sees FP32 gradients and parameters.
      steps: Training steps.
      arms: Names of arms or policies, or `Arm`s; the one with the role "baseline" is what the
        others are compared with (the first, if none has it).
      title: One line for the reader: data, model, optimiser.
      seeds: How many seeds are judged.
      margin: δ, the difference of the test loss below which two arms count as equivalent, fixed
        beforehand; None: half the standard deviation of the baseline over the 32 pilot seeds, which
        then run first.
      margin_source: Where the margin comes from, for the reader.
      points: How often the test loss is taken on the way; if that does not divide the steps, the
        next smaller number that does.
    """

    name: str
    workload: Workload | Callable[[], Workload]
    optimizer: optax.GradientTransformation
    steps: int
    arms: Sequence[str | Arm]
    title: str = ""
    seeds: int = 16
    margin: float | None = None
    margin_source: str = "half the standard deviation of the baseline over 32 pilot seeds"
    points: int = 20

    def __post_init__(self) -> None:
        _check_name(self.name, "setting")
        if isinstance(self.arms, str):
            raise ValueError(
                f"setting {self.name!r}: arms={self.arms!r} is one name; list two or more."
            )
        arms = tuple(arm(a) for a in self.arms)
        names = [a.name for a in arms]
        if len(arms) < 2 or len(set(names)) != len(names):
            raise ValueError(
                f"setting {self.name!r} has the arms {names}; it needs two or more, each once."
            )
        baselines = [a for a in arms if a.role == "baseline"]
        if len(baselines) > 1:
            raise ValueError(
                f"setting {self.name!r} has the baselines {[a.name for a in baselines]}; one arm "
                "is what all others are compared with. Give the others another role."
            )
        if not baselines:
            arms = (dataclasses.replace(arms[0], role="baseline"), *arms[1:])
        twins = [a.twin_of for a in arms if a.twin_of and a.twin_of not in names]
        if twins:
            raise ValueError(f"setting {self.name!r}: a twin names {twins}, not among {names}.")
        if self.seeds < 2:
            raise ValueError(f"setting {self.name!r}: seeds={self.seeds}; differences need 2.")
        if self.steps < 1 or self.points < 1:
            raise ValueError(
                f"setting {self.name!r}: steps={self.steps}, points={self.points}; 1 or more."
            )
        fitting = max(n for n in range(1, self.points + 1) if self.steps % n == 0)
        object.__setattr__(self, "points", fitting)
        object.__setattr__(self, "arms", arms)

    @property
    def baseline(self) -> Arm:
        """The arm that the others are compared with."""
        return next(a for a in self.arms if isinstance(a, Arm) and a.role == "baseline")

    def load(self) -> Workload:
        """The workload, made now if it was given as a function."""
        return self.workload if isinstance(self.workload, Workload) else self.workload()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """A question, the settings that try it, and what the answer will not show.

    Attributes:
      name: Spelling on the command line and in the record.
      settings: What runs by default.
      question: One sentence.
      limits: What the result does not show.
      full: What runs with `--full`; empty: the same settings.
      full_seeds: Seeds a setting with `--full`; None: as each setting says.
    """

    name: str
    settings: Sequence[Setting]
    question: str = "Do these precisions train to the same test loss?"
    limits: str = (
        "These are results for these models, data and seeds. Another model, a longer training or "
        "a larger learning rate can behave differently."
    )
    full: Sequence[Setting] = ()
    full_seeds: int | None = None

    def __post_init__(self) -> None:
        _check_name(self.name, "study")
        for settings in (self.settings, self.full):
            names = [s.name for s in settings]
            if len(set(names)) != len(names):
                raise ValueError(f"study {self.name!r}: settings {names}; each name once.")
        if not self.settings:
            raise ValueError(f"study {self.name!r} has no settings; it needs one or more.")

    def select(self, *, full: bool = False, seeds: int | None = None) -> tuple[Setting, ...]:
        """The settings to run; `seeds` overrides how many seeds each has."""
        if seeds is None and full:
            seeds = self.full_seeds
        settings = tuple((full and self.full) or self.settings)
        if seeds is None:
            return settings
        return tuple(dataclasses.replace(s, seeds=seeds) for s in settings)


def describe(setting: Setting) -> dict[str, Any]:
    """The setting as a record, as far as it is known before it runs."""
    return {
        "name": setting.name,
        "title": setting.title,
        "steps": setting.steps,
        "points": setting.points,
        "seeds": list(range(setting.seeds)),
        "margin": setting.margin,
        "margin_source": setting.margin_source,
        "baseline": setting.baseline.name,
        "arms": [a.describe() for a in setting.arms if isinstance(a, Arm)],
    }
