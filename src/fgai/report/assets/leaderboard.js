// The leaderboard: a table that filters and sorts, two plots of the rows that it shows, and the details of a row.
const ABOUT = { dataset: "dataset", backbone: "backbone", method: "method", threat: "threat model", seeds: "seeds" };
const SYMBOLS = [
  "M-4 -4H4V4H-4Z",
  "M0 -5L5 4H-5Z",
  "M0 -5.5L5.5 0L0 5.5L-5.5 0Z",
  "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0Z",
  "M-5 -1.5H-1.5V-5H1.5V-1.5H5V1.5H1.5V5H-1.5V1.5H-5Z",
];
const order = { by: "dataset", sign: 1 };
const numberOf = (row, column) => row.values[column]?.[0] ?? null;
const valueOf = (row, column) => row[column] ?? numberOf(row, column);
const nameOf = (row) => `${row.dataset}, ${row.backbone}, ${row.method}, ${row.threat}`;
const hueOf = (group) => `line${group % LINES}`;

function chooser({ name, label, options, chosen }) {
  const all = name === "view" ? [] : [make("option", { value: "" }, "all")];
  const select = make(
    "select",
    { id: name, onchange: fill },
    ...all,
    ...options.map((option) => make("option", { value: option }, option)),
  );
  select.value = chosen;
  return [select, make("label", { for: name }, `${label} `, select)];
}

const choosers = shown.filters.map((filter) => [filter, ...chooser(filter)]);
const [view, viewLabel] = chooser({ name: "view", label: "Columns", options: Object.keys(shown.views), chosen: "Overview" });
const search = make("input", { id: "search", type: "search", oninput: fill });
const reset = make("button", { type: "button", onclick: clear }, "Show all rows");
const head = make("tr", {});
const body = make("tbody", {});
const count = make("p", { class: "about", role: "status" });

function clear() {
  choosers.forEach(([, select]) => (select.value = ""));
  search.value = "";
  fill();
}

function chosenRows() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  return shown.rows.filter(
    (row) =>
      choosers.every(([{ name }, select]) => !select.value || row[name] === select.value) &&
      words.every((word) => nameOf(row).toLowerCase().includes(word)),
  );
}

function cell(row, column) {
  const [, text, place] = row.values[column] ?? [null, "–", ""];
  const sign = shown.places[place];
  if (!sign) return make("td", {}, text);
  return make("td", { class: place }, `${text} `, make("span", { title: sign.meaning, "aria-label": place }, sign.symbol));
}

function line(row, about, columns) {
  const label = `Details of ${nameOf(row)}`;
  const button = make("button", { type: "button", "aria-expanded": "false", "aria-label": label, onclick: toggle }, "+");

  function toggle() {
    const open = button.getAttribute("aria-expanded") === "false";
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "−" : "+";
    if (!open) return whole.nextSibling.remove();
    const told = pairs(row.details.map(([name, place]) => [name, shown.texts[place]]));
    whole.after(make("tr", { class: "more" }, make("td", { colspan: whole.childElementCount }, told)));
  }

  const sign = make("span", { class: "worse", title: row.warning, "aria-label": "warning" }, " ⚠");
  const warning = (name) => (name === "method" && row.warning ? [sign] : []);
  const names = about.map((name) => make("td", {}, String(row[name]), ...warning(name)));
  const numbers = columns.map((column) => cell(row, column));
  const whole = make("tr", {}, make("td", {}, button), ...names, ...numbers);
  return whole;
}

function fill() {
  const columns = shown.views[view.value];
  const fixed = choosers.filter(([, select]) => select.value).map(([{ name }]) => name); // the same in every row
  const about = Object.keys(ABOUT).filter((name) => !fixed.includes(name));
  const titles = Object.fromEntries([
    ...about.map((name) => [name, ABOUT[name]]),
    ...columns.map((name) => [name, shown.columns[name].title]),
  ]);
  if (!(order.by in titles)) Object.assign(order, { by: about[0], sign: 1 });
  const focused = document.activeElement?.closest("th")?.dataset.name;
  const heads = sortableHeads(titles, order, fill, (name) => (shown.columns[name]?.better === "higher" ? -1 : 1));
  heads.forEach((one) => (one.title = shown.columns[one.dataset.name]?.meaning ?? ""));
  const rows = inOrder(chosenRows(), order, heads, valueOf);
  head.replaceChildren(make("td", {}), ...heads);
  heads.find((one) => one.dataset.name === focused)?.firstChild.focus();
  body.replaceChildren(...rows.map((row) => line(row, about, columns)));
  count.textContent = `${rows.length} of ${shown.rows.length} rows.`;
  plots.forEach((plot) => plot(rows));
}

function symbol(context, group, x, y) {
  context.save();
  context.translate(x, y);
  context.scale(devicePixelRatio, devicePixelRatio);
  context.strokeStyle = context.fillStyle = colour(hueOf(group));
  context.globalAlpha = 0.65;
  context.fill(new Path2D(SYMBOLS[group % SYMBOLS.length]));
  context.globalAlpha = 1;
  context.stroke(new Path2D(SYMBOLS[group % SYMBOLS.length]));
  context.restore();
}

