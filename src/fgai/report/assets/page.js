// The page: the answer first, then one neighbourhood; the rest is folded.
function bar(value, name) {
  const width = `${100 * Math.max(0, Math.min(1, value))}%`;
  const filled = make("rect", { class: name, width, height: "100%" });
  const svg = make("svg", { width: "100%", height: 12, "aria-hidden": "true" }, filled);
  return [make("span", {}, name), svg, make("span", { class: "value" }, `${(100 * value).toFixed(1)} %`)];
}

function bars({ label, term: named, before, after }) {
  const head = make("p", {}, term(label, shown.glossary[named]));
  const rows = [["before", before], ["after", after]].filter(([, value]) => value !== null);
  const grid = make("div", { class: "bar" }, ...rows.flatMap(([name, value]) => bar(value, name)));
  return make("div", {}, head, grid);
}

function light({ name, value, tone, symbol, sentence }) {
  const lamp = make("span", { class: `lamp ${tone}`, "aria-hidden": "true" }, symbol);
  const word = make("span", { class: "word" }, explained(name), `: ${value}`);
  return make("li", {}, lamp, word, make("span", { class: "reason" }, sentence));
}

function modelCard({ model, tone, line, lights, notes, proved, bars: pairs }) {
  const more = [proved, ...notes].map((note) => make("p", { class: "about" }, note));
  return make(
    "div",
    { class: `card ${tone}` },
    make("div", { class: "top" }, make("h3", { title: model }, model), make("p", { class: "answer" }, line)),
    make("ul", { class: "lights" }, ...lights.map(light)),
    make("div", { class: "bars" }, ...pairs.map(bars)),
    make("details", {}, make("summary", {}, "What is proved, and notes"), ...more),
  );
}

// Text between backticks is code.
function coded(text) {
  return text.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part));
}

function step({ model, text }) {
  return make("li", {}, ...(shown.models.length > 1 ? [make("b", {}, model), ": "] : []), ...coded(text));
}

document.title = `${shown.title}: ${document.title}`;
document.getElementById("headline").textContent = shown.headline;
main.replaceChildren(make("p", { class: "about" }, shown.setting));
const cards = make("div", { class: "cards" }, ...shown.cards.map(modelCard));
main.append(make("section", { id: "grades", "aria-label": "Grades" }, cards));
startTheme();
molecules();
neighbourhoods();
fold("next", "What to do next", make("ul", {}, ...shown.next.map(step)));
shown.tables.forEach((one, place) => fold(`table-${place}`, one.title, table(one.head, one.rows)));
charts();
moved();
fold("glossary", "Glossary", pairs(Object.entries(shown.glossary)));
fold("provenance", "How it was made", pairs([...shown.provenance, ["drawn by", shown.libraries.join(", ")]]));
