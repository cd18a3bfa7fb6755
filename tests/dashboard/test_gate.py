"""What the server refuses: other hosts, other sites, no token, and files that it may not read."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from dashboard.arguments import file_below
from dashboard.serve import Gate
from dashboard.wording import in_page_words, uploaded
from kvscope.core.addresses import Address
from kvscope.core.errors import InputError, UsageError

LOCAL = Address("127.0.0.1", 8501)
SECRET = Address("0.0.0.0", 8501, "a token; with = odd, characters")  # noqa: S104
COOKIE = "kvscope_8501"


def answered(
    address: Address, kind: str = "http", path: str = "/", query: str = "", **headers: str
) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of the answer to a request; 200 where it is passed on."""
    sent: list[dict[str, Any]] = []

    async def passed(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, str]:
        return {"type": f"{kind}.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        "scheme": "http",
        "method": "GET",
        "server": ("127.0.0.1", 8501),
    }
    asyncio.run(Gate(passed, address)(scope, receive, send))
    if sent[0]["type"] == "websocket.close":  # before it is accepted: the server answers 403
        return 403, {}
    answer = {name.decode(): text.decode() for name, text in sent[0].get("headers", [])}
    return sent[0]["status"], answer


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_only_its_own_host_is_answered(kind: str) -> None:
    """A name that another site points at this machine is refused, whatever its port."""
    for host in ("127.0.0.1:8501", "localhost:8501", "[::1]:8501", "LOCALHOST", "localhost:9"):
        assert answered(LOCAL, kind, host=host)[0] == 200
    foreign = ("evil.example", "127.0.0.1.evil.example:8501", "10.0.0.7", "", "[", "a@b:c", "0")
    for host in foreign:
        assert answered(LOCAL, kind, host=host)[0] in {400, 403}, host
    assert answered(LOCAL, kind)[0] in {400, 403}
    if kind == "http":
        assert answered(LOCAL, kind)[1]["content-security-policy"] == "frame-ancestors 'none'"
    named = Address("gpu01.example", 8501)
    assert answered(named, kind, host="gpu01.example:8501")[0] == 200
    assert answered(named, kind, host="gpu02.example:8501")[0] in {400, 403}


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_pages_of_other_sites_are_refused(kind: str) -> None:
    """A request that another page makes is refused before Streamlit looks its address up."""
    own = {"host": "localhost:8501"}
    assert answered(LOCAL, kind, **own, origin="http://localhost:8501")[0] == 200
    for origin in ("http://evil.example", "http://localhost:3000", "null", "file://"):
        assert answered(LOCAL, kind, **own, origin=origin)[0] == 403


def test_a_token_opens_the_pages() -> None:
    """Nothing is served without it; the address with it sets a cookie and is left again."""
    host = {"host": "10.0.0.7:8501"}
    for kind in ("http", "websocket"):
        assert answered(SECRET, kind, **host)[0] == 403
        assert answered(SECRET, kind, **host, cookie=f"{COOKIE}=wrong")[0] == 403
    assert answered(SECRET, query="token=wrong", **host)[0] == 403
    assert answered(SECRET, "websocket", query="token=wrong", **host)[0] == 403
    query = "trace=to-c&token=a+token%3B+with+%3D+odd%2C+characters"
    status, answer = answered(SECRET, path="//evil.example/x", query=query, **host)
    assert (status, answer["location"]) == (303, "/evil.example/x?trace=to-c")
    cookie, *attributes = answer["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=lax"} <= {*attributes}
    for kind in ("http", "websocket"):
        assert answered(SECRET, kind, **host, cookie=cookie)[0] == 200
        assert answered(SECRET, kind, host="evil.example", cookie=cookie)[0] in {400, 403}


def test_files_lie_below_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths out of it, links out of it, pipes and devices are refused without being opened."""
    folder = tmp_path / "readable"
    folder.mkdir()
    (folder / "trace.jsonl").write_text("{}\n")
    secret = tmp_path / "secret"
    secret.write_text("password")
    (folder / "out").symlink_to(secret)
    (folder / "devices").symlink_to("/dev")
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "pipe")
    monkeypatch.setattr("sys.argv", ["app.py", "--folder", str(folder)])
    inside = str(folder.resolve() / "trace.jsonl")
    for text in ("trace.jsonl", "./trace.jsonl", "../readable/trace.jsonl", inside):
        assert file_below(text) == inside
    outside = ("../secret", str(secret), "out", "devices/zero", "/dev/zero", "/proc/self/environ")
    for text in outside:
        with pytest.raises(UsageError, match="lies outside of the folder"):
            file_below(text)
    for text in ("pipe", ".", "", "nowhere", "loop", "a\0b", "x" * 5000):
        with pytest.raises(InputError, match=r"no such file|not a path"):
            file_below(text)
    monkeypatch.setattr("sys.argv", ["app.py"])
    with pytest.raises(UsageError, match="--folder"):
        file_below(str(secret))


def test_messages_name_controls_and_uploads() -> None:
    """What the commands say of options and of the copy of an upload fits the page."""
    with uploaded("../chats.jsonl", b"{}") as path:
        assert Path(path).read_bytes() == b"{}"
        said = f"{path}:3: bad; state the trace's own --block-size, or --max-bad-luck"
        expected = "chats.jsonl:3: bad; state the trace's own Tokens per block, or --max-bad-luck"
        assert in_page_words(said) == expected
    assert not Path(path).exists()
