"use strict";
// Draws the record in #content. Every value is written as text, never as markup.
const shown = JSON.parse(document.getElementById("content").textContent);
const main = document.getElementById("main");
const tip = document.getElementById("tip");
const themed = []; // what to do again when the colours change

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const short = (value) => (value === null || value === undefined ? "" : typeof value === "number" ? String(+value.toPrecision(4)) : String(value));

function make(tag, settings, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(settings || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function section(id, title, ...children) {
  main.append(make("section", { id, "aria-label": title }, make("h2", {}, title), ...children));
}

function cell(value) {
  return make("td", { class: typeof value === "number" ? "number" : "" }, short(value));
}

function table(head, rows) {
  const top = make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)));
  const body = rows.map((row) => make("tr", {}, ...row.map(cell)));
  const holder = { class: "scroll", tabindex: 0, role: "region", "aria-label": head.join(", ") };
  return make("div", holder, make("table", {}, make("thead", {}, top), make("tbody", {}, ...body)));
}

// The colours

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  button.textContent = name === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-pressed", String(name === "dark"));
  themed.forEach((redraw) => redraw());
}

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const now = () => document.documentElement.dataset.theme;
  let before = null;
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => setTheme(now() === "dark" ? "light" : "dark"));
  addEventListener("beforeprint", () => { before = now(); setTheme("light"); });
  addEventListener("afterprint", () => setTheme(before));
}

// The charts

function lineStyle(series) {
  return { label: series.label, stroke: () => colour("line" + (series.group % 4)), width: 2,
    dash: series.dashed ? [6, 5] : [], points: { show: series.y.length < 30, size: 6 }, spanGaps: true,
    value: (_, value) => short(value) };
}

function axis(label, of) {
  return { label, stroke: () => colour("ink"), grid: { stroke: () => colour("rule"), width: 1 },
    ticks: { stroke: () => colour("rule") }, labelSize: 20, size: of === "y" ? 56 : 34,
    values: (_, splits) => splits.map((value) => (value === null ? "" : short(value))) };
}

function draw(chart, holder) {
  const options = {
    width: holder.clientWidth, height: 260, series: [{ label: chart.across, value: (_, value) => short(value) }, ...chart.series.map(lineStyle)],
    axes: [axis(chart.across, "x"), axis(chart.up, "y")],
    scales: { x: { time: false, distr: chart.log ? 3 : 1 } }, legend: { live: false },
  };
  const plot = new uPlot(options, [chart.x, ...chart.series.map((series) => series.y)], holder);
  themed.push(() => plot.redraw());
  new ResizeObserver(() => plot.setSize({ width: holder.clientWidth, height: 260 })).observe(holder);
}

function charts() {
  const cards = shown.charts.map((chart) => {
    const holder = make("div", { role: "img", "aria-label": chart.title + ": " + chart.about });
    const rows = chart.x.map((x, place) => [x, ...chart.series.map((series) => series.y[place])]);
    const every = rows.length > 40 ? Math.ceil(rows.length / 40) : 1;
    const numbers = table([chart.across, ...chart.series.map((s) => s.label)], rows.filter((_, place) => place % every === 0));
    const card = make("div", { class: "card" }, make("h3", {}, chart.title), make("p", { class: "about" }, chart.about),
      holder, make("details", {}, make("summary", {}, "The numbers"), numbers));
    return [card, () => draw(chart, holder)];
  });
  if (cards.length) section("charts", "Curves", make("div", { class: "cards" }, ...cards.map(([card]) => card)));
  cards.forEach(([, show]) => show());
}

// The nodes

const called = (node) => (shown.names[node] === undefined ? String(node) : node + " (" + shown.names[node] + ")");
const kept = (node) => shown.models.filter((model) => shown.views[model][node]);

function movedRows(model) {
  return shown.moved[model].map((row) => {
    const changed = row.answers_attacked.filter((answer) => answer !== row.answer).length;
    return { node: row.node, overlap: row.overlap, shift: row.shift, answer: row.answer, changed, said: row.answers_attacked.join(", ") };
  });
}

const COLUMNS = [["node", "node"], ["overlap", "top 5 kept"], ["shift", "attention moved"], ["answer", "class"],
  ["changed", "attacks that change it"], ["said", "classes under attack"]];

