"""The query string of `/logs/{container}`, decoded as the server decodes it."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from guest_service.http.log_query import MAX_TAIL, LogQuery, LogQueryError, parse_log_query
from tests.fuzz.door import Door, one_line

NOW = 1_800_000_000.0


def check(data: bytes) -> None:
    """Bounded values of the parameters that were given, or LogQueryError in one line."""
    items = QueryParams(data).multi_items()
    try:
        query = parse_log_query(items, NOW)
    except LogQueryError as error:
        one_line(str(error), 300)
        return
    given = dict(items)
    assert len(given) == len(items), "a parameter that stands twice was taken"
    assert given.keys() <= {"since", "until", "tail", "follow", "timestamps"}, given
    for name in ("since", "until"):
        _check_time(getattr(query, name), given.get(name, ""), name)
    assert query.tail is None or 0 <= query.tail <= MAX_TAIL, query
    assert (query.tail is None) == (given.get("tail") == "all"), query
    assert query.since is None or query.until is None or query.since <= query.until, query
    if not any(given.values()) and not given.keys() & {"follow", "timestamps"}:
        assert query == LogQuery(), query


def _check_time(time: float | None, text: str, name: str) -> None:
    assert (time is None) == (text == ""), (name, text)
    if time is not None:
        assert 0 <= time <= 253402300799, (name, time)
        if text[-1] in "smhdw":
            assert time <= NOW, (name, text)
        else:
            assert time == float(text), (name, text)


_TIMES = st.one_of(
    st.builds("{}{}".format, st.integers(0, 10**10), st.sampled_from(["", "s", "m", "h", "d", "w", ".5", "y", "e3"])),
    st.sampled_from(["", "-1", "nan", "inf", "1e9", "٣m", "253402300799", "253402300799.5", "253402300800", " 5"]),
    st.text(max_size=5),
)
_TAILS = st.one_of(st.sampled_from(["all", "", "0", "100000", "100001", "-1", "1_0", "٣"]), st.integers(0, 10**6).map(str))
_FLAGS = st.sampled_from(["", "0", "1", "true", "false", "yes", "no", "True", "on"])
_ITEMS = st.one_of(
    st.tuples(st.sampled_from(["since", "until"]), _TIMES),
    st.tuples(st.just("tail"), _TAILS),
    st.tuples(st.sampled_from(["follow", "timestamps"]), _FLAGS),
    st.tuples(st.text(max_size=8), st.text(max_size=8)),
)


def _query(items: list[tuple[str, str]]) -> bytes:
    return "&".join(f"{quote(name)}={quote(value)}" for name, value in items).encode()


LOG_QUERY = Door(
    "log-query",
    check,
    st.lists(_ITEMS, max_size=5).map(_query),
    words=(b"since=", b"until=", b"tail=", b"follow", b"timestamps=", b"&", b"%00", b"%0a", b"+", b"1d", b"%D9%A3"),
    examples=150,
    guided=True,
)
