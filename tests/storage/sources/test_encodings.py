"""Text files in other encodings than UTF-8."""

import codecs
import gzip

import numpy as np
import pytest

from storage.errors import DataError
from storage.sources import ReadOptions, find_basket_items, open_long_tables, open_source
from storage.sources.text import open_text

WIDE = "naïve,été,note\r\n1,0,“é”\r\n0,1,€\r\n"
LONG = "r\tf\tv\né\tà\t1\nb\tü\t0\n"
MARKS = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}


def write(path, data):
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def read_wide(path, encoding=None):
    source = open_source(path, ReadOptions(row_columns=("note",), encoding=encoding))
    (batch,) = source.iter_batches()
    return source.feature_names, batch.X.tolist(), batch.columns["note"].tolist()


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("encoding", [*MARKS, "cp1252"])
def test_the_mark_or_the_option_decides_the_encoding(tmp_path, name, encoding):
    expected = ("naïve", "été"), [[1, 0], [0, 1]], ["“é”", "€"]
    data = WIDE.encode(encoding)
    assert read_wide(write(tmp_path / name, data), encoding) == expected
    if encoding in MARKS:
        marked = write(tmp_path / name, MARKS[encoding] + data)
        for option in (None, "latin-1"):  # the mark precedes the option
            assert read_wide(marked, option) == expected


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_all_text_formats_have_an_encoding(tmp_path, encoding):
    path = write(tmp_path / "a.tsv", LONG.encode(encoding))
    options = ReadOptions(encoding=encoding)
    source = open_long_tables([path], "row=r,feature=f,value=v", None, options)
    assert (source.feature_names, source.rows.column("r").to_pylist()) == (("à", "ü"), ["é", "b"])
    path = write(tmp_path / "a.dat.gz", "1 2\n2 3\n".encode(encoding))
    assert find_basket_items([path], encoding) == ("1", "2", "3")
    (batch,) = open_source(path, options).iter_batches()
    assert batch.X.tolist() == [[1, 1, 0], [0, 1, 1]]
    matrix = "%%MatrixMarket matrix coordinate real general\n% é\n2 2 2\n1 1 1\n2 2 1\n"
    path = write(tmp_path / "a.mtx", matrix.encode(encoding))
    (batch,) = open_source(path, options).iter_batches()
    assert batch.X.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("encoding", "line", "guess"),
    [("latin-1", 3, "latin-1"), ("cp1252", 3, "cp1252"), ("utf-16-le", 1, "utf-16-le")],
)
def test_the_error_names_line_and_encoding(tmp_path, encoding, line, guess):
    text = {"cp1252": "a,b,note\n1,0,x\n0,1,“é”\n"}.get(encoding, "a,b,note\n1,0,x\n0,1,é\n")
    path = write(tmp_path / "a.csv", text.encode(encoding))
    with pytest.raises(DataError, match="NUL" if line == 1 else f"line {line}: .* UTF-8") as caught:
        read_wide(path)
    assert f'encoding="{guess}"' in str(caught.value)
    long = LONG.replace("é", "x").replace("à", "é")
    path = write(tmp_path / "b.tsv", long.encode("latin-1"))
    with pytest.raises(DataError, match=r'line 2: the bytes e9 .*encoding="latin-1"'):
        open_long_tables([path], "row=r,feature=f,value=v", None, ReadOptions())


def test_what_is_not_text_of_the_encoding_is_refused(tmp_path):
    path = write(tmp_path / "a.csv", codecs.BOM_UTF16_LE + WIDE.encode("utf-16-le")[:-1])
    with pytest.raises(DataError, match=r"line 3: the bytes 0a are not UTF-16-LE text"):
        read_wide(path)
    path = write(tmp_path / "a.csv", WIDE.encode())
    with pytest.raises(DataError, match=r"line 1: the bytes c3 are not ASCII text"):
        read_wide(path, "ascii")
    for name in ("klingon", "hex", "a\0b"):
        with pytest.raises(DataError, match="there is no such encoding"):
            ReadOptions(encoding=name)


def test_long_files_are_converted_in_parts(tmp_path):
    rng = np.random.default_rng(0)
    text = "".join(map(chr, rng.integers(0x20, 0xD7FF, 300_000)))
    path = write(tmp_path / "a.csv", text.encode("utf-16"))
    with open_text(path) as stream:
        parts = iter(lambda: stream.read(100_001), b"")
        assert b"".join(parts).decode() == text
