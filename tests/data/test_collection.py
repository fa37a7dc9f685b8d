"""The validator: every accepted shape of input, and one clear line for every refused one."""

import copy
import pickle
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from lagformer.data import Collection

NAN, INF = float("nan"), float("inf")
from_arrays = Collection.from_arrays


@pytest.mark.parametrize(
    "X",
    [
        [[1, 2, 3], [4, 5, 6]],
        ((1, 2, 3), (4, 5, 6)),
        np.array([[1, 2, 3], [4, 5, 6]], dtype=np.int16),
        np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32),
        np.array([[1, 2, 3], [4, 5, 6]], dtype=object),
        np.array([[[1, 2, 3]], [[4, 5, 6]]]),
        np.asfortranarray([[1.0, 2, 3], [4, 5, 6]]),
        [np.array([1, 2, 3]), [4.0, 5, 6]],
        [np.array([[1, 2, 3]]), [[4.0, 5, 6]]],
        pd.DataFrame([[1, 2, 3], [4, 5, 6]]),
        pd.DataFrame([[1, 2, 3], [4, 5, 6]]).astype("Float64"),
        np.ma.array([[1, 2, 3], [4, 5, 6]]),
    ],
)
def test_every_container_gives_the_same_collection(X):
    found = from_arrays(X)
    np.testing.assert_array_equal(found.values, [[[1.0, 2, 3]], [[4, 5, 6]]])
    assert found.values.dtype == np.float64
    assert found.mask.all()
    assert found.mask.shape == (2, 3)
    assert found.labels is None
    assert found.names == ("0", "1")


@pytest.mark.parametrize(
    "X",
    [
        [[1, 2, 3], [4, 5]],
        [np.array([[1, 2, 3]]), np.array([[4, 5]])],
        np.array([[1, 2, 3], [4, 5, NAN]]),
        [[1, 2, 3, NAN], [4, 5, NAN]],
        [[1, 2, 3], [4, 5, None]],
        pd.DataFrame([[1, 2, 3], [4, 5, None]]).astype("Float64"),
        np.ma.array([[1, 2, 3], [4, 5, 9]], mask=[[0, 0, 0], [0, 0, 1]]),
        np.array([np.array([1, 2, 3]), np.array([4, 5])], dtype=object),
    ],
)
def test_lists_and_trailing_nan_are_series_of_unequal_length(X):
    found = from_arrays(X)
    np.testing.assert_array_equal(found.values[:, 0], [[1, 2, 3], [4, 5, 0]])
    np.testing.assert_array_equal(found.mask, [[1, 1, 1], [1, 1, 0]])
    np.testing.assert_array_equal(found.lengths, [3, 2])


@given(
    st.integers(1, 3).flatmap(
        lambda channels: st.lists(
            st.integers(1, 6).flatmap(
                lambda length: st.lists(
                    st.lists(
                        st.floats(allow_nan=False, allow_infinity=False),
                        min_size=length,
                        max_size=length,
                    ),
                    min_size=channels,
                    max_size=channels,
                )
            ),
            min_size=1,
            max_size=5,
        )
    )
)
def test_any_list_comes_back_to_the_bit(series):
    if len(series[0]) > 1:  # several channels of one step look transposed
        series = [[channel * 2 for channel in s] for s in series]
    found = from_arrays([np.array(s) for s in series])
    for i, s in enumerate(series):
        length = len(s[0])
        assert found.lengths[i] == length
        assert found.values[i, :, :length].tolist() == s
        assert not found.values[i, :, length:].any()
        assert found.mask[i].tolist() == [t < length for t in range(found.mask.shape[1])]


def test_the_input_is_neither_modified_nor_shared():
    X = np.array([[1.0, NAN, 3.0, NAN], [4.0, 5.0, 6.0, 7.0]])
    before = X.copy()
    from_arrays(X, missing="interpolate")
    from_arrays(X, missing="mask")
    np.testing.assert_array_equal(X, before)
    whole, y = np.ones((2, 3)), np.array([0, 1])
    found = from_arrays(whole, y)
    whole[:], y[:] = 9, 9
    assert (found.values == 1).all()
    assert found.labels.tolist() == [0, 1]


