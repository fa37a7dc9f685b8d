"""The line-based formats: every layout read right, every fault refused with its line."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagformer.data import read_dataset

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TS = "@problemName p\n@timeStamps false\n@univariate true\n@classLabel true a b\n@data\n"
ARFF = "@relation r\n@attribute t0 numeric\n@attribute t1 real\n@attribute target {1,-1}\n@data\n"
RELATIONAL = (
    "@relation r\n@attribute id relational\n@attribute t0 numeric\n@attribute t1 numeric\n"
    "@end id\n@attribute activity {'a b',c}\n@data\n"
)


def read(tmp_path, name, text, **options):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_dataset(path, **options)


def contents(found):
    """Values with None for what is masked, and labels, as plain lists."""
    values = [
        [[v if real else None for v, real in zip(row, mask, strict=True)] for row in series]
        for series, mask in zip(found.values.tolist(), found.mask.tolist(), strict=True)
    ]
    return values, None if found.labels is None else found.labels.tolist()


READ = {
    "ts": ("x.ts", TS + "1,2.5:a\n3,-4e-2:b\n", [[[1, 2.5]], [[3, -0.04]]], ["a", "b"]),
    "ts, no final newline": ("x.ts", TS + "1,2:a", [[[1, 2]]], ["a"]),
    "ts, missing": (
        "x.ts",
        TS + "1,?,3:a\nNaN,2,nan:b\n",
        [[[1, None, 3]], [[None, 2, None]]],
        "ab",
    ),
    "ts, unequal lengths": ("x.ts", TS + "1,2:a\n3:b\n", [[[1, 2]], [[3, None]]], ["a", "b"]),
    "ts, more channels than the header says": (
        "x.ts",
        TS + "1,2:3,4:a\n5:6:b\n",
        [[[1, 2], [3, 4]], [[5, None], [6, None]]],
        ["a", "b"],
    ),
    "ts, tags of any case": ("x.ts", "@CLASSLABEL TRUE A b\n@DATA\n1:A\n", [[[1]]], ["A"]),
    "ts, numeric labels": (
        "x.ts",
        "@classLabel true -1 1\n@data\n1:-1\n2:1.0\n",
        [[[1]], [[2]]],
        [-1, 1],
    ),
    "ts, no labels": ("x.ts", "@classLabel false\n@data\n1,2:3,4\n", [[[1, 2], [3, 4]]], None),
    "ts, suffix of any case": ("x.TS", TS + "1:a\n", [[[1]]], ["a"]),
    "tsv": ("x.tsv", "-1\t1.5\t2\n1\t3\t4\n", [[[1.5, 2]], [[3, 4]]], [-1, 1]),
    "tsv, label written as a float": ("x.tsv", " 1.0000000e+00\t2\n", [[[2]]], [1]),
    "tsv, label text": ("x.tsv", "Bad\t1\nok\t2\n", [[[1]], [[2]]], ["Bad", "ok"]),
    "tsv, label code": ("x.tsv", "01\t1\n1\t2\n", [[[1]], [[2]]], ["01", "1"]),
    "tsv, NaN inside and at the end": (
        "x.tsv",
        "1\t1\tNaN\t3\n2\t4\tNaN\tNaN\n",
        [[[1, None, 3]], [[4, None, None]]],
        [1, 2],
    ),
    "tsv, empty fields at the end": (
        "x.tsv",
        "1\t1\t2\t3\n2\t4\t\t\n",
        [[[1, 2, 3]], [[4, None, None]]],
        [1, 2],
    ),
    "tsv, trailing tabs": ("x.tsv", "1\t1\t2\t\n2\t3\t4\t \n", [[[1, 2]], [[3, 4]]], [1, 2]),
    "csv wide": ("x.csv", "t0,t1,Label\n1,2,a\n3,4,b\n", [[[1, 2]], [[3, 4]]], ["a", "b"]),
    "csv wide, empty cell": ("x.csv", "y,t0,t1\n7,1,2\n8,,4\n", [[[1, 2]], [[None, 4]]], [7, 8]),
    "csv of pandas, index and all": (
        "x.csv",
        ",0,1,target\n0,1.5,2,a\n1,3,4,b\n",
        [[[1.5, 2]], [[3, 4]]],
        ["a", "b"],
    ),
    "csv, label the only text": ("x.csv", "t0,fault\n1,a\n2,b\n", [[[1]], [[2]]], ["a", "b"]),
    "csv, no header, label text": ("x.csv", "a,1,2\nb,3,4\n", [[[1, 2]], [[3, 4]]], ["a", "b"]),
    "csv, no header, label 'y'": ("x.csv", "y,1,3\nn,3,4\n", [[[1, 3]], [[3, 4]]], ["y", "n"]),
    "csv, counts as header": ("x.csv", "0,1,2,y\n3,4,5,a\n", [[[3, 4, 5]]], ["a"]),
    "csv, times as header": ("x.csv", "class,0.0,0.5\na,3,4\n", [[[3, 4]]], ["a"]),
    "csv, no labels": ("x.csv", "t0,t1\n1,2\n3,4\n", [[[1, 2]], [[3, 4]]], None),
    "csv, semicolons": ("x.csv", "label;t0;t1\na;1;2\n", [[[1, 2]]], ["a"]),
    "csv, quotes": ("x.csv", '"label", "t0"\n"a, b", "1"\n', [[[1]]], ["a, b"]),
    "csv long, rows in any order": (
        "x.csv",
        "time,id,u,v,class\n1,B,10,20,k\n0,A,1,2,m\n0,B,30,40,k\n",
        [[[30, 10], [40, 20]], [[1, None], [2, None]]],
        ["k", "m"],
    ),
    "csv long, dates": (
        "x.csv",
        "series,timestamp,v\ns,2024-03-31T02:30:00,2\ns,2024-03-31T01:30:00+00:00,1\n",
        [[[1, 2]]],
        None,
    ),
    "csv long, times beyond float64": (
        "x.csv",
        "id,time,v\ns,1700000000000000001,2\ns,1700000000000000000,1\n",
        [[[1, 2]]],
        None,
    ),
    "csv recording, y a channel": (
        "x.csv",
        "time,x,y,z\n0,1,2,3\n1,4,5,6\n",
        [[[1, 4], [2, 5], [3, 6]]],
        None,
    ),
    "csv recording, one column": ("x.csv", "v\n1\n2\n3\n", [[[1, 2, 3]]], None),
    "csv recording, one column, no header": ("x.csv", "1\n2\n3\n", [[[1, 2, 3]]], None),
    "arff": ("x.arff", ARFF + "1,2,1\n3,?,-1\n", [[[1, 2]], [[3, None]]], [1, -1]),
    "arff, quotes": ("x.arff", ARFF + "'1', \"2\" ,'-1'\n", [[[1, 2]]], [-1]),
    "arff, class first": (
        "x.arff",
        "@RELATION r\n@ATTRIBUTE c {p,q}\n@ATTRIBUTE 't 0' NUMERIC\n@DATA\nq,1\n",
        [[[1]]],
        ["q"],
    ),
    "arff, numeric class": (
        "x.arff",
        "@relation r\n@attribute class numeric\n@attribute a real\n@data\n2,1\n",
        [[[1]]],
        [2],
    ),
    "arff, no class": ("x.arff", "@relation r\n@attribute a real\n@data\n1\n", [[[1]]], None),
    "arff relational": (
        "x.arff",
        RELATIONAL + "'1,2\\n3,4','a b'\n\"5,6\\n7,?\",c\n",
        [[[1, 2], [3, 4]], [[5, None], [7, None]]],
        ["a b", "c"],
    ),
}


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize(("name", "text", "values", "labels"), READ.values(), ids=READ)
def test_read_right(tmp_path, name, text, values, labels, newline, bom):
    found = read(tmp_path, name, bom + text.replace("\n", newline))
    assert contents(found) == (values, list(labels) if labels is not None else None)
    assert found.source == str(tmp_path / name)


@pytest.mark.parametrize(("name", "text", "values", "labels"), READ.values(), ids=READ)
def test_comments_and_blank_lines_are_skipped(tmp_path, name, text, values, labels):
    sign = b"%" if name.endswith("arff") else b"#"
    # A comment may be in any encoding: archives credit authors in Latin-1.
    between = b"\n\n  \t\n" + sign + b" by M\xfcller, 1:2\n  " + sign + b"\n"
    found = read(tmp_path, name, between.join(text.encode().splitlines()))
    assert contents(found) == (values, list(labels) if labels is not None else None)


REFUSED = {
    "ts, not a number": ("x.ts", TS + "1,2:a\n1,x:b\n", "line 7: value 2 is not a number: 'x'"),
    "ts, empty value": ("x.ts", TS + "1,,2:a\n", "line 6: value 2 is not a number: ''"),
    "ts, infinity": ("x.ts", TS + "1,-inf:a\n", "line 6: value 2 is infinite"),
    "ts, overflow": ("x.ts", TS + "1e999:a\n", "line 6: value 1 is infinite: '1e999'"),
    "ts, no label": ("x.ts", TS + "1,2\n", "line 6: no label"),
    "ts, label missing": ("x.ts", TS + "1,2:?\n", "line 6: the label is missing"),
    "ts, label torn": ("x.ts", TS.replace("a b", "aa b") + "1,2:a\n", "line 6: label 'a' is not"),
    "ts, channels differ": ("x.ts", TS + "1:2:a\n1:a\n", "line 7: 1 channel.*line 6 has 2"),
    "ts, ragged channels": ("x.ts", TS + "1,2:3:a\n", "line 6: channels of lengths 2, 1"),
    "ts, all missing": ("x.ts", TS + "1:a\n?,?:b\n", "line 7: Series 1 has no real"),
    "ts, no header": ("x.ts", "1,2:a\n", "line 1: a header line must start with @"),
    "ts, no data line": ("x.ts", "@problemName x\n", "x.ts: no @data line"),
    "ts, no data": ("x.ts", TS, "x.ts: no series after @data"),
    "ts, time stamps": ("x.ts", "@timeStamps true\n@data\n(0,1):a\n", "line 1: time stamps"),
    "ts, underscore": ("x.ts", TS + "1_0:a\n", "line 6: value 1 is not a number: '1_0'"),
    "ts, digits of another script": ("x.ts", TS + "١:a\n", "line 6: value 1 is not a number"),
    "ts, NUL": ("x.ts", TS + "1\0:a\n", "line 6: holds a NUL"),
    "ts, UTF-16": ("x.ts", (TS + "1:a").encode("utf-16"), "line 1: not valid UTF-8"),
    "ts, not UTF-8": ("x.ts", TS.encode() + b"\xfc:a\n", "line 6: not valid UTF-8"),
    "tsv, short row": ("x.tsv", "1\t1\t2\n1\t1\n", "line 2: 1 value.*line 1 has 2"),
    "tsv, long row": ("x.tsv", "# c\n1\t1\n1\t1\t2\n", "line 2: 1 value.*line 3 has 2"),
    "tsv, header": ("x.tsv", "label\tt0\n1\t2\n", "line 1: value 1 is not a number: 't0'"),
    "tsv, spaces": ("x.tsv", "1 2 3\n", "line 1: one field alone"),
    "tsv, label missing": ("x.tsv", "1\t2\nNaN\t2\n", "line 2: the label is missing"),
    "tsv, empty": ("x.tsv", "\n\n", "x.tsv: no series"),
    "csv, short row": ("x.csv", "label,t0\na,1\nb\n", "line 3: 1 cell.*first row has 2"),
    "csv, long row": ("x.csv", "label,t0\na,1\nb,1,2\n", "line 3: 3 cell.*first row has 2"),
    "csv, not a number": ("x.csv", "label,t0\na,1\nb,x\n", "line 3: value 1 is not a number"),
    "csv, decimal comma": ("x.csv", "label;t0\na;1,5\n", "line 2: value 1 is not a number: '1,5'"),
    "csv, label missing": ("x.csv", "label,t0\na,1\n,2\n", "line 3: the label is missing"),
    "csv, open quote": ("x.csv", 'label,t0\na,"1\nb,2\n', "line 3: unexpected end of data"),
    "csv, huge cell": ("x.csv", "label,t0\na," + "1" * 200_000, "line 2: field larger than"),
    "csv, numbers alone": ("x.csv", "1,0.5\n2,0.7\n", "line 1: no header: is a column the label"),
    "csv, header or a count": ("x.csv", "0,1,2\n5,6,7\n", "line 1: a header of column numbers"),
    "csv, header or a labelled count": (
        "x.csv",
        "u,1,2,3\nv,5,6,7\n",
        "line 1: a header of column",
    ),
    "csv, two labels": ("x.csv", "label,class,t0\n1,2,3\n", "line 1: columns 1, 2 could each be"),
    "csv, two texts": ("x.csv", "u,v,t0\na,b,3\n", "line 1: columns 1, 2 could each be the label"),
    "csv, two ids": ("x.csv", "id,name,t0\n1,2,3\n", "line 1: columns 1, 2 could each be the id"),
    "csv, no samples": ("x.csv", "id,label\n1,2\n", "line 1: no column of samples"),
    "csv, header alone": ("x.csv", "label,t0\n", "x.csv: a header, but no rows"),
    "csv, empty": ("x.csv", "", "x.csv: no rows"),
    "csv, rows or steps": ("x.csv", "u,v\n" + "1,2\n" * 20, "line 2: 20 rows of 2 columns"),
    "csv, long without time": ("x.csv", "id,v\na,1\nb,2\na,3\n", "line 4: id 'a' is there twice"),
    "csv, a time twice": ("x.csv", "id,t,v\na,1,1\na,0,2\na,1,3\n", "line 4: time 1 of series 'a'"),
    "csv, no time": ("x.csv", "id,t,v\na,later,1\n", "line 2: time 'later' is neither"),
    "csv, no id": ("x.csv", "id,t,v\n,1,1\n", "line 2: the id is missing"),
    "csv, label changes": ("x.csv", "id,t,v,y\na,0,1,p\na,1,2,q\n", "line 3: label 'q' of series"),
    "csv, channels as rows": ("x.csv", "id,dim,time,v\na,0,0,1\n", "line 1: column 'dim'"),
    "arff, short row": ("x.arff", ARFF + "1,1\n", r"line 6: 2 value\(s\) for 3 attributes"),
    "arff, label undeclared": ("x.arff", ARFF + "1,2,3\n", "line 6: label '3' is not declared"),
    "arff, label missing": ("x.arff", ARFF + "1,2,?\n", "line 6: the label is missing"),
    "arff, not a number": ("x.arff", ARFF + "1,x,1\n", "line 6: value 2 is not a number"),
    "arff, sparse": ("x.arff", ARFF + "{0 1, 2 1}\n", "line 6: sparse"),
    "arff, date": (
        "x.arff",
        "@relation r\n@attribute d date\n@data\n",
        "line 2: attributes of type",
    ),
    "arff, two classes": (
        "x.arff",
        "@relation r\n@attribute a {1,2}\n@attribute b {1,2}\n@data\n1,1\n",
        "2 attributes could each be the class",
    ),
    "arff, open quote": ("x.arff", RELATIONAL + "'1,2\\n3,4,c\n", "line 8: unbalanced quotes"),
    "arff, ragged": ("x.arff", RELATIONAL + "'1,2\\n3',c\n", "line 8: channels of lengths 2, 1"),
    "arff, channels differ": (
        "x.arff",
        RELATIONAL + "'1\\n3',c\n'1',c\n",
        "line 9: 1 channel.*line 8 has 2",
    ),
    "arff, no data": ("x.arff", ARFF, "no series after @data"),
    "arff, no data line": ("x.arff", "@relation r\n", "no @data line"),
    "arff, header": ("x.arff", "@relation r\nhello\n", "line 2: expected @relation"),
    "arff, no name": ("x.arff", "@attribute\n", "line 1: expected @attribute NAME TYPE"),
    "unknown suffix": ("x.xlsx", "", "unknown suffix '.xlsx'; read are .ts"),
}


@pytest.mark.parametrize(("name", "text", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_with_file_and_line(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, name, text)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_missing_value_is_refused_with_its_line_when_asked(tmp_path):
    with pytest.raises(ValueError, match=r"x\.ts, line 7: Input X contains NaN: 1 value"):
        read(tmp_path, "x.ts", TS + "1,2:a\n1,?,3:b\n", missing="error")
    filled = read(tmp_path, "x.ts", TS + "1,?,3:a\n", missing="interpolate")
    assert contents(filled)[0] == [[[1, 2, 3]]]


def test_no_such_file(tmp_path):
    with pytest.raises(ValueError, match=r"x\.ts: no such file"):
        read_dataset(tmp_path / "x.ts")


def test_label_names_the_column(tmp_path):
    table = "rpm,fault,label\n1,2,3\n4,5,6\n"
    # The column named label would give the answer away: it is left out.
    assert contents(read(tmp_path, "x.csv", table, label="fault")) == ([[[1]], [[4]]], [2, 5])
    assert contents(read(tmp_path, "x.csv", table, label=0)) == ([[[2]], [[5]]], [1, 4])
    bare = "1,0.5,2\n2,0.6,3\n"
    assert contents(read(tmp_path, "x.csv", bare, label=0))[1] == [1, 2]
    assert contents(read(tmp_path, "x.csv", bare, label=-1))[1] == [2, 3]
    for label, message in ((3, "there are 3 columns"), ("nose", "no column is named 'nose'")):
        with pytest.raises(ValueError, match=message):
            read(tmp_path, "x.csv", table, label=label)
    with pytest.raises(ValueError, match=r"label= is for \.csv and \.parquet alone"):
        read(tmp_path, "x.ts", TS + "1:a\n", label="fault")


def test_names(tmp_path):
    assert read(tmp_path, "x.csv", "name,label,t0\np,a,1\nq,b,2\n").names == ("p", "q")
    assert read(tmp_path, "x.csv", "id,time,v\np,0,1\nq,0,2\n").names == ("p", "q")
    assert read(tmp_path, "pump.csv", "time,v\n0,1\n1,2\n").names == ("pump",)
    assert read(tmp_path, "x.ts", TS + "1:a\n2:b\n").names == ("0", "1")


collections = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(2, 5)).flatmap(
    lambda shape: st.tuples(
        st.lists(
            st.lists(
                st.lists(FLOATS, min_size=shape[2], max_size=shape[2]),
                min_size=shape[1],
                max_size=shape[1],
            ),
            min_size=shape[0],
            max_size=shape[0],
        ),
        st.lists(st.sampled_from(["a", "B c", "-1"]), min_size=shape[0], max_size=shape[0]),
    )
)


def written(kind, X, y):
    """The file text of series X (n, C, L) with labels y; repr gives the shortest exact float."""
    rows = [[",".join(map(repr, channel)) for channel in series] for series in X]
    steps = range(len(X[0][0]))
    if kind == "ts":
        return "@data\n" + "".join(
            ":".join([*r, label]) + "\n" for r, label in zip(rows, y, strict=True)
        )
    if kind == "tsv":
        return "".join(
            "\t".join([label, *map(repr, s[0])]) + "\n" for s, label in zip(X, y, strict=True)
        )
    if kind == "wide.csv":
        return f"label,{','.join(f't{t}' for t in steps)}\n" + "".join(
            f"{label},{r[0]}\n" for r, label in zip(rows, y, strict=True)
        )
    if kind == "long.csv":
        return (
            "id,time,label,"
            + ",".join(f"c{c}" for c in range(len(X[0])))
            + "\n"
            + "".join(
                f"{i},{t},{y[i]},{','.join(repr(channel[t]) for channel in X[i])}\n"
                for i in range(len(X))
                for t in steps
            )
        )
    classes = ",".join(f"'{label}'" for label in sorted(set(y)))
    header = "@relation r\n@attribute s relational\n@attribute t0 numeric\n@end s\n"
    return f"{header}@attribute class {{{classes}}}\n@data\n" + "".join(
        "'" + "\\n".join(r) + f"','{label}'\n" for r, label in zip(rows, y, strict=True)
    )


@pytest.mark.parametrize("kind", ["ts", "tsv", "wide.csv", "long.csv", "arff"])
@given(collection=collections)
def test_what_is_written_is_read_to_the_bit(kind, tmp_path_factory, collection):
    X, y = collection
    if kind in ("tsv", "wide.csv"):
        X = [series[:1] for series in X]
    found = read(tmp_path_factory.mktemp("round"), f"x.{kind}", written(kind, X, y))
    assert found.mask.all()
    # json tells -0.0 from 0.0, as == does not.
    assert json.dumps(found.values.tolist()) == json.dumps(X)
    assert found.labels.tolist() == ([-1] * len(y) if set(y) == {"-1"} else y)


def test_a_file_of_ten_thousand_lines_is_read_whole(tmp_path):
    X = np.random.default_rng(0).normal(size=(10_000, 20))
    text = "\n".join("1\t" + "\t".join(map(repr, row)) for row in X.tolist())
    np.testing.assert_array_equal(read(tmp_path, "x.tsv", text).values[:, 0], X)
