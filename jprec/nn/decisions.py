"""What a policy says of one layer, and which rules cannot act; the same for both libraries."""

from collections.abc import Iterable

from jprec import policy as policies
from jprec.nn.layers import Kind


def compute_dtype(policy: policies.Policy, path: str, kind: Kind | None) -> str:
    """The dtype that a layer's parameters enter the computation in; of a norm, its result's."""
    rule = policy.rule_for(path + "/")
    if rule is not None and rule.compute is not None:
        return rule.compute
    if kind is None or not kind.is_norm:
        return policy.compute
    return "float32" if kind.is_wrapper else policy.statistics


def switch_dtype(policy: policies.Policy, kind: Kind, compute: str) -> str:
    """The dtype that a layer is told to compute in: a norm takes its statistics in it."""
    if not kind.is_norm:
        return compute
    return "float32" if kind.is_wrapper else policy.statistics


def output_dtype(
    policy: policies.Policy, path: str, kind: Kind | None, compute: str | None
) -> str | None:
    """The dtype that a module's result is cast to; None where it comes out right by itself."""
    rule = policy.rule_for(path + "/")
    if rule is not None and rule.output is not None:
        return rule.output
    if not path:
        return policy.output
    if kind is None or compute is None:
        return None
    # Gates are multiplied by the carry, which has the parameters' dtype, and so has the result.
    return compute if kind.is_cell or switch_dtype(policy, kind, compute) != compute else None


def check_rules(
    policy: policies.Policy, layers: list[str], modules: list[str], parameters: list[str]
) -> None:
    """An error for a rule one of whose roles finds nothing, or nothing that is left to it.

    Args:
      policy: Its rules.
      layers: Paths of the layers whose dtype can be set.
      modules: Paths of all modules.
      parameters: Paths of all parameters.
    """
    for rule in policy.rules:
        found = {
            "params": [path for path in parameters if rule.finds(path)],
            "compute": [path for path in layers if rule.finds(path + "/")],
            "output": [path for path in modules if rule.finds(path + "/")],
        }
        idle = [role for role in rule.changes if not found[role]]
        if not idle:
            continue
        if found["params"]:
            first = found["params"][0]
            if "/" not in first:
                raise ValueError(
                    f"rule {str(rule)!r}: {' and '.join(idle)} can do nothing, since {first} is a "
                    "parameter of the model itself, which computes with it as its own code says. "
                    "Cast it there, as in self.gain[...].astype(jnp.float32), or put it into a "
                    "module of its own."
                )
            raise ValueError(
                f"rule {str(rule)!r}: {' and '.join(idle)} can do nothing, since it finds only "
                f"parameters ({first}), and that belongs to layers. Write a pattern that is found "
                f"in a layer's path, such as {first.rpartition('/')[0]!r}."
            )
        raise ValueError(
            f"rule {str(rule)!r}: {' and '.join(idle)} finds nothing in this model. Layers: "
            f"{', '.join(path or '(the model)' for path in layers)}."
        )
    for remark in remarks(policy, modules, parameters):
        if remark.kind == "hidden":
            raise ValueError(str(remark))


def remarks(
    policy: policies.Policy, modules: Iterable[str], parameters: Iterable[str]
) -> tuple[policies.Remark, ...]:
    """What is remarkable about the rules at these paths of modules and parameters."""
    return policies.review(policy, [*(path + "/" for path in modules), *parameters])


def joined(path: str, name: str) -> str:
    """The path of what is called `name` in the module at `path`."""
    return f"{path}/{name}" if path else name


def says(path: str, layer: str) -> str:
    """How an error speaks of a layer."""
    return f"{path or 'the model'} ({layer})"