function moved() {
  if (!shown.models.some((model) => shown.moved[model].length)) return;
  const state = { model: shown.models[0], by: "overlap", up: true };
  const pick = make("select", { id: "moved-model", onchange: (event) => { state.model = event.target.value; fill(); } },
    ...shown.models.map((model) => make("option", { value: model }, model)));
  const filter = make("input", { id: "moved-filter", type: "search", oninput: () => fill() });
  const only = make("input", { id: "moved-changed", type: "checkbox", onchange: () => fill() });
  const heads = COLUMNS.map(([key, title]) => make("th", { scope: "col", "data-key": key },
    make("button", { type: "button", onclick: () => { state.up = state.by === key ? !state.up : true; state.by = key; fill(); } }, title)));
  const body = make("tbody");
  const count = make("p", { class: "note", role: "status" });

  function fill() {
    const wanted = filter.value.trim().toLowerCase();
    const rows = movedRows(state.model).filter((row) => called(row.node).toLowerCase().includes(wanted) && (!only.checked || row.changed));
    const sign = state.up ? 1 : -1;
    rows.sort((a, b) => sign * (typeof a[state.by] === "string" ? a[state.by].localeCompare(b[state.by]) : a[state.by] - b[state.by]));
    body.replaceChildren(...rows.map((row) => make("tr", {}, ...COLUMNS.map(([key]) => key === "node"
      ? make("td", {}, make("button", { type: "button", onclick: () => show(row.node, true) }, called(row.node))) : cell(row[key])))));
    heads.forEach((head) => head.setAttribute("aria-sort", head.dataset.key !== state.by ? "none" : state.up ? "ascending" : "descending"));
    count.textContent = rows.length + " of " + shown.moved[state.model].length + " nodes kept in this file, of " + shown.nodes + " in the graph.";
  }

  section("moved", "The nodes that moved most",
    make("div", { class: "controls" }, make("label", { for: "moved-model" }, "Model "), pick, make("label", { for: "moved-filter" }, "Filter "), filter,
      make("label", {}, only, " only changed answers")),
    make("div", { class: "scroll moved", tabindex: 0, role: "region", "aria-label": "The nodes that moved most" },
      make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body)), count);
  fill();
}

// One neighbourhood

let panels = [];
const place = { graphs: make("div", { class: "graphs" }), list: make("div"), note: make("p", { class: "note", role: "status" }) };

function fate(view, source) {
  const was = view.top_before.includes(source), is = view.top_after.includes(source);
  return was && is ? "kept" : was ? "lost" : is ? "new" : "other";
}

const FATES = { kept: "in the top 5 before and after", lost: "in the top 5 before, lost", new: "new in the top 5", other: "not in the top 5" };

function elements(view, after, most) {
  const nodes = [view.node, ...view.neighbours.filter((node) => node !== view.node)];
  const links = view.links.filter((link) => link[after ? 3 : 2] !== null && link[0] !== link[1]);
  const there = new Set([view.node, ...links.flatMap((link) => [link[0], link[1]])]);
  return [
    ...nodes.filter((node) => there.has(node)).map((node) => ({ data: { id: String(node) },
      classes: (node === view.node ? "own" : "") + (node >= shown.nodes ? " injected" : "") })),
    ...links.map(([source, target, before, now]) => ({
      data: { id: source + ">" + target, source: String(source), target: String(target), before, now, share: Math.min(1, (after ? now : before) / most) },
      classes: target === view.node ? fate(view, source) : "among" })),
  ];
}

function look() {
  const mix = { "line-color": `mapData(share, 0, 1, ${colour("weak")}, ${colour("strong")})`, "target-arrow-color": `mapData(share, 0, 1, ${colour("weak")}, ${colour("strong")})` };
  return [
    { selector: "node", style: { label: "data(id)", "font-size": 11, color: colour("ink"), width: 16, height: 16, "background-color": colour("faint"),
      "text-valign": "bottom", "text-margin-y": 2 } },
    { selector: ".own", style: { width: 28, height: 28, "background-color": colour("accent"), "border-width": 3, "border-color": colour("ink"), "font-weight": "bold" } },
    { selector: ".injected", style: { shape: "diamond", width: 22, height: 22, "background-color": colour("ground"), "border-width": 3, "border-color": colour("injected") } },
    { selector: "edge", style: { "curve-style": "straight", "target-arrow-shape": "triangle", "arrow-scale": 0.9, ...mix } },
    { selector: ".kept", style: { width: 5, "line-style": "solid" } },
    { selector: ".lost", style: { width: 4, "line-style": "dashed", "line-dash-pattern": [10, 6] } },
    { selector: ".new", style: { width: 4, "line-style": "dotted", "target-arrow-shape": "vee" } },
    { selector: ".other", style: { width: 1.5 } },
    { selector: ".among", style: { width: 1, opacity: 0.35, "curve-style": "haystack", "target-arrow-shape": "none" } },
  ];
}

