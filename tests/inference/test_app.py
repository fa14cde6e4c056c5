"""The page of demo/app.py in a headless Chromium, driven by its DevTools protocol."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.configs import CONFIGS

pytest.importorskip("gradio")
connect = pytest.importorskip("websockets.sync.client").connect
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DEMO = CONFIGS.parent / "demo"
# Number of different colors in a picture of the page; 0 as long as it is not there.
COLORS = """(() => {
  const image = document.querySelector('#NAME img');
  if (!image || !image.complete || !image.naturalWidth) return 0;
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(pixels.buffer)).size;
})()"""
PLACE = """(() => {
  const image = document.querySelector('#overlay img');
  image.scrollIntoView({block: 'center'});
  const box = image.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})()"""


class Browser:
    def __init__(self, socket):
        self.socket, self.sent = socket, 0

    def call(self, method: str, **parameters) -> dict:
        self.sent += 1
        request = {"id": self.sent, "method": method, "params": parameters}
        self.socket.send(json.dumps(request))
        while (answer := json.loads(self.socket.recv(timeout=60))).get("id") != self.sent:
            pass
        return answer["result"]

    def value(self, expression: str):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"][
            "value"
        ]

    def wait(self, expression: str):
        for _ in range(240):
            if value := self.value(expression):
                return value
            time.sleep(0.5)
        raise AssertionError(f"the page never got {expression}")


def reached(url: str) -> bytes:
    for _ in range(240):
        try:
            return urllib.request.urlopen(url).read()
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"nothing answers at {url}")


def drop_and_click(browser: Browser) -> None:
    browser.wait("document.querySelectorAll('input[type=file]').length")
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=root, selector="input[type=file]")
    files = [str(DEMO / "street.jpg")]
    browser.call("DOM.setFileInputFiles", nodeId=node["nodeId"], files=files)
    assert browser.wait(COLORS.replace("NAME", "overlay")) > 100
    assert browser.value(COLORS.replace("NAME", "heat")) == 0
    x, y = browser.value(PLACE)
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    assert browser.wait(COLORS.replace("NAME", "heat")) > 100


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_photo_is_segmented_and_a_click_shows_attention(tmp_path):
    with socket.socket() as one, socket.socket() as two:
        ports = [s.bind(("127.0.0.1", 0)) or s.getsockname()[1] for s in (one, two)]
    flags = ["--headless", "--no-sandbox", f"--user-data-dir={tmp_path}", "--window-size=1400,900"]
    flags += [f"--remote-debugging-port={ports[1]}", "--remote-allow-origins=*"]
    environment = {**os.environ, "GRADIO_ANALYTICS_ENABLED": "False"}
    commands = [
        [sys.executable, str(DEMO / "app.py"), "--port", str(ports[0])],
        [CHROMIUM, *flags, f"http://127.0.0.1:{ports[0]}"],
    ]
    processes = []
    try:
        for command, url in zip(commands, (f":{ports[0]}", f":{ports[1]}/json"), strict=True):
            processes.append(
                subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL)
            )
            answer = reached(f"http://127.0.0.1{url}")
        page = next(target for target in json.loads(answer) if target["type"] == "page")
        with connect(page["webSocketDebuggerUrl"], max_size=None) as channel:
            drop_and_click(Browser(channel))
    finally:
        for process in processes:
            process.kill()
            process.wait()
