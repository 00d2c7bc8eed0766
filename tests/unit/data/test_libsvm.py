"""The LIBSVM parser, compared with one in plain Python."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpips._native import LibsvmError, parse_libsvm
from mpips.data import ReadOptions, read
from mpips.errors import DataError

DATA = Path(os.environ.get("MPIPS_TEST_DATA") or Path(__file__).parents[4] / "shared" / "data")

Sample = tuple[float, list[tuple[int, float]]]


def reference(text: str) -> list[Sample]:
    """Read well-formed LIBSVM text in plain Python; indices as written, ascending."""
    samples = []
    for line in text.split("\n"):
        tokens = line.split("#")[0].split()
        if tokens:
            features = [t.split(":") for t in tokens[1:] if not t.startswith("qid:")]
            pairs = sorted((int(index), float(value)) for index, value in features)
            samples.append((float(tokens[0]), pairs))
    return samples


def kept(text: bytes, stride: int = 1, offset: int = 0, base: int = 0) -> list[Sample]:
    labels, indptr, indices, values, *_ = parse_libsvm(text, stride, offset, base)
    rows = [slice(indptr[i], indptr[i + 1]) for i in range(len(labels))]
    return [
        (label, list(zip(indices[row].tolist(), values[row].tolist(), strict=True)))
        for label, row in zip(labels.tolist(), rows, strict=True)
    ]


def as_float32(samples: list[Sample]) -> list[Sample]:
    return [(y, [(i, float(np.float32(v))) for i, v in row]) for y, row in samples]


# Numbers as people and programs write them, with the ends of float32 and long mantissas.
plain = st.floats(-1e30, 1e30, allow_nan=False)
numbers = st.one_of(
    plain.map(repr),
    plain.map("{:.17g}".format),
    plain.map("{:.25e}".format),
    st.integers(-(10**20), 10**20).map(str),
    st.integers(0, 10**6).map("+{}".format),
    st.decimals(-1000, 1000, places=6).map("{:f}".format),
    st.sampled_from(["0", "-0", "1.", ".5", "1e-400", "0." + "0" * 330 + "1", "3.4028234e38"]),
)
# Long forms: the place of the first digit that is not 0 decides.
LONG = {
    "1" + "0" * 700 + "e-300": None,
    "0" + "1" * 400: None,
    "000123" + "4" * 400 + ".5e-10": None,
    "9" * 310: None,
    "0." + "0" * 400 + "1e5": 0.0,
    "0." + "0" * 400 + "1e400": 0.1,
    "." + "0" * 400 + "1e+10": 0.0,
    "0" * 500 + "e999999999999999999999": 0.0,
    "0.000e+99999": 0.0,
    "1e-99999999999999999999999": 0.0,
    "1e99999999999999999999999": None,
    "0.0001e-999": 0.0,
    "1" + "0" * 400 + "e-400": 1.0,
    "0" * 400 + "7": 7.0,
    "0" * 400 + "1e-400": 0.0,
}


@pytest.mark.parametrize("text", LONG, ids=lambda text: f"{text[:8]}..{text[-8:]}")
@pytest.mark.parametrize("sign", ["", "-", "+"])
def test_a_number_of_any_length_is_read_as_what_it_is(text: str, sign: str) -> None:
    line = f"{sign}{text} 1:1".encode()
    if LONG[text] is None:
        with pytest.raises(LibsvmError, match="one finite number"):
            kept(line)
    else:
        assert kept(line)[0][0] == float(sign + text) == float(f"{sign}{LONG[text]}")


spaces = st.sampled_from([" ", "  ", "\t", " \t "])
indices = st.integers(0, 2**63 - 2) | st.integers(0, 30)


@st.composite
def sample_lines(draw: st.DrawFn) -> str:
    pairs = draw(st.lists(st.tuples(indices, numbers), max_size=8, unique_by=lambda p: p[0]))
    query = draw(st.sampled_from(["", "", f"qid:{draw(st.integers(0, 99))}"]))
    tokens = [draw(numbers), query, *(f"{index}:{value}" for index, value in pairs)]
    line = draw(spaces).join(token for token in tokens if token)
    return draw(st.sampled_from(["", " "])) + line + draw(st.sampled_from(["", " ", "#", " # a:b"]))


other_lines = st.sampled_from(["", "   ", "# nothing", "\t#1 2:3"])


@st.composite
def files(draw: st.DrawFn) -> str:
    lines = draw(st.lists(st.one_of(sample_lines(), sample_lines(), other_lines), max_size=12))
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["", "\n"]))


@settings(deadline=None)
@given(files())
def test_parser_reads_what_plain_python_reads(text: str) -> None:
    assert kept(text.encode()) == as_float32(reference(text))


@settings(deadline=None)
@given(files(), st.integers(1, 5))
def test_shares_of_all_workers_are_the_file(text: str, n_workers: int) -> None:
    whole = as_float32(reference(text))
    for worker in range(n_workers):
        assert kept(text.encode(), n_workers, worker) == whole[worker::n_workers]


@settings(deadline=None)
@given(files(), st.integers(1, 5), st.data())
def test_every_worker_learns_the_same_of_the_whole_file(
    text: str, n_workers: int, data: st.DataObject
) -> None:
    seen = [index for _, row in reference(text) for index, _ in row]
    smallest, largest = (min(seen), max(seen)) if seen else (-1, -1)
    base = 0 if smallest == 0 else 1
    worker = data.draw(st.integers(0, n_workers - 1))
    facts = parse_libsvm(text.encode(), n_workers, worker, -1)[4:8]
    assert facts == (len(reference(text)), smallest, largest, base)


# A division of the digits by a power of ten is off by one unit in the last place for these.
@pytest.mark.parametrize(
    "number", ["43591.010316006538", "5372001.0519674357", "92.87403708276331"]
)
def test_long_numbers_are_rounded_once(number: str) -> None:
    assert kept(number.encode()) == [(float(number), [])]


def test_every_float32_is_read_back_from_its_nine_digits() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    floats = bits.view(np.float32)
    floats = floats[np.isfinite(floats)]
    text = "\n".join(f"0 1:{number:.9g}" for number in floats.tolist())
    values = parse_libsvm(text.encode(), 1, 0, -1)[3]
    assert values.tobytes() == floats.tobytes()


def test_arrays_have_the_promised_types() -> None:
    labels, indptr, indices, values, *_ = parse_libsvm(b"1 2:3\n", 1, 0, 0)
    dtypes = [array.dtype for array in (labels, indptr, indices, values)]
    assert dtypes == [np.float64, np.int64, np.int64, np.float32]


def test_base_is_subtracted() -> None:
    assert kept(b"1 1:5 7:6", base=1) == [(1.0, [(0, 5.0), (6, 6.0)])]
    assert kept(b"1 1:5 7:6", base=-1) == [(1.0, [(0, 5.0), (6, 6.0)])]
    assert kept(b"1 1:5\n1 0:6", base=-1) == [(1.0, [(1, 5.0)]), (1.0, [(0, 6.0)])]


def test_base_follows_from_samples_of_other_workers() -> None:
    text = b"1 1:5\n1 0:6"
    assert kept(text, stride=2, offset=0, base=-1) == [(1.0, [(1, 5.0)])]


def test_byte_order_mark_is_skipped() -> None:
    assert kept(b"\xef\xbb\xbf1 2:3\n") == [(1.0, [(2, 3.0)])]


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        (b"x 1:1", "1:1", "'x'"),
        (b"1:1 2:1", "1:1", "'1:1'"),
        (b"1,2 1:1", "1:1", "'1,2'"),
        (b"nan 1:1", "1:1", "'nan'"),
        (b"-inf 1:1", "1:1", "'-inf'"),
        (b"1e999 1:1", "1:1", "'1e999'"),
        (b"+-1 1:1", "1:1", "'+-1'"),
        (b"0x10 1:1", "1:1", "'0x10'"),
        (b"1 2:1\n\n# c\n0  7", "4:4", "'7'"),
        (b"1 :5", "1:3", "':5'"),
        (b"1 -3:5", "1:3", "'-3:5'"),
        (b"1 1.5:5", "1:3", "'1.5:5'"),
        (b"1 a:5", "1:3", "'a:5'"),
        (b"1 9223372036854775808:1", "1:3", "'9223372036854775808:1'"),
        (b"1 2:1 qid:4", "1:7", "'qid:4'"),
        (b"1 2:", "1:5", "''"),
        (b"1 2:nan", "1:5", "'nan'"),
        (b"1 2:inf", "1:5", "'inf'"),
        (b"1 2:1e39", "1:5", "'1e39'"),
        (b"1 2:1e999", "1:5", "'1e999'"),
        (b"1 2:1:1", "1:5", "'1:1'"),
        (b"1 2:3x", "1:5", "'3x'"),
        (b"1 2:\xff\n", "1:5", "'?'"),
        (b"1 2:1 2:1", "1:7", "'2'"),
        (b"\r\n1 5:1 2:1 5:3", "2:11", "'5'"),
    ],
)
def test_malformed_line_is_named(text: bytes, place: str, found: str) -> None:
    with pytest.raises(LibsvmError) as caught:
        parse_libsvm(text, 1, 0, -1)
    assert str(caught.value).startswith(f"{place}: found {found}: ")


def test_largest_index_is_accepted() -> None:
    assert kept(b"1 9223372036854775807:1") == [(1.0, [(2**63 - 1, 1.0)])]


def test_index_zero_contradicts_base_one_in_any_share() -> None:
    for worker in range(2):
        with pytest.raises(LibsvmError, match=r"^2:3: found '0:1': .*count from 1"):
            parse_libsvm(b"1 1:1\n1 0:1", 2, worker, 1)


@pytest.mark.parametrize("arguments", [(0, 0, 0), (2, 2, 0), (2, -1, 0), (1, 0, 2)])
def test_contradictory_arguments_are_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_libsvm(b"1 1:1", *arguments)


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_any_bytes_are_accepted(make: Callable[[bytes], bytes]) -> None:
    assert kept(make(b"1 2:3")) == [(1.0, [(2, 3.0)])]


def test_strided_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        parse_libsvm(memoryview(b"1 2:3 4:5")[::2], 1, 0, 0)


def test_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.svm"
    path.write_bytes(b"1 1:1\n0 1:one\n")
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:2:5: found 'one': ")


@pytest.mark.parametrize("text", [b"", b"\n\n", b"# only\n"])
def test_file_without_samples_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "empty.svm"
    path.write_bytes(text)
    with pytest.raises(DataError, match="contains no samples"):
        read(path)


def test_forced_base_counts_features_from_it(tmp_path: Path) -> None:
    path = tmp_path / "some.svm"
    path.write_bytes(b"1 2:1\n0 4:1\n")
    assert read(path, options=ReadOptions(index_base=0)).info.n_features == 5
    assert read(path, options=ReadOptions(index_base=1)).info.n_features == 4


@pytest.mark.parametrize("name", ["agaricus.train.svm", "w6a.test.svm"])
def test_real_file_equals_plain_python(name: str) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {name} in {DATA}; set MPIPS_TEST_DATA to the folder that holds it")
    assert kept(path.read_bytes(), 3, 1) == as_float32(reference(path.read_text()))[1::3]
