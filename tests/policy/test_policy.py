import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from jprec import policy
from jprec.policy import Policy, Rule

DTYPES = ("float32", "bfloat16", "float16")
dtypes = st.sampled_from(DTYPES)
rules = st.builds(
    Rule,
    st.sampled_from(["norm", "^head/", r"a,b=c", r"block_\d+/(scale|bias)$", r"a-\x3eb"]),
    compute=dtypes,
    params=st.none() | dtypes,
)
policies = st.builds(
    Policy,
    dtypes,
    dtypes,
    dtypes,
    st.sampled_from(["fp32", "tf32"]),
    rules=st.lists(rules, max_size=3).map(tuple),
    grad_product=st.sampled_from([None, "fp8_e5m2"]),
    moments=dtypes,
    statistics=dtypes,
    loss=dtypes,
) | st.builds(Policy, dtypes, dtypes, dtypes, rules=st.lists(rules, max_size=3).map(tuple))


@given(policies)
@settings(max_examples=50, deadline=None)
def test_a_policys_string_reads_back_as_the_policy(it):
    assert policy.parse(str(it)) == it
    assert policy.get(str(it)) == it


@pytest.mark.parametrize("name", policy.names())
def test_recipes_are_found_by_name_and_know_it(name):
    found = policy.get(name)
    assert found.name == name
    assert policy.parse(str(found)) == found
    assert policy.get(found) is found


def test_jmp_strings_are_read_with_spaces_too():
    want = Policy("float32", "bfloat16", "float32")
    assert policy.get("p=f32,c=bf16,o=f32") == want
    assert policy.get("params=float32, compute=bfloat16, output=full") == want


def test_jmp_objects_are_read():
    @dataclasses.dataclass
    class Theirs:
        param_dtype = jnp.float32
        compute_dtype = np.dtype("float16")
        output_dtype = np.float32

    assert policy.get(Theirs()) == Policy("float32", "float16", "float32")


def test_dtype_objects_become_names():
    assert Policy(jnp.bfloat16, np.float16, np.dtype("float32")) == Policy("bf16", "f16", "f32")


def test_the_first_rule_that_is_found_wins():
    it = Policy(
        compute="bf16",
        rules=(Rule("norm/scale$", compute="float16"), Rule("norm", params="bf16", compute="f32")),
    )
    assert it.for_path("block/norm/scale") == Policy(compute="float16")
    assert it.for_path("block/norm/bias") == Policy("bfloat16", "float32")
    assert it.for_path("dense/kernel") == Policy(compute="bfloat16")


def test_a_policy_is_hashable_and_its_name_does_not_count():
    named = policy.get("mixed_bf16")
    assert hash(named) == hash(policy.parse(str(named)))
    assert named == policy.parse(str(named))


def test_uses_looks_into_rules():
    it = Policy(compute="bf16", rules=(Rule("head", compute="f16"),))
    assert it.uses("float16")
    assert not it.uses("float16", roles=("params",))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mixed_bf15", "mixed_bf16"),
        ("p=f32,c=bf17,o=f32", "bf17"),
        ("params=float32,params=float16", "given twice"),
        ("parms=float32", "Close: params"),
        ("params", "no policy 'params'"),
        ("params=", "not role=value"),
        ("c=half", "depend on the machine"),
        ("c=float64", "never touched"),
        ("c=bf16;norm=float32", "has no '->'"),
        ("c=bf16;norm->product=tf32", "a rule cannot set product"),
        ("c=bf16;norm->loss=f16", "a rule cannot set loss"),
        ("grad_product=e5m2", "without product"),
        ("product=tf32,grad_product=e5m9z", "e5m9z"),
        ("moment=bf16", "Close: moments"),
        ("c=bf16;(->compute=f32", "not a regular expression"),
        ("product=tf3", "tf3"),
        ("", "no policy ''"),
    ],
)
def test_a_wrong_string_says_what_is_wrong_and_what_is_close(text, says):
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        policy.get(text)


def test_a_rule_that_changes_nothing_is_an_error():
    with pytest.raises(ValueError, match="changes nothing"):
        Rule("norm")


def test_other_objects_are_refused_with_what_is_allowed():
    with pytest.raises(TypeError, match="mixed_bf16"):
        policy.get(16)


def test_reading_policies_does_not_import_jax():
    code = "import sys, jprec.policy as p; p.get('mixed_bf16'); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_rule_finds_a_layer_with_or_without_the_slash_at_its_end():
    assert Rule("^head/", compute="f32").finds("head/")
    assert Rule("^head/", compute="f32").finds("head/kernel")
    assert Rule("head$", compute="f32").finds("blocks/head/")
    assert not Rule("^head/", compute="f32").finds("head")


