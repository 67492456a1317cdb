"""Who gets an answer of the local server: the page that was opened, and nobody else."""

from typing import Any

import pytest

from tests.unit.gpushare_cli.ui.fleets import HOST, PORT, TOKEN, client, fleet

GOOD = f"/{TOKEN}/fleet.html"
NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("path", "headers", "method", "status"),
    [
        (GOOD, {}, "GET", 200),
        (GOOD, {"Host": f"localhost:{PORT}"}, "GET", 200),
        (GOOD, {"Origin": f"http://127.0.0.1:{PORT}", "Sec-Fetch-Site": "same-origin"}, "GET", 200),
        (GOOD, {"Sec-Fetch-Site": "none"}, "HEAD", 200),
        (GOOD, {"Host": "rebound.example"}, "GET", 421),
        (GOOD, {"Host": f"rebound.example:{PORT}"}, "GET", 421),
        (GOOD, {"Host": "127.0.0.1"}, "GET", 421),
        (GOOD, {"Host": f"127.0.0.1:{PORT + 1}"}, "GET", 421),
        (GOOD, {"Origin": "https://evil.example"}, "GET", 403),
        (GOOD, {"Origin": "null"}, "GET", 403),
        (GOOD, {"Origin": "http://127.0.0.1"}, "GET", 403),
        (GOOD, {"Sec-Fetch-Site": "cross-site"}, "GET", 403),
        (GOOD, {"Sec-Fetch-Site": "same-site"}, "GET", 403),
        (f"/{TOKEN}/", {"Sec-Fetch-Site": "cross-site", **NAVIGATION}, "GET", 200),
        (GOOD, {"Sec-Fetch-Site": "cross-site", **NAVIGATION}, "GET", 403),
        (f"/{TOKEN}/", {"Sec-Fetch-Site": "cross-site", **NAVIGATION, "Sec-Fetch-Dest": "iframe"}, "GET", 403),
        (f"/{TOKEN}/", {"Sec-Fetch-Site": "cross-site"}, "GET", 403),
        ("/other/", {"Sec-Fetch-Site": "cross-site", **NAVIGATION}, "GET", 403),
        (GOOD, {}, "POST", 405),
        (GOOD, {}, "OPTIONS", 405),
        (GOOD, {}, "DELETE", 405),
        ("/", {}, "GET", 403),
        ("/fleet.html", {}, "GET", 403),
        ("/the-toke/fleet.html", {}, "GET", 403),
        ("/the-token2/fleet.html", {}, "GET", 403),
        ("/tök/fleet.html", {}, "GET", 403),
        (f"//{TOKEN}/fleet.html", {}, "GET", 403),
        (f"/{TOKEN}/../etc/passwd", {}, "GET", 404),
        (f"/{TOKEN}/pod_asr.html", {}, "GET", 404),
        (f"/{TOKEN}/page.py", {}, "GET", 404),
    ],
)  # fmt: skip
def test_only_the_page_that_was_opened_gets_an_answer(path: str, headers: Any, method: str, status: int) -> None:
    found = client(fleet()).open(path, method=method, headers={**HOST, **headers})
    assert found.status_code == status
    if status in {403, 405, 421}:
        assert found.get_data() == b"", "a refusal says nothing"
    policy = found.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert (found.headers["Referrer-Policy"], found.headers["Cache-Control"]) == ("no-referrer", "no-store")
    assert "Set-Cookie" not in found.headers


def test_pages_hold_nothing_that_the_policy_forbids_and_no_token() -> None:
    browser = client(fleet())
    for name in ("fleet", "gpu_one_gpu-0", "namespace_asr", "pod_asr_asr-0"):
        text = browser.get(f"/{TOKEN}/{name}.html", headers=HOST).get_data(as_text=True)
        assert not [
            each for each in ("style=", "onclick", "javascript:", "<style", "http://", "https://") if each in text
        ]
        assert TOKEN not in text