// A plot of two columns; `points` follows what the table shows.
function scatter({ title, about, across, up, diagonal }) {
  const holder = make("div", { role: "img", "aria-label": `${title}: ${about} The numbers are in the table.` });
  const none = make("p", { class: "about" }, "No row of the table has both numbers.");
  const card = make("div", { class: "card" }, make("h3", {}, title), make("p", { class: "about" }, about), holder, none);
  let points = [];
  let plot = null;

  function marks(chart) {
    const { left, top, width, height } = chart.bbox;
    chart.ctx.save();
    chart.ctx.beginPath();
    chart.ctx.rect(left, top, width, height);
    chart.ctx.clip();
    if (diagonal) {
      const ends = [-1, 2].map((value) => ["x", "y"].map((scale) => chart.valToPos(value, scale, true)));
      chart.ctx.beginPath();
      ends.forEach((end, place) => (place ? chart.ctx.lineTo(...end) : chart.ctx.moveTo(...end)));
      chart.ctx.strokeStyle = colour("faint");
      chart.ctx.stroke();
    }
    for (const { row, x, y } of points)
      symbol(chart.ctx, row.group, chart.valToPos(x, "x", true), chart.valToPos(y, "y", true));
    chart.ctx.restore();
  }

  function tell(event) {
    const distance = ({ x, y }) =>
      Math.hypot(plot.valToPos(x, "x") - event.offsetX, plot.valToPos(y, "y") - event.offsetY);
    const nearest = points.reduce((best, one) => (best && distance(best) <= distance(one) ? best : one), null);
    tip.hidden = true;
    if (!nearest || distance(nearest) > 12) return;
    const text = [across, up].map((column) => `${shown.columns[column].title}: ${nearest.row.values[column][1]}`);
    tipAt(event.pageX + 12, event.pageY + 12, [nameOf(nearest.row), ...text].join("\n"));
  }

  function data(rows) {
    points = rows
      .map((row) => ({ row, x: numberOf(row, across), y: numberOf(row, up) }))
      .filter(({ x, y }) => x !== null && y !== null)
      .sort((a, b) => a.x - b.x);
    none.hidden = points.length > 0;
    holder.hidden = !points.length;
    return [points.map(({ x }) => x), points.map(({ y }) => y)];
  }

  function draw(rows) {
    const values = data(rows);
    if (plot) return plot.setData(values);
    const size = () => ({ width: holder.clientWidth || 400, height: 320 });
    const settings = {
      ...size(),
      series: [{}, { paths: () => null, points: { show: false } }],
      axes: [axis(shown.columns[across].title, 34), axis(shown.columns[up].title, 60)],
      scales: { x: { time: false, range: padded }, y: { range: padded } },
      legend: { show: false },
      cursor: { show: false },
      hooks: { draw: [marks] },
    };
    plot = new uPlot(settings, values, holder);
    plot.over.addEventListener("mousemove", tell);
    plot.over.addEventListener("mouseleave", () => (tip.hidden = true));
    themed.push(() => plot.redraw());
    new ResizeObserver(() => plot.setSize(size())).observe(holder);
  }
  return [card, draw];
}

// The range of an axis: a little more than the values, so that no mark is cut.
function padded(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const more = 0.06 * (high - low || 1);
  return [low - more, high + more];
}

const made = shown.plots.map(scatter);
const plots = made.map(([, draw]) => draw);
document.title = shown.headline;
document.getElementById("headline").textContent = shown.headline;
main.replaceChildren(make("p", { class: "about" }, shown.about));
const controls = [
  ...choosers.map(([, , label]) => label),
  viewLabel,
  make("label", { for: "search" }, "Search ", search),
  reset,
];
const holder = scrolling("The leaderboard", make("table", {}, make("thead", {}, head), body));
holder.classList.add("tall");
const signs = Object.entries(shown.places).map(([name, { symbol: sign, meaning }]) =>
  make("li", {}, make("span", { class: name }, sign), ` ${meaning}`),
);
signs.push(make("li", {}, make("span", { class: "worse" }, "⚠"), " the score is no evidence of robustness: open the row"));
main.append(
  make(
    "section",
    { id: "board", "aria-label": "The table" },
    make("div", { class: "controls" }, ...controls),
    holder,
    count,
    make("ul", { class: "key" }, ...signs),
  ),
);
const keys = shown.groups.map((name, group) =>
  sample(name, "path", {
    d: SYMBOLS[group % SYMBOLS.length],
    transform: "translate(30 8)",
    fill: `var(--${hueOf(group)})`,
  }),
);
section("plots", "Plots of the rows that the table shows", make("ul", { class: "key" }, ...keys));
main.lastChild.append(make("div", { class: "cards" }, ...made.map(([card]) => card)));
startTheme();
fill();
fold("columns", "What the columns mean", pairs(Object.values(shown.columns).map(({ title, meaning }) => [title, meaning])));
fold("threats", "Threat models", pairs(shown.threats));
fold("provenance", "How it was made", pairs([...shown.provenance, ["drawn by", shown.libraries.join(", ")]]));
