"""What is written on a study is checked when it is read."""

import optuna
import pytest

from grasp_tune.core.errors import InputError
from grasp_tune.core.records import fingerprint
from grasp_tune.executors.study import SETTING, spec_on


def test_a_damaged_value_is_named() -> None:
    study = optuna.create_study(study_name="broken")
    study.set_user_attr(SETTING, '{"half": ')
    with pytest.raises(InputError, match="a spec has exactly the keys"):
        spec_on(study)


def test_a_study_of_an_earlier_version_is_refused_with_a_sentence() -> None:
    study = optuna.create_study(study_name="old")
    study.set_user_attr(f"{SETTING}:0", "{}")
    with pytest.raises(InputError, match="study 'old': got a sweep that version"):
        spec_on(study)


def test_fingerprints_tell_values_apart_and_not_their_order() -> None:
    assert fingerprint({"a": 1, "b": 2.5}) == fingerprint({"b": 2.5, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
