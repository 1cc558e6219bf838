import jax
import numpy as np
import optax
import pytest

from jprec import study
from jprec.study import Arm, Setting, Study, key_for


def setting(**fields):
    fields = {"workload": None, "optimizer": optax.sgd(0.1), "steps": 20} | fields
    return Setting(name="s", **fields)


def test_the_first_arm_is_the_baseline_if_none_says_so():
    got = setting(arms=("compute=bfloat16", "product=tf32"))
    assert got.baseline.name == "compute=bfloat16"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arms": ("fp32",)}, "two or more"),
        ({"arms": ("fp32", "fp32")}, "each once"),
        ({"arms": ("fp32", "tf23")}, "Close: tf32"),
        ({"arms": ("fp32", "tf32"), "steps": 0}, "1 or more"),
        ({"arms": "fp32"}, "is one name"),
        ({"arms": ("fp32", "tf32"), "seeds": 1}, "differences need 2"),
        ({"arms": ("tf32", Arm(name="t", role="twin", twin_of="fp32"))}, "a twin names"),
    ],
)
def test_a_setting_that_cannot_run_is_refused_in_words(fields, message):
    with pytest.raises(ValueError, match=message):
        setting(**fields)


def test_points_that_do_not_divide_the_steps_give_way():
    assert setting(arms=("fp32", "tf32"), steps=50).points == 10


@pytest.mark.parametrize("name", ["a/../b", "", "b c"])
def test_a_name_that_is_no_folder_is_refused(name):
    with pytest.raises(ValueError, match="the name is that of a folder"):
        Study(name=name, settings=(setting(arms=("fp32", "tf32")),))


def test_settings_of_one_name_are_refused():
    one = setting(arms=("fp32", "tf32"))
    with pytest.raises(ValueError, match="each name once"):
        Study(name="x", settings=(one, one))


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("convergs", "Close: converges"),
        ("nowhere.module:STUDY", "cannot import"),
        ("mine.py", "name the study in it: mine.py:STUDY"),
        ("no/such/file.py:STUDY", "there is no file"),
        ("jprec.study.converges:HOT", "a Setting there.*Its studies: STUDY"),
        ("jprec.formats:STUDY", "holds no jprec.Study"),
    ],
)
def test_an_unknown_study_is_refused_with_what_is_close(reference, message):
    with pytest.raises(ValueError, match=message):
        study.find(reference)


def test_keys_belong_to_names_and_not_to_the_order_of_calls():
    draw = jax.jit(lambda seed: jax.random.key_data(key_for(seed, "w", "init")))
    first = draw(3)
    key_for(3, "another", "probe")
    np.testing.assert_array_equal(first, draw(3))
    np.testing.assert_array_equal(first, jax.random.key_data(key_for(3, "w", "init")))
    assert not np.array_equal(first, draw(4))
    assert not np.array_equal(first, jax.random.key_data(key_for(3, "w", "batches")))


def test_every_setting_of_converges_has_a_committed_margin_a_control_and_a_baseline():
    found = study.find("converges")
    for one in found.select(full=True):
        assert one.margin is not None
        assert one.margin > 0
        assert {"baseline", "control"} <= {a.role for a in one.arms}
