"""Tables in text files, honest and broken."""

from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_tune.config.errors import ConfigError, DataError
from grasp_tune.config.loader import experiment_from
from grasp_tune.data import Data, load_data


def load(**options: Any) -> Data:
    return load_data(experiment_from({"problem": {"dataset": options}}).problem.dataset)


def test_csv_takes_the_last_column_or_the_one_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("size, age,kind\n1,2,cat\n3,4.5,dog\n\n5,6,cat\n")
    data = load(name="csv", path=str(tmp_path / "a.csv"))
    assert data.x.tolist() == [[1, 2], [3, 4.5], [5, 6]]
    assert (data.y.tolist(), data.labels) == ([0, 1, 0], ("cat", "dog"))
    (tmp_path / "b.csv").write_text("y;a\n0.5;1\n2;3\n")
    data = load(name="csv", path=str(tmp_path / "b.csv"), target="y", delimiter=";")
    assert (data.x.tolist(), data.y.tolist()) == ([[1], [3]], [0.5, 2])
    assert data.y.dtype == torch.float32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 columns"),
        ("a,b\n", "has no rows"),
        ("a,b\n1,2,3\n", "row 2: got 3 columns, expected 2"),
        ("a,b\nnan,1\n2,0\n", "row 2: column 'a': got nan or inf"),
        ("a,b\n\n1,2\n\ninf,3\n", "row 5: column 'a': got nan or inf"),  # blank lines count
        ("a,b\n1,2\n\n3,\n", "row 4: the label is blank"),
        ('a,b\n"1,2\n', "cannot be read as a table .*; expected text in UTF-8, a header line"),
        ("a,b\n1,0\n2,NaN\n", "row 3: the label is blank"),
        ("1.5,2\n3,4\n", "its first line holds numbers, expected the names of the columns"),
        ("5.1,3.5,setosa\n4.9,3,setosa\n6,3,other\n", "its first line holds numbers, expected"),
        ("a,a,y\n1,2,3\n", "has the column 'a' twice, expected a name for each"),
        ("a,y\n1e300,1\n2,0\n", "row 2: column 'a': got '1e300', expected a number below 3e38"),
        ("a,y\n1,1e39\n2,0.5\n", "labels hold nan or inf, or more than 3e38"),
        ("# mine\na,b\n1,2\n", "has 1 columns, .*; its first line is '# mine'"),
    ],
)
def test_csv_that_makes_no_sense_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load(name="csv", path=str(tmp_path / "a.csv"))


def test_csv_words_are_refused_where_only_numbers_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\nx,2\n")
    with pytest.raises(
        DataError,
        match=r"row 2: column 'a': got 'x', expected a number; set .*encode: true, or leave",
    ):
        load(name="csv", path=str(tmp_path / "a.csv"), encode=False)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n,3\n")
    with pytest.raises(DataError, match=r"row 3: column 'a': got a blank, .*encode: true"):
        load(name="csv", path=str(tmp_path / "a.csv"), encode=False)


TITANIC = """\
name;age;fare;port;alive
Anna;22;7.25;S;no
Bert;;71.3;C;yes
Cora;26;;S;yes
Dave;35;53.1;;no
"""


def test_csv_as_people_have_it(tmp_path: Path) -> None:
    # Semicolons, words, blanks and raw scales: everything is settled, and told.
    (tmp_path / "a.csv").write_text(TITANIC)
    data = load(name="csv", path=str(tmp_path / "a.csv"), drop=["name"], standardize=False)
    # Age 22, 26, 35: mean 83 / 3. Fare 7.25, 71.3, 53.1: mean 43.883. Then C and S; no port: 0, 0.
    assert data.x[:, 0].tolist() == pytest.approx([22, 83 / 3, 26, 35])
    assert data.x[:, 1].tolist() == pytest.approx([7.25, 71.3, 131.65 / 3, 53.1])
    assert data.x[:, 2:].tolist() == [[0, 1], [1, 0], [0, 1], [0, 0]]
    assert data.labels == ("no", "yes")
    assert data.notes == (
        "Columns of words became one column of 0 and 1 for every word: port (2 words).",
        "Blanks were filled with the mean of their column: age (1 rows), fare (1 rows).",
    )
    (tmp_path / "t.csv").write_text("name;age;fare;port;alive\nEva;;8;Q;no\n")
    both = load(
        name="csv",
        path=str(tmp_path / "a.csv"),
        test_path=str(tmp_path / "t.csv"),
        drop=["name"],
        standardize=False,
    )
    # A blank gets the mean of the training rows; a word that they do not have is no word.
    assert both.x_test is not None
    assert both.x_test.flatten().tolist() == pytest.approx([83 / 3, 8, 0, 0])


