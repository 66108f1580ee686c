import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.errors import MediaRefused
from ingle.media.data_url import decode_base64, decode_data_url, is_data_url

DATA = bytes(range(256))
TEXT = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "header",
    ["data:image/png;base64,", "DATA:image/png;BASE64,", "data:image/jpeg;charset=utf-8;base64,", "data:;base64,",
     "data:image/png ;base64,", "data:image/png; base64,", "data:image/png;base64 ,", " data:x;base64,"],
)  # fmt: skip
def test_headers_that_people_send(header: str) -> None:
    assert is_data_url(header)
    assert decode_data_url(header + TEXT, 1000) == DATA


@pytest.mark.parametrize(
    "url",
    ["data:image/png;base64" + TEXT, "data:base64," + TEXT, "data:image/png," + TEXT, "data:image/png;base64;charset=x," + TEXT,
     "data:" + "x" * 2000 + ";base64," + TEXT],
)  # fmt: skip
def test_headers_that_mean_something_else(url: str) -> None:
    with pytest.raises(MediaRefused, match=r"must say|needs a comma"):
        decode_data_url(url, 1000)


@pytest.mark.parametrize(
    "text",
    [" " + TEXT, TEXT + "\n", "\r\n".join(TEXT[i : i + 76] for i in range(0, len(TEXT), 76)), TEXT.rstrip("="),
     TEXT.replace("+", "-").replace("/", "_"), TEXT.rstrip("=").replace("+", "-")],
)  # fmt: skip
def test_white_space_padding_and_alphabets(text: str) -> None:
    assert decode_base64(text, 1000) == DATA


@pytest.mark.parametrize("junk", ["\u200b", "%3D", "*", "é", "\x00", "=A"])
def test_junk_is_refused_and_named(junk: str) -> None:
    with pytest.raises(MediaRefused, match="base64 data"):
        decode_base64(TEXT[:8] + junk + TEXT[8:], 1000)


@pytest.mark.parametrize("text", ["A", "AAAAA", "AA=", "AAA==", "AAAA="])
def test_cut_short_data_is_refused(text: str) -> None:
    with pytest.raises(MediaRefused, match="cut short"):
        decode_base64(text, 1000)


def test_the_cap_is_exact_and_checked_before_decoding() -> None:
    assert len(decode_base64(TEXT, 256)) == 256
    with pytest.raises(MediaRefused, match="has 256 bytes, the limit is 255"):
        decode_base64(TEXT, 255)
    with pytest.raises(MediaRefused, match="limit"):
        decode_base64("*" * 1000, 10)  # too long to be looked at


@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_whatever_was_encoded_comes_back(data: bytes, url_safe: bool, padded: bool) -> None:
    text = (base64.urlsafe_b64encode if url_safe else base64.b64encode)(data).decode()
    assert decode_base64(text if padded else text.rstrip("="), 200) == data
