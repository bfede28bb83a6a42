// SPDX-License-Identifier: Apache-2.0
//
// The gateway's page: a chat over /v1/chat/completions, and the pools from /v1/lamina/status. What
// comes from the model or the cluster becomes text, or elements of markdown.js; never markup.
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

// --- Settings, kept in this browser; the key is not ---

function kept(id) {
  try {
    return localStorage.getItem(`lamina.${id}`);
  } catch {
    return null; // The browser keeps nothing of this page.
  }
}

for (const id of ["system", "temperature", "tokens"]) {
  at(id).value = kept(id) ?? at(id).value;
  at(id).addEventListener("change", () => {
    try {
      localStorage.setItem(`lamina.${id}`, at(id).value);
    } catch {
      // As above.
    }
  });
}

// --- The conversation ---

// Changes the log and shows its end, unless somebody has scrolled up to read.
function changeLog(change) {
  const log = at("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (atEnd) {
    log.scrollTop = log.scrollHeight;
  }
}

function classed(name, made) {
  made.className = name;
  return made;
}

function addMessage(role, ...content) {
  const who = classed("who", element("span", role === "user" ? "You" : "Model"));
  const item = classed(role, element("li", who, ...content));
  changeLog(() => at("log").append(item));
  return item;
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

// Calls onDelta with each piece; returns why the answer ended.
async function stream(body, onDelta) {
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
      onDelta(choice.delta);
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

// A message of the model, as it comes: its thought, if it has one, its text, and how fast it came.
class Answer {
  text = "";
  thought = "";
  pace = new Pace();
  frame = undefined; // The one that will draw what has come.

  constructor() {
    this.thoughtText = classed("text", element("div"));
    this.details = classed("thought", element("details", element("summary", "Thought"), this.thoughtText));
    this.details.hidden = true;
    this.body = classed("text", element("div"));
    this.how = classed("how", element("span"));
    this.item = addMessage("assistant", this.details, this.body, this.how);
  }

  get begun() {
    return this.text !== "" || this.thought !== "";
  }

  add(delta) {
    const [text, thought] = [delta.content ?? "", delta.reasoning ?? ""];
    if (text || thought) {
      this.pace.add();
    }
    this.text += text;
    this.thought += thought;
    // Once a frame: a long answer is not laid out for each of its tokens.
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
    changeLog(() => {
      this.details.hidden = this.thought === "";
      this.thoughtText.replaceChildren(...markdown(this.thought));
      this.body.dataset.source = this.text;
      this.body.replaceChildren(...markdown(this.text));
      this.how.textContent = String(this.pace);
    });
  }

  end(reason) {
    this.draw();
    if (CUTS[reason]) {
      this.how.append(classed("cut", element("span", `${this.begun ? " · " : ""}${CUTS[reason]}`)));
    }
  }
}

async function send(text) {
  const mine = new AbortController();
  setAnswering(mine);
  note("");
  const messages = [...conversation, { role: "user", content: text }];
  const asked = addMessage("user", classed("text", element("div", text)));
  const answer = new Answer();
  let end = null;
  try {
    model ??= (await get("/v1/models")).data[0].id;
    end = await stream(bodyOf(messages), (delta) => answer.add(delta));
  } catch (error) {
    end = error.name === "AbortError" ? "stopped" : "failed";
    if (end === "failed" && answering === mine) {
      note(error.message, "answer");
    }
  }
  if (answering !== mine) {
    return; // A new chat has begun.
  }
  if (!answer.begun && ["stopped", "failed"].includes(end)) {
    // The question goes back to where it can be sent again.
    asked.remove();
    answer.item.remove();
    at("prompt").value ||= text;
  } else {
    answer.end(end);
    conversation.push({ role: "user", content: text }, { role: "assistant", content: answer.text });
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

function busy(share) {
  const meter = element("meter");
  meter.max = 1;
  meter.value = share;
  meter.setAttribute("aria-hidden", "true"); // The text says it.
  const both = document.createDocumentFragment();
  both.append(meter, element("span", ` ${Math.round(share * 100)}%`));
  return both;
}

function row(node) {
  const name = element("th", node.name);
  name.scope = "row";
  const last =
    node.role === "memory" ? `${node.slots_used} of ${node.slots_total}` : bytes(node.bytes_sent);
  return element("tr", name, element("td", node.state), element("td", busy(node.busy_share)), element("td", last));
}

// So that a screen reader is not told again what has not changed.
function setText(id, text) {
  if (at(id).textContent !== text) {
    at(id).textContent = text;
  }
}

const MINUTE = 60; // Looks, one a second.
const SVG = "http://www.w3.org/2000/svg";
const minutes = { compute: [], memory: [] };
let before = null; // The last status, and when it came.

// What share of the time since the last look a node stood still for the other pool, a replica, or weights.
function waitShare(node) {
  const earlier = before?.status.nodes.find((other) => other.name === node.name)?.part_seconds ?? {};
  let [waits, all] = [0, 0];
  for (const [part, seconds] of Object.entries(node.part_seconds)) {
    const grown = Math.max(0, seconds - (earlier[part] ?? seconds));
    all += grown;
    waits += ["wait_attention", "wait_query", "wait_replica", "wait_weights"].includes(part) ? grown : 0;
  }
  return all > 0 ? waits / all : 0;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);

function bar(kind, x, from, share) {
  const made = document.createElementNS(SVG, "rect");
  const height = 20 * share;
  for (const [name, value] of [["class", kind], ["x", x], ["y", 20 - 20 * from - height], ["width", 0.8], ["height", height]]) {
    made.setAttribute(name, String(value));
  }
  return made;
}

// The mean shares of a pool's nodes, as the newest bar at the right: busy, and above it waiting.
function showPool(pool, nodes) {
  const busyShare = Math.min(1, mean(nodes.map((node) => node.busy_share)));
  minutes[pool].push({ busy: busyShare, waits: Math.min(1 - busyShare, mean(nodes.map(waitShare))) });
  minutes[pool].splice(0, minutes[pool].length - MINUTE);
  const first = MINUTE - minutes[pool].length;
  const bars = minutes[pool].flatMap(({ busy, waits }, i) => [
    bar("busy", first + i, 0, Math.max(0.01, busy)),
    bar("waits", first + i, busy, waits),
  ]);
  const percent = (of) => Math.round(100 * mean(minutes[pool].map((look) => look[of])));
  at(`${pool}-busy`).replaceChildren(...bars);
  const words = `${percent("busy")}% busy, ${percent("waits")}% waiting`;
  at(`${pool}-busy`).setAttribute("aria-label", `${pool} pool, mean of the last minute ${words}`);
  setText(`${pool}-words`, words);
}

// By lane: its steps per second, a look each.
let laneMinutes = new Map();

// Adds the steps since the last look. A lane that is new, or began anew, has made none.
function noteSteps(lanes, now) {
  const seconds = before === null ? 0 : (now - before.time) / 1000;
  laneMinutes = new Map(lanes.map(({ lane, step }) => {
    const earlier = before?.status.lanes.find((other) => other.lane === lane);
    const steps = earlier && step >= earlier.step && seconds > 0 ? (step - earlier.step) / seconds : 0;
    return [lane, [...(laneMinutes.get(lane) ?? []), steps].slice(-MINUTE)];
  }));
}

// A lane's minute, as high as it can be in the second of `most` steps, the most of any lane.
function laneStrip(lane, most) {
  const steps = laneMinutes.get(lane);
  const strip = document.createElementNS(SVG, "svg");
  const words = `lane ${lane}, mean of the last minute ${mean(steps).toFixed(1)} steps/s`;
  for (const [name, value] of [["role", "img"], ["viewBox", "0 0 60 20"], ["preserveAspectRatio", "none"], ["aria-label", words]]) {
    strip.setAttribute(name, value);
  }
  const first = MINUTE - steps.length;
  strip.append(...steps.map((count, i) => bar("busy", first + i, 0, Math.max(0.01, count / most))));
  return strip;
}

function showLanes(status, now) {
  noteSteps(status.lanes, now);
  const most = Math.max(1, ...[...laneMinutes.values()].flat());
  const rows = status.lanes.map((lane) => {
    const name = element("th", `${lane.lane}${lane.prefill ? " prompts" : ""}`);
    name.scope = "row";
    const figures = [lane.rows, lane.context_tokens, laneMinutes.get(lane.lane).at(-1).toFixed(1)];
    const minute = element("td", "");
    minute.append(laneStrip(lane.lane, most));
    return element("tr", name, ...figures.map((figure) => element("td", String(figure))), minute);
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
  at("cost-item").hidden = status.cost === null;
  if (status.cost !== null) {
    const { per_million_input: input, per_million_output: output, per_million_cached: cached } = status.cost;
    setText("cost", `${input.toFixed(3)} in, ${output.toFixed(3)} out`);
    setText("cached-cost", `${cached.toFixed(3)} cached`);
  }
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