def test_csv_scales_that_differ_are_standardized_and_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,kind,y\n1,1000,x,0\n3,5000,y,1\n5,3000,x,1\n")
    data = load(name="csv", path=str(tmp_path / "a.csv"))
    assert data.x[:, :2].mean(0).abs().max() < 1e-6
    assert data.x[:, :2].std(0, correction=0).tolist() == pytest.approx([1, 1])
    assert data.x[:, 2:].tolist() == [[1, 0], [0, 1], [1, 0]]  # words stay 0 and 1
    assert "standardize: false leaves them" in data.notes[-1]


def test_csv_columns_that_help_nobody_are_named_with_the_remedy(tmp_path: Path) -> None:
    rows = "".join(f"id{k},{k},{k % 2}\n" for k in range(150))
    (tmp_path / "a.csv").write_text("who,n,y\n" + rows)
    with pytest.raises(DataError, match=r"column 'who': got 150 different words .*drop: \[who\]"):
        load(name="csv", path=str(tmp_path / "a.csv"))
    (tmp_path / "a.csv").write_text("a,b,y\n,1,0\n,2,1\n")
    with pytest.raises(DataError, match=r"column 'a' is blank in every row; .*drop: \[a\]"):
        load(name="csv", path=str(tmp_path / "a.csv"))
    (tmp_path / "a.csv").write_text("a;y\n1;0\n")
    with pytest.raises(DataError, match=r"has 1 columns.*divided by ';': set .*delimiter"):
        load(name="csv", path=str(tmp_path / "a.csv"), delimiter=",")


def test_csv_a_word_among_numbers_is_named_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    for count in (30, 300):
        rows = "".join(f"{'old' if k == 20 else k},{k % 2}\n" for k in range(count))
        file.write_text("age,y\n" + rows)
        words = rf"column 'age': got 'old' among {count - 1} different numbers; leave the field b"
        with pytest.raises(DataError, match=words):
            load(name="csv", path=str(file))
    file.write_text("grade,y\n1,0\n2,1\n3,0\nA,1\n")  # few: they may be categories
    assert load(name="csv", path=str(file)).x.shape == (4, 4)


def test_csv_blanks_of_other_programs_are_blanks(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,y\nNaN,n/a,0\n3,x,1\n<NA>,x,1\n")
    assert load(name="csv", path=str(tmp_path / "a.csv")).x.tolist() == [[3, 0], [3, 1], [3, 1]]


def test_csv_any_character_may_divide_the_columns(tmp_path: Path) -> None:
    for mark in "\t|; ":
        (tmp_path / "a.csv").write_text(f"a{mark}b{mark}y\n1{mark}2{mark}0\n3{mark}4{mark}1\n")
        given = [{"delimiter": mark}] if mark == " " else [{"delimiter": mark}, {}]
        for options in given:
            data = load(name="csv", path=str(tmp_path / "a.csv"), **options)
            assert data.x.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ConfigError, match=r"delimiter: got 'ab', expected one character"):
        load(name="csv", path=str(tmp_path / "a.csv"), delimiter="ab")


def test_csv_columns_without_a_name_have_a_number(tmp_path: Path) -> None:
    rows = "".join(f"{k},{k % 3},{k % 2},-\n" for k in range(9))
    (tmp_path / "a.csv").write_text(",a,y,remark\n" + rows)  # as pandas writes its index
    data = load(name="csv", path=str(tmp_path / "a.csv"), drop=["remark"])
    assert data.notes == (
        "Column column 1 counts the rows; problem.dataset.drop: [column 1] leaves it out.",
    )
    data = load(name="csv", path=str(tmp_path / "a.csv"), drop=["remark", "column 1"])
    assert data.x.flatten().tolist() == [0, 1, 2] * 3  # the label is the last column that is left
    (tmp_path / "a.csv").write_text("0,1,2\n5,6,0\n7,8,1\n")  # and columns without names
    assert load(name="csv", path=str(tmp_path / "a.csv")).x.tolist() == [[5, 6], [7, 8]]


