// SPDX-License-Identifier: Apache-2.0
//
// The gateway's page: a chat over /v1/chat/completions, and the pools from /v1/lamina/status. What
// comes from the model or the cluster becomes text, never markup.
"use strict";

const POLL_MS = 1000;

const at = (id) => document.getElementById(id);
const conversation = [];
let model = null;
let answering = null; // AbortController of the answer that is coming.

function headers() {
  const key = at("key").value;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function failureOf(response) {
  if (response.status === 401) {
    at("key-field").hidden = false;
  }
  try {
    return (await response.json()).error.message;
  } catch {
    return `HTTP ${response.status}`;
  }
}

async function get(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) {
    throw new Error(await failureOf(response));
  }
  return response.json();
}

// --- Markdown ---
//
// What models write of it, into elements made here: headings, lists, fenced code, paragraphs; in them
// code, bold, emphasis and links to http(s). All else stays text.

const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|\*([^*\s][^*]*?)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/;
const MARKED = /^(?:(#{1,6})\s+(.*)|[-*+]\s+(.*)|\d{1,9}[.)]\s+(.*)|(`{3,}|~{3,})(.*))$/;

function element(kind, ...content) {
  const made = document.createElement(kind);
  made.append(...content);
  return made;
}

function inline(text) {
  const parts = [];
  for (let rest = text; rest; ) {
    const found = INLINE.exec(rest);
    if (!found) {
      parts.push(rest);
      break;
    }
    const [whole, , code, bold, emphasis, label, address] = found;
    parts.push(rest.slice(0, found.index));
    if (code !== undefined) {
      parts.push(element("code", code));
    } else if (bold !== undefined) {
      parts.push(element("strong", ...inline(bold)));
    } else if (emphasis !== undefined) {
      parts.push(element("em", ...inline(emphasis)));
    } else {
      const link = element("a", label);
      link.href = address;
      link.rel = "noopener noreferrer";
      link.target = "_blank";
      parts.push(link);
    }
    rest = rest.slice(found.index + whole.length);
  }
  return parts;
}

// The lines of a fence, from the one behind it on; returns where they end.
function fenced(lines, from, fence, blocks) {
  let end = from;
  while (end < lines.length && !lines[end].trimEnd().startsWith(fence)) {
    end += 1;
  }
  blocks.push(element("pre", element("code", lines.slice(from, end).join("\n"))));
  return end;
}

function markdown(text) {
  const blocks = [];
  const lines = text.split("\n");
  let paragraph = [];
  const endParagraph = () => {
    if (paragraph.length > 0) {
      blocks.push(element("p", ...inline(paragraph.join("\n"))));
    }
    paragraph = [];
  };
  const addItem = (kind, content) => {
    const last = blocks.at(-1);
    const list = paragraph.length === 0 && last?.localName === kind ? last : element(kind);
    endParagraph();
    list.append(element("li", ...inline(content)));
    if (list !== last) {
      blocks.push(list);
    }
  };
  for (let at = 0; at < lines.length; at += 1) {
    const found = MARKED.exec(lines[at].trim());
    if (!found) {
      if (lines[at].trim()) {
        paragraph.push(lines[at]);
      } else {
        endParagraph();
      }
      continue;
    }
    const [, heading, title, bullet, number, fence] = found;
    if (bullet !== undefined || number !== undefined) {
      addItem(bullet !== undefined ? "ul" : "ol", bullet ?? number);
      continue;
    }
    endParagraph();
    if (heading !== undefined) {
      blocks.push(element("h3", ...inline(title)));
    } else {
      at = fenced(lines, at + 1, fence, blocks);
    }
  }
  endParagraph();
  return blocks;
}

// --- Notes ---

let noteCause = ""; // Which poll or answer clears it.

function note(text, cause = "") {
  at("note").textContent = text;
  noteCause = cause;
}

function clearNote(cause) {
  if (noteCause === cause) {
    note("");
  }
}

// --- The conversation ---

function addMessage(role, text) {
  const item = document.createElement("li");
  item.className = role;
  const who = element("span", role === "user" ? "You" : "Model");
  who.className = "who";
  const body = element("div", text);
  body.className = "text";
  const how = element("span");
  how.className = "how";
  item.append(who, body, how);
  at("log").append(item);
  at("log").scrollTop = at("log").scrollHeight;
  return { item, body, how };
}

// The objects of an event stream, as they come.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      throw new Error("the connection ended before the answer did");
    }
    waiting += value;
    const events = waiting.split("\n\n");
    waiting = events.pop();
    for (const event of events) {
      if (event === "data: [DONE]") {
        return;
      }
      if (event.startsWith("data: ")) {
        yield JSON.parse(event.slice(6));
      }
    }
  }
}

