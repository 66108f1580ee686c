"""The chat page in a real browser, against the real server."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx2
import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from ingle.config import ApiKey, ServerConfig
from support.scripted import ScriptedEngine, scripted_model
from support.served import Running

CHROMIUM = next(
    (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")

MARKDOWN = """# Title

Some **bold**, *slanted*, `code` and a [link](https://example.com/a_(b)).

- one
- two
  1. deep

| a | b |
|---|---|
| 1 | <b>2</b> |

> quoted

```python
print("<script>alert(1)</script>")
```
"""
HOSTILE = """<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>
[a](javascript:document.title='owned') ![p](http://127.0.0.1:9/beacon.png) <iframe src=//x></iframe>
[b](data:text/html,<script>1</script>) <svg onload=alert(1)>"""


def reply(prompt: str) -> str:
    asked = prompt.rsplit("<|turn>user\n", 1)[-1].split("<turn|>")[0]
    if "response:" in prompt:
        return "It is sunny."
    if asked.startswith("tool"):
        return '<|channel>thought\nThe tool knows.<channel|>Let me see.<|tool_call>call:weather{city:<|"|>Paris<|"|>}<tool_call|>'
    if asked.startswith("hostile"):
        return HOSTILE
    if asked.startswith("long"):
        return "word " * 5000
    if asked.startswith("markdown"):
        return MARKDOWN
    return f"You said: {asked}"


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    running = Running(ServerConfig(port=0), model=scripted_model(reply, chunk=3))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(permissions=["microphone", "clipboard-read", "clipboard-write"])
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, running: Running) -> Page:
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(running.url)
    expect(page.locator("#model option")).to_have_text(["scripted"])
    page.problems = problems  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    return page


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_be_visible()
    expect(page.locator("article.assistant").last.get_by_role("button", name="Retry")).to_be_visible()


def test_markdown_becomes_elements_and_nothing_else(page: Page) -> None:
    say(page, "markdown")
    answer = page.locator("article.assistant .markdown")
    for selector in ("h2", "strong", "em", "ul ol li", "td", "blockquote p", "pre code"):
        expect(answer.locator(selector).first).to_be_visible()
    expect(answer.locator("td").last).to_have_text("<b>2</b>")
    expect(answer.locator("a")).to_have_attribute("href", "https://example.com/a_(b)")
    answer.locator("pre button").click()
    assert page.evaluate("navigator.clipboard.readText()") == 'print("<script>alert(1)</script>")'
    expect(page.locator("article.assistant .tools-row")).to_contain_text("tokens/s")
    say(page, "hostile")
    answer = page.locator("article.assistant .markdown").last
    expect(answer).to_contain_text("onerror")
    assert answer.locator("img, script, iframe, svg").count() == 0
    assert all((a.get_attribute("href") or "").startswith("http") for a in answer.locator("a").all())
    assert page.title() == "Ingle" and not page.problems  # pyright: ignore


def test_reasoning_tools_and_their_results(page: Page) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Tools, as a JSON list").fill("{")
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("alert").first).to_contain_text("Tools:")
    page.get_by_label("Tools, as a JSON list").fill(
        '[{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]'
    )
    page.get_by_role("button", name="Done").click()
    page.get_by_label("Message", exact=True).fill("tool please")
    page.keyboard.press("Enter")
    expect(page.locator("details.call summary")).to_have_text("Calls weather")
    expect(page.locator("details").first).to_contain_text("The tool knows.")
    page.get_by_label("Result of weather").fill("sunny")
    page.get_by_role("button", name="Give").click()
    expect(page.locator("article.assistant .markdown").last).to_have_text("It is sunny.")


def test_stop_edit_retry_and_what_stays(page: Page, running: Running) -> None:
    engine = running.model.engine
    assert isinstance(engine, ScriptedEngine)
    engine.delay_s = 0.01
    page.get_by_label("Message", exact=True).fill("long one")
    page.keyboard.press("Enter")
    expect(page.locator("article.assistant .markdown")).to_contain_text("word word")
    page.keyboard.press("Escape")
    expect(page.locator("article.assistant .tools-row")).to_contain_text("stopped")
    engine.delay_s = 0.0
    page.locator("article.user").get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Message", exact=True)).to_have_value("long one")
    say(page, "hello")
    expect(page.locator("article")).to_have_count(2)
    expect(page.locator("article.assistant .markdown")).to_have_text("You said: hello")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("article.assistant .markdown")).to_have_text("You said: hello")
    expect(page.locator("#send")).to_be_visible()
    page.keyboard.press("Control+Shift+O")
    expect(page.locator("article")).to_have_count(0)
    page.reload()
    page.locator("#conversations").get_by_role("button", name="hello", exact=True).click()
    expect(page.locator("article.assistant .markdown")).to_have_text("You said: hello")
    page.get_by_role("button", name="Delete hello").click()
    expect(page.locator("#conversations li")).to_have_count(0)


def test_pictures_and_recordings_are_attached(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "red.png"
    Image.new("RGB", (40, 30), "red").save(file)
    page.set_input_files("#files", file)
    expect(page.locator("#attachments img")).to_be_visible()
    out = BytesIO()
    Image.new("RGB", (10, 10), "blue").save(out, "PNG")
    page.evaluate(
        """(data) => {
          const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
          const transfer = new DataTransfer();
          transfer.items.add(new File([bytes], "blue.png", { type: "image/png" }));
          for (const type of ["paste", "drop"]) {
            const event = type === "paste"
              ? new ClipboardEvent(type, { clipboardData: transfer, bubbles: true, cancelable: true })
              : new DragEvent(type, { dataTransfer: transfer, bubbles: true, cancelable: true });
            document.body.dispatchEvent(event);
          }
        }""",
        base64.b64encode(out.getvalue()).decode(),
    )
    expect(page.locator("#attachments img")).to_have_count(3)
    page.get_by_role("button", name="Remove blue.png").first.click()
    record = page.get_by_role("button", name="Record")
    record.click()
    expect(record).to_have_attribute("aria-pressed", "true")
    page.wait_for_timeout(300)
    record.click()
    expect(page.locator("#attachments li")).to_have_count(3)
    (tmp_path / "a.txt").write_text("x")
    page.set_input_files("#files", tmp_path / "a.txt")
    expect(page.get_by_role("status")).to_contain_text("pictures, sounds and clips")
    page.get_by_label("Message", exact=True).fill("look")
    page.keyboard.press("Enter")
    # This model takes none: the server's words are shown, and nothing is lost.
    expect(page.get_by_role("alert").last).to_contain_text("takes no image parts")
    page.locator("article.user").get_by_role("button", name="Edit").click()
    expect(page.locator("#attachments li")).to_have_count(3)


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (360, "dark")])
def test_it_fits_and_is_named(browser: Browser, running: Running, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 700}, color_scheme=scheme)  # type: ignore[arg-type] # pyright: ignore
    page = context.new_page()
    page.goto(running.url)
    say(page, "markdown")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 384) == (scheme == "dark")
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, input, select, textarea")]
           .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)"""
    )
    assert unnamed == []
    if width < 700:
        page.get_by_role("button", name="Conversations").click()
        expect(page.get_by_role("button", name="New conversation")).to_be_visible()
    page.goto(running.url)
    page.keyboard.press("Shift+Tab")
    context.close()


def test_a_key_is_asked_for_by_the_api_and_not_by_the_page(browser: Browser) -> None:
    running = Running(ServerConfig(port=0, api_keys=(ApiKey.of("sesame"),)), model=scripted_model(reply))
    page = browser.new_page()
    page.goto(running.url)
    expect(page.get_by_role("status")).to_contain_text("API key")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("API key").fill("sesame")
    page.get_by_role("button", name="Done").click()
    expect(page.locator("#model option")).to_have_text(["scripted"])
    say(page, "hi")
    page.close()
    running.stop()


def test_its_files_and_their_headers(running: Running) -> None:
    answer = httpx2.get(running.url + "/")
    policy = answer.headers["content-security-policy"]
    assert (
        "script-src 'self'" in policy
        and "unsafe" not in policy
        and answer.headers["x-content-type-options"] == "nosniff"
    )
    assert "http://" not in answer.text and "https://" not in answer.text, "it works offline"
    assert httpx2.get(running.url + "/web/app.js").headers["content-type"].startswith("text/javascript")
    for path in ("/web/..%2fapp.py", "/web/none.js", "/web/__init__.py"):
        assert httpx2.get(running.url + path).status_code == 404