def test_csv_long_numbers_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,y\n" + "".join(f"{k},{10**18 + k % 3}\n" for k in range(9)))
    data = load(name="csv", path=str(tmp_path / "a.csv"))
    assert data.labels == tuple(str(10**18 + k) for k in range(3))


def test_csv_prices_are_numbers_to_predict_and_grades_are_classes(tmp_path: Path) -> None:
    rows = "".join(f"{k % 7},{1000 * k + 500}\n" for k in range(60))
    (tmp_path / "a.csv").write_text("rooms,price\n" + rows)
    data = load(name="csv", path=str(tmp_path / "a.csv"))
    assert data.labels is None
    assert data.notes == (
        "Labels are 60 different whole numbers and are predicted as numbers; "
        "problem.dataset.task: classification takes them as classes.",
    )
    data = load(name="csv", path=str(tmp_path / "a.csv"), task="classification")
    assert data.labels is not None and len(data.labels) == 60
    data = load(name="csv", path=str(tmp_path / "a.csv"), target="rooms")
    assert data.labels == tuple("0123456") and "Labels" not in str(data.notes)


def test_csv_decimal_commas_are_numbers_when_asked_and_named_when_not(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("size;day;price\n1,5;12.05.2020;1.200,50\n-22,25;13.05.2020;900\n;x;1,0\n")
    words = r"column 'size': got '1,5', a number with a comma; set problem.dataset.decimal"
    with pytest.raises(DataError, match=words):
        load(name="csv", path=str(file))
    data = load(name="csv", path=str(file), decimal=",", standardize=False, drop=["day"])
    # A blank becomes the mean: (1.5 - 22.25) / 2.
    assert data.x.flatten().tolist() == [1.5, -22.25, -10.375]
    assert data.y.tolist() == [1200.5, 900.0, 1.0] and data.labels is None


def test_csv_labels_that_are_no_classes_are_told(tmp_path: Path) -> None:
    rows = "".join(f"{k},€{k + 1000:,}.50\n" for k in range(150))
    (tmp_path / "a.csv").write_text("a,price\n" + rows.replace("€1,", "€1 "))
    words = r"column 'price': got 150 different labels such as '€1 000.50' in 150 rows, .*currency"
    with pytest.raises(DataError, match=words):
        load(name="csv", path=str(tmp_path / "a.csv"))


def test_csv_row_numbers_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "id,a,y\n" + "".join(f"{k},{k % 3},{k % 2}\n" for k in range(1, 9))
    )
    data = load(name="csv", path=str(tmp_path / "a.csv"))
    assert data.notes == ("Column id counts the rows; problem.dataset.drop: [id] leaves it out.",)


def test_csv_columns_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,0\n2,1\n")
    (tmp_path / "t.csv").write_text("c,b\n1,0\n")
    with pytest.raises(
        DataError, match=r"no column 'price', only a, b; set problem.dataset.target"
    ):
        load(name="csv", path=str(tmp_path / "a.csv"), target="price")
    with pytest.raises(DataError, match=r"its columns differ"):
        load(name="csv", path=str(tmp_path / "a.csv"), test_path=str(tmp_path / "t.csv"))
    (tmp_path / "t.csv").write_text("a,c\n1,0\n")
    with pytest.raises(DataError, match=r"its columns differ"):
        load(name="csv", path=str(tmp_path / "a.csv"), test_path=str(tmp_path / "t.csv"))
    (tmp_path / "t.csv").write_text("b,a\n1,9\n")
    data = load(name="csv", path=str(tmp_path / "a.csv"), test_path=str(tmp_path / "t.csv"))
    assert data.x_test is not None
    assert data.x_test.tolist() == [[9]]
    (tmp_path / "a.csv").write_bytes(b"a,b\n\xff,1\n")
    with pytest.raises(DataError, match=r"cannot be read as a table"):
        load(name="csv", path=str(tmp_path / "a.csv"))


