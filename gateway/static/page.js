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

// --- The conversation ---

function addMessage(role, text) {
  const item = document.createElement("li");
  item.className = role;
  const who = document.createElement("span");
  who.className = "who";
  who.textContent = role === "user" ? "You" : "Model";
  const body = document.createElement("span");
  body.className = "text";
  body.textContent = text;
  item.append(who, body);
  at("log").append(item);
  at("log").scrollTop = at("log").scrollHeight;
  return body;
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
  for await (const event of eventsOf(response)) {
    if (event.error) {
      throw new Error(event.error.message);
    }
    for (const choice of event.choices) {
      onText(choice.delta.content ?? "");
    }
  }
}

function setAnswering(controller) {
  answering = controller;
  at("send").disabled = controller !== null;
  at("stop").disabled = controller === null;
  // A screen reader waits for the whole answer instead of reading each token.
  at("log").setAttribute("aria-busy", String(controller !== null));
}

async function send(text) {
  const mine = new AbortController();
  setAnswering(mine);
  at("note").textContent = "";
  const messages = [...conversation, { role: "user", content: text }];
  addMessage("user", text);
  const shown = addMessage("assistant", "");
  let answer = "";
  try {
    model ??= (await get("/v1/models")).data[0].id;
    const body = {
      model,
      messages,
      stream: true,
      temperature: at("temperature").valueAsNumber,
      max_tokens: at("tokens").valueAsNumber,
    };
    await stream(body, (piece) => {
      answer += piece;
      shown.textContent = answer;
      at("log").scrollTop = at("log").scrollHeight;
    });
  } catch (error) {
    if (error.name !== "AbortError" && answering === mine) {
      at("note").textContent = error.message;
    }
  }
  if (answering !== mine) {
    return; // A new chat has begun.
  }
  if (answer) {
    conversation.push({ role: "user", content: text }, { role: "assistant", content: answer });
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
  at("note").textContent = "";
  at("prompt").focus();
});

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
  const element = document.createElement(kind);
  element.append(content);
  return element;
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
  const element = document.createElement("tr");
  const name = cell("th", node.name);
  name.scope = "row";
  const last =
    node.role === "memory" ? `${node.slots_used} of ${node.slots_total}` : bytes(node.bytes_sent);
  element.append(name, cell("td", node.state), cell("td", busy(node.busy_share)), cell("td", last));
  return element;
}

// So that a screen reader is not told again what has not changed.
function setText(id, text) {
  if (at(id).textContent !== text) {
    at(id).textContent = text;
  }
}

function show(status) {
  setText("state", status.state);
  setText("model", status.model);
  setText("running", String(status.running));
  setText("waiting", String(status.waiting));
  setText("rate", status.tokens_per_second.toFixed(1));
  setText("epoch", String(status.epoch));
  at("cost-item").hidden = status.cost === null;
  if (status.cost !== null) {
    const { per_million_input: input, per_million_output: output } = status.cost;
    setText("cost", `${input.toFixed(3)} in, ${output.toFixed(3)} out`);
  }
  const isMemory = (node) => node.role === "memory";
  at("memory").replaceChildren(...status.nodes.filter(isMemory).map(row));
  at("compute").replaceChildren(...status.nodes.filter((node) => !isMemory(node)).map(row));
}

async function poll() {
  if (document.visibilityState === "visible") {
    try {
      show(await get("/v1/lamina/status"));
    } catch (error) {
      setText("state", `not known: ${error.message}`);
    }
  }
  setTimeout(poll, POLL_MS);
}

poll();
