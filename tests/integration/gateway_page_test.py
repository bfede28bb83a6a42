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

from harness import MODEL as MODEL_FILE, Cluster, require_model, run_in_environment

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
  for (const e of document.querySelectorAll('h1, h2, h3, p, li, .hint, label, dt, dd, th, td, caption, button, textarea, summary, a, code, pre, .who, .how, .cut, .text')) {
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
        cls.cluster = Cluster(model=MODEL_FILE, gateway={"listen": "127.0.0.1:0", "api_keys_file": str(keys)}, overrides=["memory.0.price=1/h"])
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
        self.browser.evaluate("localStorage.clear()")  # Of the test before.
        self.reload()

    def reload(self):
        self.browser.evaluate("window.old = true")
        self.browser.call("Page.reload")
        self.browser.wait("!window.old && document.readyState === 'complete'")

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
        return self.browser.evaluate(
            "[...document.querySelectorAll('#log .text:not(.thought > .text)')].map((e) => e.dataset.source ?? e.textContent)")

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
        self.browser.wait(f"document.querySelectorAll('#log > li').length === 2 && {ANSWERED}")
        first = self.answer_of([{"role": "user", "content": QUESTION}], 24)
        self.assertEqual(self.texts(), [QUESTION, first])
        how = self.browser.evaluate("[...document.querySelectorAll('#log .how')].at(-1).textContent")
        self.assertRegex(how, r"^first token after \d+\.\d\d s, then \d+\.\d tokens/s · cut at the most tokens$")
        self.assertGreater(self.browser.evaluate("window.changes"), 4, "the answer came piece by piece")
        self.ask("And three more?", 12)
        self.browser.wait(f"document.querySelectorAll('#log > li').length === 4 && {ANSWERED}")
        second = self.answer_of([{"role": "user", "content": QUESTION}, {"role": "assistant", "content": first},
                                 {"role": "user", "content": "And three more?"}], 12)
        self.assertEqual(self.texts()[3], second)
        self.browser.resize(1100, 1120)  # All of both pools.
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
        self.browser.wait("document.querySelectorAll('#log .text:not(.thought > .text)')[1]?.textContent")
        self.browser.press("Escape")
        self.browser.wait(ANSWERED)
        self.assertEqual(self.browser.evaluate("at('note').textContent"), "")
        self.assertIn("stopped", self.browser.evaluate("[...document.querySelectorAll('#log .how')].at(-1).textContent"))

        def idle():
            status = self.cluster.status()
            return status["running"] + status["waiting"] == 0

        self.cluster.await_true(idle, "no request is left", list(self.cluster.processes))

    def test_a_system_prompt_goes_in_front(self):
        self.enter_key()
        self.browser.evaluate("at('settings').open = true; at('system').focus()")
        self.browser.type("You answer in capitals.")
        self.ask(QUESTION, 8)
        self.browser.wait(f"document.querySelectorAll('#log > li').length === 2 && {ANSWERED}")
        answer = self.answer_of([{"role": "system", "content": "You answer in capitals."},
                                 {"role": "user", "content": QUESTION}], 8)
        self.assertEqual(self.texts(), [QUESTION, answer])

    def test_settings_stay_in_the_browser_and_the_key_does_not(self):
        self.enter_key()
        self.browser.evaluate("at('settings').open = true; at('system').focus()")
        self.browser.type("Be brief.")
        self.browser.evaluate("at('tokens').focus(); at('tokens').select()")
        self.browser.type("33")
        self.browser.evaluate("at('prompt').focus()")
        self.reload()
        self.assertEqual(self.browser.evaluate("[at('system').value, at('tokens').value, at('temperature').value]"),
                         ["Be brief.", "33", "0.7"])
        self.assertEqual(self.browser.evaluate("at('key').value"), "")

    def test_a_thought_is_shown_apart(self):
        self.enter_key()
        shown = self.browser.evaluate("""(() => {
            const answer = new Answer();
            answer.add({role: 'assistant', reasoning: 'Is it *two*?'});
            answer.draw();
            const before = [answer.details.hidden, answer.body.textContent];
            answer.add({content: 'Two.'});
            answer.end('length');
            return [before, answer.details.open, answer.thoughtText.innerHTML, answer.body.textContent,
                    answer.how.querySelector('.cut').textContent];
        })()""")
        self.assertEqual(shown, [[False, ""], False, "<p>Is it <em>two</em>?</p>", "Two.", " · cut at the most tokens"])

    def markdown(self, text):
        return self.browser.evaluate(f"""(() => {{
            const all = document.createElement('div');
            all.append(...markdown({json.dumps(text)}));
            return all.innerHTML;
        }})()""")

    def test_markdown_has_lists_in_lists_tables_and_quotes(self):
        self.assertEqual(self.markdown("2. a\n   - b\n\n     more\n     ```\n       x\n     ```\n3. c\n\n---\n> said\n> - d"),
                         '<ol start="2"><li>a<ul><li>b<p>more</p><pre><code>  x</code></pre></li></ul></li><li>c</li></ol><hr>'
                         "<blockquote><p>said</p><ul><li>d</li></ul></blockquote>")
        self.assertEqual(self.markdown("| a | b \\| c |\n|---|:-:|\n| `1` | **2** |\n\nno | table"),
                         "<table><thead><tr><th>a</th><th>b | c</th></tr></thead><tbody><tr><td><code>1</code></td>"
                         "<td><strong>2</strong></td></tr></tbody></table><p>no | table</p>")
        self.assertEqual(self.markdown("> " * 50 + "deep").count("<blockquote>"), 8)

    def test_markdown_is_done_with_whatever_is_written(self):
        # A pattern that went through a text again and again would take longer than the browser is waited for.
        self.browser.evaluate("""(() => {
            for (const text of ['[', '*', '`', '**a ', '`a``b', '> ', '- ', '\\\\', ' - x\\n', '|-', '_ ']) {
                markdown(text.repeat(3000));
            }
        })()""")

    def test_markdown_becomes_elements_and_nothing_else(self):
        text = ("# A *title*\nOne **bold** `x < y`\n- first\n- [link](https://example.org/a)\n\n"
                "1. one\n2) two\n```js\n<b>&\n**\n```\n<img src=x> [bad](javascript:alert(1)) **open")
        self.assertEqual(self.markdown(text), '<h3>A <em>title</em></h3><p>One <strong>bold</strong> <code>x &lt; y</code></p>'
                               '<ul><li>first</li><li><a href="https://example.org/a" rel="noopener noreferrer" '
                               'target="_blank">link</a></li></ul><ol><li>one</li><li>two</li></ol>'
                               '<pre><code>&lt;b&gt;&amp;\n**</code></pre>'
                               '<p>&lt;img src=x&gt; [bad](javascript:alert(1)) **open</p>')

    def test_pools(self):
        self.enter_key()
        self.browser.wait("at('memory').rows.length === 2")
        rows = self.browser.evaluate("""Object.fromEntries(['compute', 'memory'].map((id) =>
            [id, [...at(id).rows].map((r) => [...r.cells].map((c) => c.textContent.trim()))]))""")
        self.assertEqual([r[:2] for r in rows["compute"]], [["c0", "ready"]])
        self.assertEqual([r[:2] for r in rows["memory"]], [["m0", "ready"], ["m1", "ready"]])
        self.assertRegex(rows["memory"][0][3], r"^\d+ of [1-9]\d+$")
        self.assertEqual(self.browser.evaluate("at('running').textContent"), "0")
        self.browser.wait("document.querySelectorAll('#memory-busy rect').length > 1")
        for pool in ("compute", "memory"):
            self.assertRegex(self.browser.evaluate(f"at('{pool}-busy').getAttribute('aria-label')"),
                             rf"^{pool} pool, mean of the last minute \d+% busy, \d+% waiting$")
        self.assertRegex(self.browser.evaluate("at('kv').textContent"), r"^\d+ of [1-9]\d+ tokens \(\d+%\)$")
        self.assertGreaterEqual(self.browser.evaluate("at('lanes').rows.length"), 1)
        self.browser.wait("document.querySelectorAll('#lanes tr:first-child rect').length > 2")
        self.assertRegex(self.browser.evaluate("document.querySelector('#lanes svg').getAttribute('aria-label')"),
                         r"^lane \d+, mean of the last minute \d+\.\d steps/s$")
        self.assertRegex(self.browser.evaluate("at('cost').textContent"), r"^\d+\.\d{3} in, \d+\.\d{3} out$")
        self.assertRegex(self.browser.evaluate("at('cached-cost').textContent"), r"^\d+\.\d{3} cached$")
        self.assertFalse(self.browser.evaluate("at('cost-item').hidden"))
        self.assertIn("measured", self.browser.evaluate("at('cost-item').querySelector('dt').textContent"))
        # Each kind's price is its own, and two numbers with three decimals stand on one line.
        self.assertEqual(self.browser.evaluate("""(() => {
            const cost = {per_million_input: 1.5, per_million_output: 22.25, per_million_cached: 0.125};
            show({...before.status, cost});
            return [at('cost').textContent, at('cached-cost').textContent];
        })()"""), ["1.500 in, 22.250 out", "0.125 cached"])
        self.assertLess(self.browser.evaluate("at('cost').textContent = '1117.636 in, 12245.303 out';"
                                              "at('cost').getBoundingClientRect().height"), 40)

    def test_waits_are_of_the_time_since_the_last_look(self):
        # Of a node that reports 2 s more, of which 0.5 s for the other pool; one that is new has waited for nobody.
        self.assertEqual(self.browser.evaluate("""(() => {
            const node = (dense, attention) => ({name: 'c', part_seconds: {dense, wait_attention: attention, wait_plan: 1}});
            before = {status: {nodes: [node(10, 5)]}, time: 0};
            const weights = {name: 'c', part_seconds: {dense: 11.5, wait_attention: 5, wait_plan: 1, wait_weights: 1.5}};
            before.status.nodes[0].part_seconds.wait_weights = 1;
            return [waitShare(node(11.5, 5.5)), waitShare({...node(1, 1), name: 'new'}), waitShare(node(0, 0)), waitShare(weights)];
        })()"""), [0.25, 0, 0, 0.25])

    def test_lanes_show_their_steps_of_the_last_minute(self):
        # Lane 0 makes 4 steps in 2 s, then 8; lane 1 rests, then begins anew. Heights are shares of the most.
        self.assertEqual(self.browser.evaluate("""(() => {
            const look = (time, ...steps) => {
                const status = {lanes: steps.map((step, lane) => ({lane, step, rows: 1, context_tokens: 9}))};
                showLanes(status, time);
                before = {status, time};
            };
            before = null;
            laneMinutes = new Map();
            look(0, 10, 7);
            look(2000, 14, 7);
            look(4000, 22, 1);
            return [...at('lanes').rows].map((row) => [row.cells[3].textContent,
                row.querySelector('svg').getAttribute('aria-label'),
                ...[...row.querySelectorAll('rect')].map((bar) => Number(bar.getAttribute('height')))]);
        })()"""), [["4.0", "lane 0, mean of the last minute 2.0 steps/s", 0.2, 10, 20],
                   ["0.0", "lane 1, mean of the last minute 0.0 steps/s", 0.2, 0.2, 0.2]])

    def test_without_a_key_it_says_so(self):
        self.browser.wait("!at('key-field').hidden")
        # The field is there before the reason, whose text is read from the answer.
        self.browser.wait("at('state').textContent.includes('API key')")
        self.ask(QUESTION, 4)
        self.assertIn("API key", self.browser.wait("at('note').textContent"))
        self.browser.wait(ANSWERED)
        # The question is still there, and the note goes with its cause.
        self.assertEqual(self.browser.evaluate("at('prompt').value"), QUESTION)
        self.assertEqual(self.texts(), [])
        self.enter_key()
        self.browser.wait("at('note').textContent === ''")

    def test_nothing_but_the_gateway_is_asked_and_no_markup_is_run(self):
        self.enter_key()
        self.ask("<img src=x onerror='window.bad = 1'><b>hi</b>", 4)
        self.browser.wait(f"document.querySelectorAll('#log > li').length === 2 && {ANSWERED}")
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
        self.picture("page_narrow.png")
        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 320)


if __name__ == "__main__":
    unittest.main()
