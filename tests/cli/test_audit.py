import json
import sys

import pytest

from jprec.cli import main

MODEL = """
import jax, jax.numpy as jnp

def loss(w, x):
    return jnp.sum((x @ w) ** 2)

def step():
    w = {"kernel": jax.ShapeDtypeStruct((16, 4), jnp.float32)}
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    return jax.grad(lambda w, x: loss(w["kernel"], x)), w, x

PAIR = (loss, jnp.ones((16, 4)), jnp.ones((8, 16)))

def nothing():
    return jnp.sin(jnp.ones(3))

def closed():
    return jnp.ones((8, 8)) @ jnp.ones((8, 8))

def broken(x):
    return x @ x if x.sum() > 0 else x

def rotated(points, rotation):
    return points @ rotation

NUMBER = 3
"""
ROTATION = MODEL[: MODEL.index("points @ rotation")].count("\n") + 1


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("audited")
    (path / "audited_model.py").write_text(MODEL, encoding="utf-8")
    (path / "unreadable_model.py").write_text("def f(:", encoding="utf-8")
    yield path
    for name in ("audited_model", "unreadable_model"):
        sys.modules.pop(name, None)


@pytest.fixture
def run(capsys, monkeypatch, folder):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main(["audit", *words])
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    return run


@pytest.mark.parametrize(
    "words",
    [
        ("audited_model.py:loss", "--shapes", "f32[16,4], float32[8,16]"),
        ("audited_model:loss", "--shapes", "f32[16,4],f32[8,16]"),
        ("audited_model:step",),
        ("audited_model:PAIR",),
        ("audited_model:closed",),
    ],
)
def test_a_function_is_named_in_each_of_these_ways(run, words):
    status, printed, said = run(*words)
    assert (status, said) == (0, "")
    assert "tf32" in printed
    assert "audited_model.py:" in printed
    assert "Nothing to mend was found." in printed


def test_findings_give_status_1(run):
    status, printed, _ = run("audited_model:rotated", "--shapes", "f32[100,3],f32[3,3]")
    assert status == 1
    assert f"audited_model.py:{ROTATION}: a sum over 3 numbers runs as tf32" in printed
    status, *_ = run("audited_model:rotated", "--shapes", "f32[100,3],f32[3,3]", "--device", "v100")
    assert status == 0


def test_machines_get_json_and_nothing_else(run, tmp_path):
    page = tmp_path / "page.html"
    status, printed, said = run(
        "audited_model:step", "--json", "--device", "h100", "--html", str(page)
    )
    facts = json.loads(printed)
    assert status == 0
    assert facts["device"] == "h100"
    assert [operation["phase"] for operation in facts["operations"]] == ["forward", "backward"]
    assert said.strip() == str(page)


def test_the_page_stands_alone(run, tmp_path):
    page = tmp_path / "page.html"
    run("audited_model:rotated", "--shapes", "f32[100,3],f32[3,3]", "--html", str(page))
    text = page.read_text(encoding="utf-8")
    assert "How will NVIDIA A100 SXM run" in text
    assert f"audited_model.py:{ROTATION}" in text
    assert not any(word in text for word in ("<script", "http://", "https://", "<link"))


def test_all_lists_each_product_with_its_scope(run):
    _, printed, _ = run("audited_model:step", "--all")
    assert "transpose(jvp())" in printed


BAD = {
    "a module that is not there": (("no_such_module:f",), "cannot import no_such_module"),
    "a module that cannot be read": (("unreadable_model:f",), "cannot import unreadable_model"),
    "a file that is not there": (("nowhere.py:f",), "there is no file nowhere.py"),
    "no name": (("audited_model.py",), "package.module:NAME or file.py:NAME"),
    "a wrong name": (("audited_model:los",), "did you mean loss?"),
    "no function": (("audited_model:NUMBER",), "is a int; name a function"),
    "no arguments": (("audited_model:loss",), 'as in --shapes "f32[8,32], f32[8,32]"'),
    "too few": (("audited_model:loss", "--shapes", "f32[3]"), "missing a required argument: 'x'"),
    "shapes that do not fit": (
        ("audited_model:loss", "--shapes", "f32[3,4],f32[8,16]"),
        "cannot be traced: TypeError: dot_general requires",
    ),
    "no shape": (("audited_model:loss", "--shapes", "8x16,3"), "'8x16' is no array"),
    "no dtype": (("audited_model:loss", "--shapes", "f33[8],f32[8]"), "no dtype 'f33'"),
    "what does not trace": (
        ("audited_model:broken", "--shapes", "f32[4,4]"),
        "cannot be traced: TracerBoolConversionError",
    ),
    "no product": (("audited_model:nothing",), "has no product"),
    "no device": (("audited_model:step", "--device", "a1000"), "did you mean a100"),
    "no page": (("audited_model:step", "--html", "page.pdf"), "a page's name ends in .html"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_that_says_what_to_do(run, case):
    words, expected = BAD[case]
    status, printed, said = run(*words)
    assert (status, printed, said.count("\n")) == (2, "", 1)
    assert expected in said
