"""What is written on a study comes back, however long it is."""

import optuna
import pytest

from grasp_tune.core.errors import InputError
from grasp_tune.core.records import fingerprint
from grasp_tune.executors.study import PIECE, set_study_json, study_json


def test_long_values_are_cut_and_joined() -> None:
    study = optuna.create_study()
    long = {"numbers": list(range(3 * PIECE // 5)), "word": "ü"}
    set_study_json(study, "grasp:test", long)
    assert study_json(study, "grasp:test") == long
    pieces = [len(str(value)) for key, value in study.user_attrs.items() if "grasp:test" in key]
    assert len(pieces) > 2
    assert max(pieces) <= PIECE
    set_study_json(study, "grasp:test", {"short": 1})  # in the place of a longer one
    assert study_json(study, "grasp:test") == {"short": 1}
    assert study_json(study, "grasp:other") is None


def test_a_damaged_value_is_named() -> None:
    study = optuna.create_study(study_name="broken")
    study.set_user_attr("grasp:test:0", '{"half": ')
    with pytest.raises(InputError, match="study broken, grasp:test: damaged"):
        study_json(study, "grasp:test")


def test_fingerprints_tell_values_apart_and_not_their_order() -> None:
    assert fingerprint({"a": 1, "b": 2.5}) == fingerprint({"b": 2.5, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
