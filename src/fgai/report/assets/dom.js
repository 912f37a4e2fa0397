"use strict";
// What every part shares: the record, elements, tables. Every value is written as text, never as markup.
const shown = JSON.parse(document.getElementById("content").textContent);
const main = document.getElementById("main");
const tip = document.getElementById("tip");

const short = (value) => {
  if (value === null || value === undefined) return "–";
  return typeof value === "number" ? String(+value.toPrecision(4)) : String(value);
};

function make(tag, settings, ...children) {
  const svg = ["svg", "g", "text", "line", "path", "rect", "circle"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function section(id, title, ...children) {
  main.append(make("section", { id, "aria-label": title }, make("h2", {}, title), ...children));
}

// A part that is closed until the reader opens it.
function fold(id, title, ...children) {
  const folded = make("details", { class: "fold" }, make("summary", {}, make("h2", {}, title)), ...children);
  main.append(make("section", { id, "aria-label": title }, folded));
}

// A word with its meaning: shown at the pointer, or when the word has the focus.
function term(text, meaning) {
  const word = make("span", { class: "term", tabindex: 0 }, text);
  const tell = () => {
    const box = word.getBoundingClientRect();
    tipAt(box.left + scrollX, box.bottom + scrollY + 4, meaning);
  };
  for (const event of ["mouseenter", "focus", "click"]) word.addEventListener(event, tell);
  for (const event of ["mouseleave", "blur"]) word.addEventListener(event, () => (tip.hidden = true));
  return word;
}

// The text, in which the terms of the glossary have their meaning.
function explained(text) {
  return Object.hasOwn(shown.glossary, text) ? term(text, shown.glossary[text]) : text;
}

function tipAt(x, y, text) {
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = `${Math.max(4, Math.min(x, document.documentElement.clientWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y}px`;
}

function scrolling(label, ...children) {
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, ...children);
}

function table(head, rows) {
  const top = make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)));
  const cell = (value) => {
    if (value?.tip) return make("td", {}, term(value.text, value.tip));
    if (value?.text) return make("td", { class: value.tone }, value.text);
    return make("td", { class: String(value).length > 24 ? "words" : "" }, explained(short(value)));
  };
  const body = rows.map((row) => make("tr", {}, ...row.map(cell)));
  return scrolling(head.join(", "), make("table", {}, make("thead", {}, top), make("tbody", {}, ...body)));
}

// Names and their values.
function pairs(entries) {
  return make("dl", {}, ...entries.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

// A line as it is drawn, and what it means.
function sample(text, shape, settings) {
  const straight = { x1: 2, x2: 38, y1: 8, y2: 8 };
  const drawn = make(shape, shape === "line" ? { ...straight, ...settings } : settings);
  return make("li", {}, make("svg", { width: 40, height: 16, "aria-hidden": "true" }, drawn), text);
}
