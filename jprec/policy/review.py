"""What the rules of a policy do to a list of paths, and what they were perhaps not meant to do."""

import dataclasses
from collections.abc import Iterable
from typing import Literal

from jprec.policy.policy import Policy, Rule


@dataclasses.dataclass(frozen=True)
class Remark:
    """One thing about one rule that its author should know; `str` of it is a sentence.

    Attributes:
      kind: "idle": the rule finds no path. "hidden": each path that it finds belongs to an
        earlier rule. "contradiction": an earlier rule takes some of its paths and says otherwise.
      rule: The rule.
      winner: The earlier rule; None for an idle rule.
      paths: The paths that the earlier rule takes from it.
    """

    kind: Literal["idle", "hidden", "contradiction"]
    rule: Rule
    winner: Rule | None = None
    paths: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind == "idle":
            return f"rule {str(self.rule)!r} finds nothing."
        where = self.paths[0] + (f" and {len(self.paths) - 1} more" if self.paths[1:] else "")
        if self.kind == "hidden":
            return (
                f"rule {str(self.rule)!r} never holds: the earlier rule {str(self.winner)!r} finds "
                f"all that it finds ({where}). The first rule wins; write the special one first."
            )
        return f"at {where} {str(self.winner)!r} wins over {str(self.rule)!r}."


def review(policy: Policy, paths: Iterable[str]) -> tuple[Remark, ...]:
    """What is remarkable about `policy`'s rules at these paths, in the rules' order.

    Args:
      policy: Its rules are looked up as `Policy.rule_for` does: the first that finds a path wins.
      paths: Parts joined by "/"; that of a layer ends with "/".

    >>> rules = (Rule("norm", compute="float32"), Rule("nrom", compute="float32"))
    >>> [str(remark) for remark in review(Policy(rules=rules), ["block/norm/"])]
    ["rule 'nrom->compute=float32' finds nothing."]
    """
    paths = list(paths)
    remarks = []
    for index, rule in enumerate(policy.rules):
        found = [path for path in paths if rule.finds(path)]
        if not found:
            remarks.append(Remark("idle", rule))
            continue
        taken: dict[Rule, list[str]] = {}
        for path in found:
            winner = next(earlier for earlier in policy.rules if earlier.finds(path))
            if any(earlier.finds(path) for earlier in policy.rules[:index]):
                taken.setdefault(winner, []).append(path)
        if sum(map(len, taken.values())) == len(found):
            winner, its = next(iter(taken.items()))
            remarks.append(Remark("hidden", rule, winner, tuple(its)))
            continue
        for winner, its in taken.items():
            # Where the winner says nothing of a role, the policy's own holds.
            held = {role: winner.changes.get(role, getattr(policy, role)) for role in rule.changes}
            if held != rule.changes:
                remarks.append(Remark("contradiction", rule, winner, tuple(its)))
    return tuple(remarks)