def test_missing_values_follow_the_policy():
    X = np.array([[[1, NAN, 3, 4, NAN], [5, 6, NAN, 8, NAN]]])
    with pytest.raises(ValueError, match=r"NaN: 2 value.* series 0, channel 0, time 1\."):
        from_arrays(X)
    masked = from_arrays(X, missing="mask")
    np.testing.assert_array_equal(masked.values, [[[1, 0, 0, 4], [5, 0, 0, 8]]])
    np.testing.assert_array_equal(masked.mask, [[1, 0, 0, 1]])
    assert masked.lengths.tolist() == [4]
    filled = from_arrays(X, missing="interpolate")
    np.testing.assert_array_equal(filled.values, [[[1, 2, 3, 4], [5, 6, 7, 8]]])
    assert filled.mask.all()
    ends = from_arrays([[[NAN, 2, 3], [4, 5, NAN]]], missing="interpolate")
    np.testing.assert_array_equal(ends.values, [[[2, 2, 3], [4, 5, 5]]])
    with pytest.raises(ValueError, match="missing must be one of"):
        from_arrays(X, missing="drop")


@pytest.mark.parametrize("missing", ["error", "mask", "interpolate"])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_infinity_is_refused_under_every_policy(missing, where):
    X = np.ones((3, 2, 3))
    X[1, 1, where] = -INF
    X[2, 0, 0] = INF
    with pytest.raises(ValueError, match=rf"inf: 2 value.* series 1, channel 1, time {where}\."):
        from_arrays(X, missing=missing)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([], r"0 sample\(s\)"),
        (np.empty((0, 3)), r"0 sample\(s\) \(shape=\(0, 3\)\)"),
        (np.empty((12, 0)), r"0 feature\(s\) \(shape=\(12, 0\)\) while a minimum of 1 is required"),
        ([1.0, 2.0], r"got 1D array .*Reshape your data"),
        (np.ones(3), r"got 1D array .*Reshape your data"),
        (3.0, "got 0D array"),
        (None, "got 0D array"),
        (np.ones((1, 1, 1, 1)), "got 4D array"),
        (np.ones((2, 3)) + 1j, "Complex data not supported"),
        ([[1, 2j]], "Complex data not supported"),
        (np.array([[1, 2j]], dtype=object), "Complex data not supported"),
        (scipy.sparse.csr_array(np.eye(3)), "[Ss]parse"),
        (["ab", "cd"], "dtype <U2"),
        (np.array([["1", "2"]]), "dtype <U1"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), "dtype datetime64"),
        ([[1, 2], []], "Series 1 has no real time step"),
        ([[1, 2], [NAN, NAN]], "Series 1 has no real time step"),
        ([[1, 2], [[3, 4]]], r"series 0 has shape \(2,\) and series 1 has shape \(1, 2\)"),
        ([[[1, 2], [3]]], "channels of series 0 differ in length"),
        ([np.ones((2, 9)), np.ones((3, 8))], r"different channel counts \(2, 3\)"),
        ([np.ones((90, 3)), np.ones((80, 3))], r"\(80, 90\).*all have 3 steps.*transpose"),
        (np.ones((4, 200, 2)), "200 channels and at most 2 .*swapped.*Transpose"),
        (np.ones((4, 5, 1)), "5 channels and at most 1 .*swapped"),
        (pd.DataFrame({"a": ["x"]}), "could not convert"),
    ],
)
def test_refused_input_gets_one_clear_line(X, message):
    with pytest.raises(ValueError, match=message) as caught:
        from_arrays(X)
    assert "\n" not in str(caught.value)


def test_elements_that_are_no_numbers_are_a_type_error():
    with pytest.raises(TypeError, match=r"argument must be .* string.* number"):
        from_arrays(np.array([[{"foo": "bar"}, 1]], dtype=object))


def test_many_channels_of_a_few_steps_are_no_transposition():
    assert from_arrays([np.ones((200, 22)), np.ones((200, 2))]).values.shape == (2, 200, 22)