// Calls onText with each piece; returns why the answer ended.
async function stream(body, onText) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(body),
    signal: answering.signal,
  });
  if (!response.ok) {
    throw new Error(await failureOf(response));
  }
  let reason = null;
  for await (const event of eventsOf(response)) {
    if (event.error) {
      throw new Error(event.error.message);
    }
    for (const choice of event.choices) {
      reason = choice.finish_reason ?? reason;
      onText(choice.delta.content ?? "");
    }
  }
  return reason;
}

function setAnswering(controller) {
  answering = controller;
  at("send").disabled = controller !== null;
  at("stop").disabled = controller === null;
  // A screen reader waits for the whole answer instead of reading each token.
  at("log").setAttribute("aria-busy", String(controller !== null));
}

// How fast an answer came: pieces are tokens, or a few of them where they make one character.
class Pace {
  begun = performance.now();
  first = null;
  last = null;
  pieces = 0;

  add() {
    this.last = performance.now();
    this.first ??= this.last;
    this.pieces += 1;
  }

  toString() {
    if (this.first === null) {
      return "";
    }
    const first = `first token after ${((this.first - this.begun) / 1000).toFixed(2)} s`;
    const rate = ((this.pieces - 1) * 1000) / (this.last - this.first);
    return this.pieces > 1 && Number.isFinite(rate) ? `${first}, then ${rate.toFixed(1)} tokens/s` : first;
  }
}

function bodyOf(messages) {
  const system = at("system").value.trim();
  return {
    model,
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    temperature: at("temperature").valueAsNumber,
    max_tokens: at("tokens").valueAsNumber,
  };
}

const CUTS = { length: "cut at the most tokens", stopped: "stopped", failed: "ended early" };

function showEnd(shown, pace, end) {
  shown.how.replaceChildren(String(pace));
  if (CUTS[end]) {
    const cut = element("span", `${pace.first === null ? "" : " · "}${CUTS[end]}`);
    cut.className = "cut";
    shown.how.append(cut);
  }
}

async function send(text) {
  const mine = new AbortController();
  setAnswering(mine);
  note("");
  const messages = [...conversation, { role: "user", content: text }];
  const asked = addMessage("user", text);
  const shown = addMessage("assistant", "");
  const pace = new Pace();
  let answer = "";
  let end = null;
  try {
    model ??= (await get("/v1/models")).data[0].id;
    end = await stream(bodyOf(messages), (piece) => {
      if (piece) {
        pace.add();
      }
      answer += piece;
      shown.body.dataset.source = answer;
      shown.body.replaceChildren(...markdown(answer));
      shown.how.textContent = String(pace);
      at("log").scrollTop = at("log").scrollHeight;
    });
  } catch (error) {
    end = error.name === "AbortError" ? "stopped" : "failed";
    if (end === "failed" && answering === mine) {
      note(error.message, "answer");
    }
  }
  if (answering !== mine) {
    return; // A new chat has begun.
  }
  if (answer) {
    showEnd(shown, pace, end);
    conversation.push({ role: "user", content: text }, { role: "assistant", content: answer });
  } else {
    // The question goes back to where it can be sent again.
    asked.item.remove();
    shown.item.remove();
    at("prompt").value ||= text;
  }
  setAnswering(null);
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("prompt").value.trim();
  if (text && answering === null) {
    at("prompt").value = "";
    send(text);
  }
});

at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("form").requestSubmit();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    answering?.abort();
  }
});

at("stop").addEventListener("click", () => answering?.abort());

at("clear").addEventListener("click", () => {
  answering?.abort();
  setAnswering(null);
  conversation.length = 0;
  at("log").replaceChildren();
  note("");
  at("prompt").focus();
});

for (const id of ["prompt", "key"]) {
  at(id).addEventListener("input", () => clearNote("answer"));
}

