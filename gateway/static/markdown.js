// SPDX-License-Identifier: Apache-2.0
//
// markdown(text): Markdown as models write it, as elements that are made here: headings, lists in
// lists, quotes, tables, fenced code, rules and paragraphs; in them code, bold, emphasis and links to
// http(s). All else stays text: nothing of it is ever parsed as HTML.
"use strict";

const INLINE =
  /\\([!-/:-@[-`{-~])|(`+)(.+?)\2(?!`)|\*\*(\S(?:.*?\S)?)\*\*|\*([^*\s](?:[^*]*[^*\s])?)\*|\[([^[\]]+)\]\((https?:\/\/[^\s)]+)\)/;
const FENCE = /^\s*(`{3,}|~{3,})/;
const HEADING = /^\s*#{1,6}\s+(.*)$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^\s*>\s?(.*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const DEPTH_MAX = 8; // Of lists and quotes in each other; what is deeper is a paragraph.

function element(kind, ...content) {
  const made = document.createElement(kind);
  made.append(...content);
  return made;
}

function link(label, address) {
  const made = element("a", label);
  made.href = address;
  made.rel = "noopener noreferrer";
  made.target = "_blank";
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
    const [whole, escaped, , code, bold, emphasis, label, address] = found;
    parts.push(rest.slice(0, found.index));
    if (escaped !== undefined) {
      parts.push(escaped);
    } else if (code !== undefined) {
      parts.push(element("code", code));
    } else if (bold !== undefined) {
      parts.push(element("strong", ...inline(bold)));
    } else if (emphasis !== undefined) {
      parts.push(element("em", ...inline(emphasis)));
    } else {
      parts.push(link(label, address));
    }
    rest = rest.slice(found.index + whole.length);
  }
  return parts;
}

const blank = (line) => line.trim() === "";
const indentOf = (line) => line.length - line.trimStart().length;
const firstNotBlank = (lines, from) => {
  let at = from;
  while (at < lines.length && blank(lines[at])) {
    at += 1;
  }
  return at;
};

// Each take...() adds what begins at a line to `blocks`, and returns the line behind it; 0 where
// nothing of its kind begins there.

function takeFence(lines, from, blocks) {
  const found = FENCE.exec(lines[from]);
  if (!found) {
    return 0;
  }
  let end = from + 1;
  while (end < lines.length && !lines[end].trimStart().startsWith(found[1])) {
    end += 1;
  }
  blocks.push(element("pre", element("code", lines.slice(from + 1, end).join("\n"))));
  return end + 1;
}

function cellsOf(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

// A line of cells, one of dashes, and lines of cells.
function takeTable(lines, from, blocks) {
  if (from + 1 >= lines.length || !lines[from].includes("|") || !lines[from + 1].includes("-")) {
    return 0;
  }
  const head = cellsOf(lines[from]);
  const dashes = cellsOf(lines[from + 1]);
  if (dashes.length !== head.length || !dashes.every((cell) => /^:?-+:?$/.test(cell))) {
    return 0;
  }
  const row = (kind, cells) => element("tr", ...cells.map((cell) => element(kind, ...inline(cell))));
  const body = element("tbody");
  let at = from + 2;
  for (; at < lines.length && lines[at].includes("|"); at += 1) {
    body.append(row("td", cellsOf(lines[at]).slice(0, head.length)));
  }
  blocks.push(element("table", element("thead", row("th", head)), body));
  return at;
}

function takeQuote(lines, from, blocks, depth) {
  const inner = [];
  let at = from;
  for (let found; at < lines.length && (found = QUOTE.exec(lines[at])); at += 1) {
    inner.push(found[1]);
  }
  if (inner.length > 0) {
    blocks.push(element("blockquote", ...blocksOf(inner, depth + 1)));
  }
  return inner.length > 0 ? at : 0;
}

// What is indented further than an item's mark belongs to it, and blank lines before that.
function itemLines(lines, from, indent) {
  let at = from;
  for (;;) {
    const next = firstNotBlank(lines, at);
    if (next === lines.length || indentOf(lines[next]) <= indent) {
      break;
    }
    at = next + 1;
  }
  const inner = lines.slice(from, at);
  const least = inner.filter((line) => !blank(line)).reduce((a, line) => Math.min(a, indentOf(line)), Infinity);
  return { end: at, inner: inner.map((line) => line.slice(Math.min(least, indentOf(line)))) };
}

function takeList(lines, from, blocks, depth) {
  const itemAt = (at) => (at < lines.length && !RULE.test(lines[at]) ? ITEM.exec(lines[at]) : null);
  const numbered = (item) => /\d/.test(item[2]);
  const first = itemAt(from);
  if (!first) {
    return 0;
  }
  const list = element(numbered(first) ? "ol" : "ul");
  if (numbered(first) && parseInt(first[2], 10) !== 1) {
    list.start = parseInt(first[2], 10);
  }
  let at = from;
  for (let item = first; item && item[1] === first[1] && numbered(item) === numbered(first); item = itemAt(at)) {
    const { end, inner } = itemLines(lines, at + 1, first[1].length);
    const content = blocksOf([item[3], ...inner], depth + 1);
    const lead = content[0]?.localName === "p" ? [...content.shift().childNodes] : [];
    list.append(element("li", ...lead, ...content));
    at = itemAt(firstNotBlank(lines, end)) ? firstNotBlank(lines, end) : end;
  }
  blocks.push(list);
  return at;
}

function takeLine(line, blocks) {
  const heading = HEADING.exec(line);
  if (heading) {
    blocks.push(element("h3", ...inline(heading[1])));
  } else if (RULE.test(line)) {
    blocks.push(element("hr"));
  }
  return Boolean(heading) || RULE.test(line);
}

function blocksOf(lines, depth) {
  const blocks = [];
  let paragraph = [];
  const endParagraph = () => {
    if (paragraph.length > 0) {
      blocks.push(element("p", ...inline(paragraph.join("\n"))));
    }
    paragraph = [];
  };
  for (let at = 0; at < lines.length; ) {
    const found = [];
    let next = takeFence(lines, at, found) || (takeLine(lines[at], found) ? at + 1 : 0);
    if (!next && depth < DEPTH_MAX) {
      next = takeTable(lines, at, found) || takeQuote(lines, at, found, depth) || takeList(lines, at, found, depth);
    }
    if (next || blank(lines[at])) {
      endParagraph();
      blocks.push(...found);
    } else {
      paragraph.push(lines[at]);
    }
    at = next || at + 1;
  }
  endParagraph();
  return blocks;
}

function markdown(text) {
  return blocksOf(text.split("\n"), 0);
}