def test_csv_as_spreadsheets_write_it(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    # The line for the spreadsheet itself, empty rows and a comma too many at each end.
    file.write_text("sep=;\na;b;y;\n1;2;0;\n;;;\n3;4;1;\n;;;\n")
    assert load(name="csv", path=str(file)).x.tolist() == [[1, 2], [3, 4]]
    file.write_text("sep=;\na;y\n\n1;0\ninf;1\n")
    with pytest.raises(DataError, match="row 5: column 'a': got nan or inf"):
        load(name="csv", path=str(file))
    file.write_text("a\tb\ty\n1\t2\t0\n3\t4\t1\n", encoding="utf-16")
    assert load(name="csv", path=str(file)).x.tolist() == [[1, 2], [3, 4]]
    file.write_text('a, b,  y\n1, "x, 1", 0\n2, "z", 1\n')  # with spaces after commas
    assert load(name="csv", path=str(file)).x.tolist() == [[1, 1, 0], [2, 0, 1]]
    file.write_text("a  b   y\n1    2   0\n3  4 1\n")
    assert load(name="csv", path=str(file), delimiter=" ").x.tolist() == [[1, 2], [3, 4]]


def test_csv_of_another_encoding_is_read_when_it_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("größe,y\n1,ä\n2,ö\n", encoding="cp1252")
    with pytest.raises(DataError, match=r"other texts need problem.dataset.encoding"):
        load(name="csv", path=str(file))
    assert load(name="csv", path=str(file), encoding="cp1252").labels == ("ä", "ö")
    with pytest.raises(ConfigError, match=r"encoding: got 'foo', expected an encoding such as"):
        load(name="csv", path=str(file), encoding="foo")


def test_csv_words_of_databases_for_nothing_are_blanks_but_may_be_labels(tmp_path: Path) -> None:
    blanks = ("None", r"\N")
    rows = "".join(f"{k if k % 4 else blanks[k % 8 // 4]},{k},{k % 2}\n" for k in range(40))
    (tmp_path / "a.csv").write_text("a,b,y\n" + rows)
    assert load(name="csv", path=str(tmp_path / "a.csv")).x.shape == (40, 2)
    (tmp_path / "a.csv").write_text("a,defect\n1,None\n2,crack\n")
    assert load(name="csv", path=str(tmp_path / "a.csv")).labels == ("None", "crack")


@pytest.mark.parametrize("cell", ["{}%", "id_{}", "2024_{}", "0x{}", "name {}"])
def test_csv_words_that_do_not_come_again_are_no_categories(tmp_path: Path, cell: str) -> None:
    rows = "".join(f"{cell.format(k)},{k % 3},{k % 2}\n" for k in range(40))
    (tmp_path / "a.csv").write_text("a,b,y\n" + rows)
    words = r"column 'a': got 40 different words such as .* in 40 rows, expected numbers without"
    with pytest.raises(DataError, match=words):
        load(name="csv", path=str(tmp_path / "a.csv"))


def test_csv_marks_between_thousands_are_told(tmp_path: Path) -> None:
    for cell in ("1,{}00", "1,{}00.50"):
        rows = "".join(f'"{cell.format(k)}",{k % 2}\n' for k in range(9))
        (tmp_path / "a.csv").write_text("a,y\n" + rows)
        with pytest.raises(DataError, match=r"a number with a comma; .* marks between thousands"):
            load(name="csv", path=str(tmp_path / "a.csv"))


def test_csv_many_whole_numbers_as_classes_are_told(tmp_path: Path) -> None:
    rows = "".join(f"{k % 7},{20 + k % 60}\n" for k in range(600))
    (tmp_path / "a.csv").write_text("visits,age\n" + rows)
    data = load(name="csv", path=str(tmp_path / "a.csv"))
    assert data.labels is not None and data.notes == (
        "Labels are 60 different whole numbers and are taken as classes; "
        "problem.dataset.task: regression predicts them as numbers.",
    )


def test_csv_a_class_of_a_single_row_does_not_stop_a_split(tmp_path: Path) -> None:
    for rare in range(20):
        rows = "".join(
            f"{k},{'fraud' if k == rare else 'ok' if k % 2 else 'no'}\n" for k in range(20)
        )
        (tmp_path / "a.csv").write_text("a,y\n" + rows)
        data = load(name="csv", path=str(tmp_path / "a.csv"), test_share=0.3)
        assert data.labels == ("fraud", "no", "ok") and len(data.x) == 14