function layout(views) {
  const important = new Set(views.flatMap((view) => [...view.top_before, ...view.top_after]));
  const all = cytoscape({ headless: true, styleEnabled: true, elements: [...new Set(views.flatMap((view) => [view.node, ...view.neighbours]))].map((node) => ({ data: { id: String(node) } })) });
  const level = (node) => (Number(node.id()) === views[0].node ? 3 : important.has(Number(node.id())) ? 2 : 1);
  all.layout({ name: "concentric", concentric: level, levelWidth: () => 1, minNodeSpacing: 26, boundingBox: { x1: 0, y1: 0, w: 600, h: 600 } }).run();
  return Object.fromEntries(all.nodes().map((node) => [node.id(), { ...node.position() }]));
}

function tell(event, lines) {
  tip.textContent = lines.join("\n");
  tip.hidden = false;
  const { pageX, pageY } = event.originalEvent;
  tip.style.left = Math.max(4, Math.min(pageX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = pageY + 14 + "px";
}

function panel(model, view, after, positions, most) {
  const holder = make("div", { class: "graph", tabindex: 0, role: "application",
    "aria-label": `${model}, ${after ? "after" : "before"}: arrow keys move, plus and minus zoom, 0 shows all; the table below says the same` });
  const title = `${model}, ${after ? "attacked (seed " + view.seed + ")" : "before"}`;
  place.graphs.append(make("div", { class: "panel" }, make("h3", {}, title), holder));
  const cy = cytoscape({ container: holder, elements: elements(view, after, most), style: look(), minZoom: 0.2, maxZoom: 5,
    layout: { name: "preset", positions: (node) => positions[node.id()], padding: 24 } });
  cy.on("mouseover tap", "edge", (event) => {
    const { source, target, before, now } = event.target.data();
    tell(event, [`${called(target)} looks at ${called(source)}`, `before ${before === null ? "not there" : short(before)}, attacked ${now === null ? "not there" : short(now)}`,
      ...(Number(target) === view.node ? [FATES[fate(view, Number(source))]] : ["between neighbours"])]);
  });
  cy.on("mouseover tap", "node", (event) => tell(event, [called(event.target.id()), ...(Number(event.target.id()) >= shown.nodes ? ["injected by the attack"] : [])]));
  cy.on("mouseout", () => { tip.hidden = true; });
  cy.on("viewport", () => together(cy));
  holder.addEventListener("keydown", (event) => steer(cy, event));
  return cy;
}

let moving = false;
function together(leader) {
  if (moving) return;
  moving = true;
  panels.filter((cy) => cy !== leader).forEach((cy) => cy.viewport({ zoom: leader.zoom(), pan: leader.pan() }));
  moving = false;
}

const STEPS = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };
function steer(cy, event) {
  const [x, y] = STEPS[event.key] || [0, 0];
  const middle = { x: cy.width() / 2, y: cy.height() / 2 };
  if (x || y) cy.panBy({ x, y });
  else if (event.key === "+" || event.key === "=") cy.zoom({ level: cy.zoom() * 1.25, renderedPosition: middle });
  else if (event.key === "-") cy.zoom({ level: cy.zoom() / 1.25, renderedPosition: middle });
  else if (event.key === "0") fitAll();
  else return;
  event.preventDefault();
}

function fitAll() {
  if (panels.length) panels[0].viewport({ zoom: 1, pan: { x: 0, y: 0 } });
  const box = panels.map((cy) => cy.elements().boundingBox()).reduce((a, b) => ({ x1: Math.min(a.x1, b.x1), y1: Math.min(a.y1, b.y1), x2: Math.max(a.x2, b.x2), y2: Math.max(a.y2, b.y2) }));
  const first = panels[0], zoom = Math.min((first.width() - 24) / (box.x2 - box.x1), (first.height() - 24) / (box.y2 - box.y1), 2);
  first.viewport({ zoom, pan: { x: first.width() / 2 - zoom * (box.x1 + box.x2) / 2, y: first.height() / 2 - zoom * (box.y1 + box.y2) / 2 } });
}

function neighbours(views) {
  const head = ["neighbour", ...views.flatMap(([model]) => [`${model}: before`, "attacked", "top 5"])];
  const every = [...new Set(views.flatMap(([, view]) => view.links.filter((link) => link[1] === view.node).map((link) => link[0])))];
  const rows = every.map((source) => [called(source) + (source >= shown.nodes ? ", injected" : source === views[0][1].node ? ", itself" : ""), ...views.flatMap(([, view]) => {
    const link = view.links.find(([from, to]) => from === source && to === view.node);
    return [link ? link[2] : null, link ? link[3] : null, link ? fate(view, source) : "not shown"];
  })]);
  return make("details", { open: true }, make("summary", {}, "What it looks at, as a table"), table(head, rows));
}

function show(node, jump) {
  const models = kept(node);
  const views = models.map((model) => [model, shown.views[model][node]]);
  panels.forEach((cy) => cy.destroy());
  place.graphs.replaceChildren();
  tip.hidden = true;
  const positions = layout(views.map(([, view]) => view));
  const most = Math.max(1e-9, ...views.flatMap(([, view]) => view.links.filter((link) => link[1] === view.node && link[0] !== link[1]).flatMap((link) => [link[2] || 0, link[3] || 0])));
  panels = views.flatMap(([model, view]) => [panel(model, view, false, positions, most), panel(model, view, true, positions, most)]);
  fitAll();
  const unseen = views.map(([model, view]) => (view.unseen ? `${view.unseen} more neighbours in ${model}` : "")).filter(Boolean).join(", ");
  const missing = shown.models.filter((model) => !models.includes(model));
  place.note.textContent = `Node ${called(node)}. The darkest edge has weight ${short(most)}.` + (unseen ? ` Not shown: ${unseen}.` : "") +
    (missing.length ? ` It moved little in ${missing.join(", ")}, which keeps no picture of it.` : "");
  place.list.replaceChildren(neighbours(views));
  document.getElementById("search").value = String(node);
  if (jump) document.getElementById("view").scrollIntoView();
}

function search(text) {
  const wanted = text.trim().toLowerCase();
  const nodes = [...new Set(shown.models.flatMap((model) => Object.keys(shown.views[model])))].map(Number);
  const found = nodes.find((node) => String(node) === wanted || String(shown.names[node] || "").toLowerCase() === wanted);
  if (found !== undefined) return show(found, false);
  const beside = nodes.find((node) => kept(node).some((model) => shown.views[model][node].neighbours.some((other) => String(other) === wanted || String(shown.names[other] || "").toLowerCase() === wanted)));
  if (beside !== undefined) {
    show(beside, false);
    place.note.textContent = `${text} has no picture of its own; it is a neighbour of node ${called(beside)}, which is shown.`;
    panels.forEach((cy) => cy.nodes().filter((node) => node.id() === wanted).select());
  } else place.note.textContent = `No node ${text} in this file: it holds the ${nodes.length} that moved most or were asked for, of ${shown.nodes}. Make it again with that node watched (fgai report --node).`;
}

function sample(kind, text) {
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  const shape = document.createElementNS(space, kind === "injected" ? "path" : "line");
  const settings = { kept: { "stroke-width": 5 }, lost: { "stroke-width": 4, "stroke-dasharray": "10 6" }, new: { "stroke-width": 4, "stroke-dasharray": "1 7", "stroke-linecap": "round" },
    other: { "stroke-width": 1.5, class: "faint" }, injected: { d: "M20 1 L27 8 L20 15 L13 8 Z", class: "mark" } }[kind];
  const line = kind === "injected" ? {} : { x1: 2, x2: 38, y1: 8, y2: 8 };
  for (const [name, value] of Object.entries({ ...line, ...settings })) shape.setAttribute(name, value);
  for (const [name, value] of Object.entries({ width: 40, height: 16, "aria-hidden": "true" })) picture.setAttribute(name, value);
  picture.append(shape);
  return make("li", {}, picture, text);
}

function view() {
  const nodes = [...new Set(shown.models.flatMap((model) => Object.keys(shown.views[model])))];
  if (!nodes.length) return;
  const input = make("input", { id: "search", type: "search", list: "known", autocomplete: "off" });
  const form = make("form", { class: "controls", role: "search", onsubmit: (event) => { event.preventDefault(); search(input.value); } },
    make("label", { for: "search" }, "Node "), input, make("datalist", { id: "known" }, ...nodes.map((node) => make("option", { value: node }, shown.names[node] || ""))),
    make("button", { type: "submit" }, "Show"), make("button", { type: "button", onclick: () => fitAll() }, "Show all of it"));
  section("view", "Where one node looks", form, place.note,
    make("ul", { class: "key" }, ...Object.entries(FATES).map(([kind, text]) => sample(kind, text)), sample("injected", "injected by the attack")), place.graphs, place.list);
  const first = shown.moved[shown.models[0]][0];
  show(first ? first.node : Number(nodes[0]), false);
  themed.push(() => panels.forEach((cy) => cy.style(look())));
}

// The page

function verdicts() {
  section("verdict", "Verdict", make("div", { class: "cards" }, ...shown.verdicts.map((verdict) => make("div", { class: "card" }, make("h3", {}, verdict.model),
    make("span", { class: "word " + verdict.word }, verdict.word), make("ul", {}, ...verdict.reasons.map((reason) => make("li", {}, reason))),
    make("p", { class: "about" }, verdict.proved)))));
}

document.title = shown.title + ": " + document.title;
main.replaceChildren(make("p", { class: "about" }, shown.title));
verdicts();
shown.tables.forEach((one, place) => section("table" + place, one.title, table(one.head, one.rows)));
startTheme();
charts();
moved();
view();
section("provenance", "How it was made", make("dl", {}, ...shown.provenance.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])));