def test_the_path_of_a_leaf_is_the_same_with_and_without_nnx_variables():
    state = nnx.state(nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0))), nnx.Param)
    for tree in (state, nnx.to_pure_dict(state), nnx.as_pure(state)):
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
        assert [policy.leaf_path(p) for p in paths] == ["layers/0/bias", "layers/0/kernel"]
    (path,) = (path for path, _ in jax.tree_util.tree_flatten_with_path({"value": 1})[0])
    assert policy.leaf_path(path) == "value"


def test_roles_beyond_the_everyday_ones_are_written_only_where_they_differ():
    it = Policy(product="fp8_e4m3", grad_product="fp8_e5m2", moments="bf16", loss="f16")
    assert str(it) == (
        "params=float32,compute=float32,output=float32,product=fp8_e4m3,grad_product=fp8_e5m2,"
        "moments=bfloat16,loss=float16"
    )
    assert str(Policy()) == "params=float32,compute=float32,output=float32"


@pytest.mark.parametrize(
    ("text", "backward"),
    [
        ("compute=bf16", None),
        ("product=tf32", "tf32"),
        ("product=fp8_e4m3", "e5m2"),
        ("product=e4m3fn@h100+chunk128", "e5m2@h100+chunk128"),
        ("product=fp8_e4m3,grad_product=fp8_e4m3", "fp8_e4m3"),
        ("product=bf16,grad_product=fp32", "fp32"),
        ("product=fp8_e5m2", "fp8_e5m2"),
    ],
)
def test_gradients_of_e4m3_products_are_e5m2_unless_the_policy_says_otherwise(text, backward):
    assert policy.parse(text).backward_product == backward


def remarks(paths, *rules):
    return [(r.kind, r.rule, r.winner) for r in policy.review(Policy(rules=rules), paths)]


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("mixed_fp16;^head/->compute=float32", "c=f16;^head/->compute=float32"),
        ("mixed_bf16, moments=bfloat16, o=bf16", "c=bf16,o=bf16,moments=bfloat16"),
        ("pure_bf16,product=tf32;norm->params=f32", "p=bf16,c=bf16,m=tf32;norm->params=f32"),
    ],
)
def test_a_recipe_may_be_followed_by_roles_and_rules(text, same_as):
    assert policy.get(text) == policy.parse(same_as)
    assert policy.get(text).name is None


def test_a_rule_that_an_earlier_one_takes_a_role_from_is_remarked():
    """The first rule holds as a whole: what it does not say is as the policy has it."""
    it = Policy(rules=(Rule("^b", compute="bf16"), Rule("kernel", params="bf16")))
    assert it.for_path("b/kernel").params == "float32"
    (remark,) = policy.review(it, ["b/kernel", "c/kernel"])
    assert remark.kind == "contradiction"


def test_rules_that_find_nothing_never_hold_or_contradict_are_remarked():
    paths = ["block/", "block/norm/", "block/norm/scale", "head/", "head/kernel"]
    norm, block = Rule("norm", compute="f32"), Rule("block", compute="bf16")
    late, alike = Rule("norm/scale", compute="f16"), Rule("block", compute="f32")
    assert remarks(paths, norm, block) == [("contradiction", block, norm)]
    assert remarks(paths, norm, alike) == []
    assert remarks(paths, block, norm) == [("hidden", norm, block)]
    assert remarks(paths, Rule("nrom", compute="f32")) == [
        ("idle", Rule("nrom", compute="f32"), None)
    ]
    assert remarks(paths, norm, block, late) == [
        ("contradiction", block, norm),
        ("hidden", late, norm),
    ]
    assert remarks(paths, norm, norm)[-1][0] == "hidden"
    assert remarks([], norm) == [("idle", norm, None)]


def test_remarks_are_sentences():
    it = Policy(rules=(Rule("norm", compute="f32"), Rule("block", compute="bf16")))
    (remark,) = policy.review(it, ["block/norm/", "block/norm/scale", "block/"])
    assert str(remark) == (
        "at block/norm/ and 1 more 'norm->compute=float32' wins over 'block->compute=bfloat16'."
    )


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("compute=bf16", False),
        ("compute=f16", True),
        ("loss=f16", True),
        ("c=bf16;head->compute=f16", True),
        ("product=tf32", False),
        ("product=bf16x3", False),
        ("product=fp16", True),
        ("product=fp8_e4m3", True),
        ("product=fp16,grad_product=bf16", False),
        ("moments=f16", False),
    ],
)
def test_a_loss_scale_is_needed_where_gradients_pass_through_a_narrow_range(text, needs):
    assert policy.parse(text).needs_loss_scale == needs