// --- The pools ---

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit + 1 < units.length) {
    count /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? count : count.toFixed(1)} ${units[unit]}`;
}

function cell(kind, content) {
  return element(kind, content);
}

function busy(share) {
  const meter = document.createElement("meter");
  meter.max = 1;
  meter.value = share;
  const text = document.createElement("span");
  text.textContent = ` ${Math.round(share * 100)}%`;
  meter.setAttribute("aria-hidden", "true"); // The text says it.
  const both = document.createDocumentFragment();
  both.append(meter, text);
  return both;
}

function row(node) {
  const line = document.createElement("tr");
  const name = cell("th", node.name);
  name.scope = "row";
  const last =
    node.role === "memory" ? `${node.slots_used} of ${node.slots_total}` : bytes(node.bytes_sent);
  line.append(name, cell("td", node.state), cell("td", busy(node.busy_share)), cell("td", last));
  return line;
}

// So that a screen reader is not told again what has not changed.
function setText(id, text) {
  if (at(id).textContent !== text) {
    at(id).textContent = text;
  }
}

const MINUTE = 60; // Looks, one a second.
const SVG = "http://www.w3.org/2000/svg";
const history = { compute: [], memory: [] };
let before = null; // The last status, and when it came.

// The mean share of a pool's nodes, as the newest bar at the right.
function showPool(pool, nodes) {
  const mean = nodes.reduce((sum, node) => sum + node.busy_share, 0) / Math.max(1, nodes.length);
  history[pool].push(mean);
  history[pool].splice(0, history[pool].length - MINUTE);
  const first = MINUTE - history[pool].length;
  const bars = history[pool].map((share, i) => {
    const bar = document.createElementNS(SVG, "rect");
    const height = Math.max(0.2, 20 * Math.min(1, share));
    for (const [name, value] of [["x", first + i], ["y", 20 - height], ["width", 0.8], ["height", height]]) {
      bar.setAttribute(name, String(value));
    }
    return bar;
  });
  const minute = history[pool].reduce((sum, share) => sum + share, 0) / history[pool].length;
  at(`${pool}-busy`).replaceChildren(...bars);
  at(`${pool}-busy`).setAttribute("aria-label", `${pool} pool, mean of the last minute ${Math.round(minute * 100)}%`);
}

function showLanes(status, now) {
  const seconds = before === null ? 0 : (now - before.time) / 1000;
  const rows = status.lanes.map((lane) => {
    const earlier = before?.status.lanes.find((other) => other.lane === lane.lane);
    const steps = earlier && lane.step >= earlier.step && seconds > 0 ? (lane.step - earlier.step) / seconds : 0;
    const name = cell("th", `${lane.lane}${lane.prefill ? " prompts" : ""}`);
    name.scope = "row";
    const line = document.createElement("tr");
    line.append(name, cell("td", String(lane.rows)), cell("td", String(lane.context_tokens)), cell("td", steps.toFixed(1)));
    return line;
  });
  at("lanes").replaceChildren(...rows);
}

function showKv(memory) {
  const used = memory.reduce((sum, node) => sum + node.slots_used, 0);
  const total = memory.reduce((sum, node) => sum + node.slots_total, 0);
  setText("kv", total === 0 ? "–" : `${used} of ${total} tokens (${Math.round((used / total) * 100)}%)`);
}

function show(status) {
  const now = performance.now();
  setText("state", status.state);
  setText("model", status.model);
  setText("running", String(status.running));
  setText("waiting", String(status.waiting));
  setText("rate", status.tokens_per_second.toFixed(1));
  setText("epoch", String(status.epoch));
  const isMemory = (node) => node.role === "memory";
  const memory = status.nodes.filter(isMemory);
  const compute = status.nodes.filter((node) => !isMemory(node));
  at("memory").replaceChildren(...memory.map(row));
  at("compute").replaceChildren(...compute.map(row));
  showPool("compute", compute);
  showPool("memory", memory);
  showKv(memory);
  showLanes(status, now);
  before = { status, time: now };
}

let lastPollFailed = false;

async function poll() {
  if (document.visibilityState === "visible") {
    try {
      show(await get("/v1/lamina/status"));
      if (lastPollFailed) {
        clearNote("answer"); // The cluster is back, or the key is right.
      }
      lastPollFailed = false;
    } catch (error) {
      lastPollFailed = true;
      setText("state", `not known: ${error.message}`);
    }
  }
  setTimeout(poll, POLL_MS);
}

poll();
