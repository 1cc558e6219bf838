"""study.json: what a study is, where it ran, and what its records may be mixed with."""

import json
from typing import Any

from jprec import doctor, records, stats
from jprec.study.cells import PILOT
from jprec.study.design import Setting, describe
from jprec.study.fingerprint import fingerprint
from jprec.study.plan import Cell, Plan
from jprec.study.rehearsal import rehearse


class StudyError(RuntimeError):
    """A study cannot go on; the message is for the user, and finished cells are kept."""


def open_manifest(plan: Plan) -> None:
    """Writes the manifest, or checks that the one in the folder has the same design.

    Raises:
      StudyError: if the folder's records were made for other settings, arms, seeds, programs or
        data, or in another environment.
    """
    path = plan.out / "study.json"
    if not path.exists():
        records.write_json(path, {"schema": 1, **_header(plan), "design": _design(plan)})
        return
    manifest = records.read_json(path)
    if "environment" in manifest:
        _same_environment(plan, manifest["environment"], doctor.environment())
    old, new = manifest["design"], _design(plan)
    if old == new:
        return
    settings = {key: json.dumps(s) for d in (old, new) for key, s in d["settings"].items()}
    changed = [name for name in settings if old["settings"].get(name) != new["settings"].get(name)]
    raise StudyError(
        f"{plan.out} holds a run with another design (differs: {', '.join(changed) or 'study'}). "
        "Give this run a folder of its own with --out, or delete that one."
    )


def check_environment(plan: Plan, answer: dict[str, Any]) -> None:
    """Writes the first worker's environment and probes into the manifest; compares later ones.

    Raises:
      StudyError: if the folder's records were made with other versions or another machine.
    """
    path = plan.out / "study.json"
    manifest = records.read_json(path)
    if "environment" not in manifest:
        found = {"environment": answer["environment"], "probes": answer["probes"]}
        records.write_json(path, manifest | found)
        return
    _same_environment(plan, manifest["environment"], answer["environment"])


def _same_environment(plan: Plan, old: dict[str, Any], new: dict[str, Any]) -> None:
    changed = [f"{k}: {old.get(k)} -> {new.get(k)}" for k in new if old.get(k) != new.get(k)]
    if changed:
        raise StudyError(
            f"the records in {plan.out} were made elsewhere ({'; '.join(changed)}); arms are "
            "compared only within one environment. Choose another folder with --out."
        )


def complete_manifest(plan: Plan) -> None:
    """Adds to the manifest what is known only when all cells are there: δ and the guess."""
    path = plan.out / "study.json"
    manifest = records.read_json(path)
    settings = []
    for setting in plan.settings:
        entry = describe(setting)
        baseline = records.read_json(plan.path(Cell(setting.name, setting.baseline.name)))
        initial = records.as_floats(baseline["initial_test_loss"])
        guess = baseline["guess"]
        entry["guess"] = sum(initial) / len(initial) if guess is None else guess
        if entry["margin"] is None:
            pilot = records.read_json(plan.path(Cell(setting.name, PILOT)))
            entry["margin"] = stats.margin_from_pilot(records.as_floats(pilot["test_loss"]))
        settings.append(entry)
    complete = manifest | {"settings": settings}
    if complete != manifest:
        records.write_json(path, complete)


def _header(plan: Plan) -> dict[str, Any]:
    study = plan.study
    return {
        "study": study.name,
        "question": study.question,
        "limits": study.limits,
        "command": plan.command,
        "full": plan.full,
    }


def _design(plan: Plan) -> dict[str, Any]:
    """What must agree between a folder and a run that goes on in it, as JSON gives it back."""
    settings = {s.name: describe(s) | {"fingerprint": _fingerprint(s)} for s in plan.settings}
    if plan.pilots_only:
        parts = ("title", "steps", "fingerprint")
        settings = {name: {part: s[part] for part in parts} for name, s in settings.items()}
    return json.loads(records.dumps({"study": plan.study.name, "settings": settings}))


def _fingerprint(setting: Setting) -> str:
    try:
        return fingerprint(setting)
    except Exception:
        rehearse(setting)  # says what does not fit, and where
        raise
