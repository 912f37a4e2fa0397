// The curves: a card each, drawn by uPlot, with its lines explained and its numbers in a table.
const HEIGHT = 240;
const DASH = [6, 5];
const LINES = 8; // colours in page.css

function axis(label, size) {
  const rule = { stroke: () => colour("rule"), width: 1 };
  const values = (_, splits) => splits.map((value) => (value === null ? "" : short(value)));
  return { label, size, labelSize: 20, stroke: () => colour("ink"), grid: rule, ticks: rule, values };
}

function hue(series) {
  return "line" + (series.group % LINES);
}

function plotted(chart, series) {
  return {
    stroke: () => colour(hue(series)),
    width: 2,
    dash: series.dashed ? DASH : [],
    points: { show: chart.x.length < 30, size: 6 },
  };
}

function draw(chart, holder) {
  const size = () => ({ width: holder.clientWidth || 400, height: HEIGHT }); // 400 while it is folded
  const scale = (name) => ({ distr: chart.log === name ? 3 : 1 });
  const drawable = (y) => (chart.log === "y" ? y.map((value) => (value > 0 ? value : null)) : y);
  const settings = {
    ...size(),
    series: [{}, ...chart.series.map((series) => plotted(chart, series))],
    axes: [axis(chart.across, 34), axis(chart.up, 60)],
    scales: { x: { time: false, ...scale("x") }, y: scale("y") },
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
  };
  const plot = new uPlot(settings, [chart.x, ...chart.series.map((series) => drawable(series.y))], holder);
  themed.push(() => plot.setSize(size()) || plot.redraw());
  new ResizeObserver(() => plot.setSize(size())).observe(holder);
}

function key(series) {
  const dashes = series.dashed ? DASH.join(" ") : "none";
  return sample(series.label, "line", {
    stroke: `var(--${hue(series)})`,
    "stroke-width": 2,
    "stroke-dasharray": dashes,
  });
}

function numbers(chart) {
  const step = Math.ceil(chart.x.length / 40);
  const rows = chart.x.map((x, place) => [x, ...chart.series.map((series) => series.y[place])]);
  const head = [chart.across, ...chart.series.map((series) => series.label)];
  const some = rows.filter((_, place) => place % step === 0);
  return make("details", {}, make("summary", {}, "The numbers"), table(head, some));
}

function charts() {
  const holders = shown.charts.map((chart) =>
    make("div", { role: "img", "aria-label": `${chart.title}: ${chart.about}` }),
  );
  const cards = shown.charts.map((chart, place) =>
    make(
      "div",
      { class: "card" },
      make("h3", {}, explained(chart.title)),
      make("p", { class: "about" }, chart.about),
      holders[place],
      make("ul", { class: "key" }, ...chart.series.map(key)),
      numbers(chart),
    ),
  );
  if (cards.length) fold("charts", "Curves", make("div", { class: "cards" }, ...cards));
  shown.charts.forEach((chart, place) => draw(chart, holders[place]));
}
