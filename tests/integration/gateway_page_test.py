#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gateway's web page in headless Chromium: chats, the pools, keys, what it may load, and whether
it can be used with a keyboard and a screen reader.

LAMINA_SCREENSHOTS=FOLDER keeps pictures of it there.
"""

import json
import os
import tempfile
import unittest
import urllib.request
from pathlib import Path

from harness import Cluster, require_model, run_in_environment

if __name__ == "__main__":
    run_in_environment("websockets==17.4")

from browser import Browser  # noqa: E402  In the environment.

KEY = "test-key"
QUESTION = "Name three colours."
ANSWERED = "at('log').getAttribute('aria-busy') === 'false' && !at('send').disabled"
# The contrast of two colours after WCAG 2.2, of an element's text on what is behind it.
CONTRAST = """(() => {
  const parts = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => parts(c).slice(0, 3).map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
      .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if ((parts(c)[3] ?? 1) > 0) return c;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = {};
  for (const e of document.querySelectorAll('h1, h2, p, label, dt, dd, th, td, caption, button, textarea, .who, .text')) {
    if (e.disabled || !e.textContent.trim()) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))];
    found[e.tagName + '.' + e.className] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }
  return found;
})()"""


class GatewayPageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        require_model(cls("test_pools"))
        if Browser.program() is None:
            reason = "chromium is not installed; deploy/install_packages.sh --tests does it"
            if os.environ.get("LAMINA_REQUIRE_MODEL") == "1":
                raise AssertionError(reason)
            raise unittest.SkipTest(reason)
        folder = tempfile.TemporaryDirectory(prefix="lamina-page-")
        cls.addClassCleanup(folder.cleanup)
        keys = Path(folder.name) / "keys"
        keys.write_text(f"{KEY}\n")
        cls.cluster = Cluster(gateway={"listen": "127.0.0.1:0", "api_keys_file": str(keys)}, overrides=["memory.0.price=1/h"])
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.browser = Browser()
        cls.browser.__enter__()
        cls.addClassCleanup(cls.browser.__exit__)
        cls.url = f"http://{cls.cluster.gateway}"

    def setUp(self):
        self.browser.prefer("light")
        self.browser.resize(1100, 900)
        self.browser.open(f"{self.url}/")

    def enter_key(self):
        self.browser.wait("!at('key-field').hidden")
        self.browser.evaluate("at('key').focus()")
        self.browser.type(KEY)
        self.browser.wait("at('state').textContent === 'serving'")

    def ask(self, question, tokens, temperature=0):
        self.browser.evaluate(f"at('tokens').value = {tokens}; at('temperature').value = {temperature};"
                              "at('prompt').focus()")
        self.browser.type(question)
        self.browser.press("Enter")

    def texts(self):
        return self.browser.evaluate("[...document.querySelectorAll('#log .text')].map((e) => e.textContent)")

    def answer_of(self, messages, tokens):
        body = {"model": "smollm2-135m-instruct", "messages": messages, "max_tokens": tokens, "temperature": 0}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]

    def test_a_chat_streams_and_remembers(self):
        self.enter_key()
        self.browser.evaluate("""window.changes = 0;
            new MutationObserver((all) => { window.changes += all.length; })
                .observe(at('log'), {childList: true, subtree: true}); null""")
        self.ask(QUESTION, 24)
        self.browser.wait(f"document.querySelectorAll('#log li').length === 2 && {ANSWERED}")
        first = self.answer_of([{"role": "user", "content": QUESTION}], 24)
        self.assertEqual(self.texts(), [QUESTION, first])
        self.assertGreater(self.browser.evaluate("window.changes"), 4, "the answer came piece by piece")
        self.ask("And three more?", 12)
        self.browser.wait(f"document.querySelectorAll('#log li').length === 4 && {ANSWERED}")
        second = self.answer_of([{"role": "user", "content": QUESTION}, {"role": "assistant", "content": first},
                                 {"role": "user", "content": "And three more?"}], 12)
        self.assertEqual(self.texts()[3], second)
        self.picture("page_light.png")
        self.browser.prefer("dark")
        self.picture("page_dark.png")
        self.browser.evaluate("at('clear').click()")
        self.assertEqual(self.texts(), [])

    def picture(self, name):
        if folder := os.environ.get("LAMINA_SCREENSHOTS"):
            self.browser.screenshot(Path(folder) / name)

    def test_escape_ends_an_answer_and_the_request(self):
        self.enter_key()
        self.ask("Tell me a very long story.", 8000, temperature=1)
        self.browser.wait("document.querySelectorAll('#log .text')[1]?.textContent")
        self.browser.press("Escape")
        self.browser.wait(ANSWERED)
        self.assertEqual(self.browser.evaluate("at('note').textContent"), "")

        def idle():
            status = self.cluster.status()
            return status["running"] + status["waiting"] == 0

        self.cluster.await_true(idle, "no request is left", list(self.cluster.processes))

    def test_pools(self):
        self.enter_key()
        self.browser.wait("at('memory').rows.length === 2")
        rows = self.browser.evaluate("""Object.fromEntries(['compute', 'memory'].map((id) =>
            [id, [...at(id).rows].map((r) => [...r.cells].map((c) => c.textContent.trim()))]))""")
        self.assertEqual([r[:2] for r in rows["compute"]], [["c0", "ready"]])
        self.assertEqual([r[:2] for r in rows["memory"]], [["m0", "ready"], ["m1", "ready"]])
        self.assertRegex(rows["memory"][0][3], r"^\d+ of [1-9]\d+$")
        self.assertEqual(self.browser.evaluate("at('running').textContent"), "0")
        self.assertRegex(self.browser.evaluate("at('cost').textContent"), r"^\d+\.\d{3} in, \d+\.\d{3} out$")
        self.assertFalse(self.browser.evaluate("at('cost-item').hidden"))

    def test_without_a_key_it_says_so(self):
        self.browser.wait("!at('key-field').hidden")
        self.assertIn("API key", self.browser.evaluate("at('state').textContent"))
        self.ask(QUESTION, 4)
        self.assertIn("API key", self.browser.wait("at('note').textContent"))
        self.browser.wait(ANSWERED)

    def test_nothing_but_the_gateway_is_asked_and_no_markup_is_run(self):
        self.enter_key()
        self.ask("<img src=x onerror='window.bad = 1'><b>hi</b>", 4)
        self.browser.wait(f"document.querySelectorAll('#log li').length === 2 && {ANSWERED}")
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('#log img, #log b').length"), 0)
        asked = {r["request"]["url"] for r in self.browser.events["Network.requestWillBeSent"]}
        self.assertEqual({u for u in asked if not u.startswith((f"{self.url}/", "data:"))}, set())
        errors = [e["entry"]["text"] for e in self.browser.events.get("Log.entryAdded", [])
                  if "401" not in e["entry"]["text"]]  # From before the key.
        self.assertEqual(errors, [])
        self.assertEqual(self.browser.events.get("Runtime.exceptionThrown", []), [])
        self.browser.evaluate("""const s = document.createElement('script');
            s.textContent = 'window.bad = 1'; document.body.append(s); null""")
        self.assertFalse(self.browser.evaluate("'bad' in window"), "the policy lets no inline script run")
        self.assertEqual(self.browser.evaluate("fetch('http://127.0.0.1:1/').catch((e) => 'refused')"), "refused")

    def test_everything_has_a_name_and_can_be_reached(self):
        self.enter_key()
        tree = self.browser.call("Accessibility.getFullAXTree")["nodes"]
        # Whether the space between a label and its field is part of the name depends on Chromium's version.
        shown = [(n["role"]["value"], n.get("name", {}).get("value", "").strip()) for n in tree if not n["ignored"]]
        for role, name in shown:
            if role in ("button", "textbox", "spinbutton", "link", "log", "table", "region"):
                self.assertTrue(name, f"a {role} without a name")
        for expected in (("log", "Conversation"), ("button", "Send"), ("textbox", "Message"), ("heading", "Pools"),
                         ("rowheader", "c0"), ("spinbutton", "Temperature")):
            self.assertIn(expected, shown)
        self.assertIn("main", {role for role, _ in shown})
        self.browser.evaluate("document.activeElement.blur()")
        reached = []
        for _ in range(12):
            self.browser.press("Tab")
            reached.append(self.browser.evaluate("document.activeElement.id || document.activeElement.className"))
        self.assertLessEqual({"skip", "log", "prompt", "temperature", "tokens", "key", "send", "clear"}, set(reached))

    def test_light_dark_and_narrow(self):
        self.enter_key()
        self.browser.wait("at('memory').rows.length === 2")
        backs = set()
        for scheme in ("light", "dark"):
            self.browser.prefer(scheme)
            backs.add(self.browser.evaluate("getComputedStyle(document.body).backgroundColor"))
            for element, contrast in self.browser.evaluate(CONTRAST).items():
                self.assertGreaterEqual(contrast, 4.5, f"{element} in {scheme}")
        self.assertEqual(len(backs), 2)
        self.browser.resize(320, 700)
        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 320)


if __name__ == "__main__":
    unittest.main()
