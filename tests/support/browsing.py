"""A real browser, and pages in it whose errors and requests are kept."""

import importlib
import os
import shutil

import pytest

NO_BROWSER = "no chromium or google-chrome on the path; `apt-get install chromium` brings one"
WAIT = 240_000  # milliseconds: a busy machine takes long to draw a page


@pytest.fixture(scope="module")
def browser():
    missing = pytest.fail if os.environ.get("SPECBENCH_BROWSER") == "required" else pytest.skip
    try:
        api = importlib.import_module("playwright.sync_api")
    except ImportError as error:
        missing(f"playwright is not installed: {error}")
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
    if program is None:
        missing(NO_BROWSER)
    with api.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def open_page(browser):
    """A function that opens a file and waits for it; errors and requests are kept on the page."""
    contexts = []

    def opened(path, width=1200, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        view = context.new_page()
        view.said, view.asked = [], []
        view.on("console", lambda message: view.said.append(f"{message.type}: {message.text}"))
        view.on("pageerror", lambda error: view.said.append(str(error)))
        view.on("request", lambda request: view.asked.append(request.url))
        view.goto(path.as_uri())
        view.wait_for_selector("body[data-ready]")
        return view

    yield opened
    for context in contexts:
        context.close()