@pytest.mark.parametrize(
    "y",
    [
        np.array([-1, 1], dtype=np.int8),
        np.array(["B", "a"]),
        np.array(["B", "a"], dtype=object),
        np.array([True, False]),
        np.array([1.0, 2.0]),
        np.array([3, 3]),
    ],
)
def test_labels_keep_their_dtype(y):
    labels = from_arrays(np.eye(2), y).labels
    assert labels.dtype == y.dtype
    assert labels.tolist() == y.tolist()


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1], r"inconsistent numbers of samples: \[2, 1\]"),
        ([[1], [2]], r"1d array, got an array of shape \(2, 1\)"),
        (1, r"1d array, got an array of shape \(\)"),
        ([1.0, NAN], "y contains NaN.*1 label.*index 1"),
        ([None, "a"], "y contains NaN.*index 0"),
        (pd.Series(["a", pd.NA]), "y contains NaN.*index 1"),
        (np.array(["a", NAN], dtype=object), "y contains NaN.*index 1"),
        ([1.0, INF], "y contains inf"),
        ([1j, 2], "Labels must be numbers or text"),
    ],
)
def test_refused_labels(y, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(np.eye(2), y)


def test_names():
    assert from_arrays(np.eye(2), names=["p", "q"]).names == ("p", "q")
    with pytest.raises(ValueError, match="2 series but 1 names"):
        from_arrays(np.eye(2), names=["p"])


@pytest.mark.parametrize("indices", [[2, 0], np.array([True, False, True]), [], [-1], [1, 1]])
def test_subset(indices):
    whole = from_arrays([[1, 2, 3], [4, 5], [6]], ["a", "b", "c"], names=["p", "q", "r"])
    part = whole.subset(indices)
    at = np.arange(3)[np.asarray(indices, dtype=None if len(indices) else int)]
    assert len(part) == len(at)
    np.testing.assert_array_equal(part.values, whole.values[at])
    np.testing.assert_array_equal(part.mask, whole.mask[at])
    assert part.labels.tolist() == [whole.labels[i] for i in at]
    assert part.names == tuple(whole.names[i] for i in at)


def test_copies_and_pictures():
    whole = from_arrays([[1, 2], [3]], ["a", "b"], source="here")
    for twin in (pickle.loads(pickle.dumps(whole)), copy.deepcopy(whole)):
        np.testing.assert_array_equal(twin.values, whole.values)
        assert twin.names == whole.names
    expected = "<Collection: 2 series, 1 channel(s), length 2, 2 classes from here>"
    assert repr(whole) == expected


def test_a_subset_of_few_series_makes_nothing_as_large_as_all() -> None:
    n = 200_000
    many = Collection(np.zeros((n, 1, 1)), np.ones((n, 1), bool), None, ("",) * n)
    tracemalloc.start()
    few = many.subset(np.arange(10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(few) == 10
    assert peak < n, "less than a byte a series"


def test_without_a_copy_nothing_of_the_inputs_size_is_made() -> None:
    X = np.random.default_rng(0).standard_normal((1000, 500))
    tracemalloc.start()
    data = from_arrays(X, copy=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000, "of 4 MB"
    assert np.shares_memory(data.values, X)
    assert np.array_equal(data.mask, from_arrays(X).mask)
    assert np.array_equal(data.lengths, np.full(1000, 500))
    assert not np.shares_memory(from_arrays(X).values, X)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_without_a_copy_bad_values_are_seen_and_the_input_is_left_alone(bad: float) -> None:
    X = np.zeros((3, 4))
    X[1, 2] = bad
    before = X.copy()
    with pytest.raises(ValueError, match=r"1 value\(s\), the first in series 1, channel 0, time 2"):
        from_arrays(X, copy=False)
    if np.isnan(bad):
        assert not from_arrays(X, missing="interpolate", copy=False).values.any()
    assert np.array_equal(X, before, equal_nan=True)


def test_finite_values_whose_sum_is_not() -> None:
    X = np.full((2, 3), 1e308)
    for copy_ in (False, True):
        data = from_arrays(X, copy=copy_)
        assert np.array_equal(data.values[:, 0], X)
        assert data.mask.all()
    opposite = np.array([[1e308, 1e308, INF, -INF]])
    with pytest.raises(ValueError, match=r"contains inf: 2 value\(s\)"):
        from_arrays(opposite)
