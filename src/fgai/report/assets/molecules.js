// What a model attends to in one graph, such as a molecule: a panel a model, before and after, atoms at the same places.
const UNIT = 44; // pixels of a mean bond
const WIDEST = 16; // pixels of the largest weight
const ORDERS = { single: 1, double: 2, triple: 3 };
const ELEMENTS = { N: 0, P: 1, S: 4, O: 5, F: 6, Cl: 6, Br: 6, I: 6 }; // colours; every atom has its name too

const graphViewsOf = (graph) =>
  shown.models.filter((model) => shown.graphs[model][graph]).map((model) => [model, shown.graphs[model][graph]]);
const keptGraphs = () => [...new Set(shown.models.flatMap((model) => Object.keys(shown.graphs[model])))].map(Number);
const graphOf = (node) =>
  shown.models
    .flatMap((model) => Object.values(shown.graphs[model]))
    .find((view) => view.atoms.some(([atom]) => atom === node))?.graph;
const told = (weight) => (weight === null ? "not there" : short(weight));
const namedAtom = (atom) => (atom[1] ? `${atom[1]} ${called(atom[0])}` : called(atom[0]));

// The bonds of one panel: both directions of a pair together.
function bondsOf(view, after) {
  const pairs = new Map();
  for (const bond of view.bonds) {
    const weight = bond[after ? 3 : 2];
    if (weight === null || bond[0] === bond[1]) continue;
    const key = [Math.min(bond[0], bond[1]), Math.max(bond[0], bond[1])].join();
    pairs.set(key, [...(pairs.get(key) ?? []), { bond, weight }]);
  }
  return [...pairs.values()];
}

function line(from, to, settings) {
  return make("line", { x1: from.x, y1: from.y, x2: to.x, y2: to.y, ...settings });
}

// One, two or three lines; of an aromatic bond, one is dashed.
function strokes(from, to, kind, name) {
  const aromatic = kind === "aromatic";
  const count = aromatic ? 2 : Object.hasOwn(ORDERS, kind) ? ORDERS[kind] : 1;
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  return [...Array(count).keys()].map((number) => {
    const aside = (5 * (number - (count - 1) / 2)) / length;
    const moved = ({ x, y }) => ({ x: x - aside * (to.y - from.y), y: y + aside * (to.x - from.x) });
    return line(moved(from), moved(to), { class: name + (aromatic && number ? " dashed" : "") });
  });
}

function tellOver(element, ...lines) {
  element.addEventListener("mousemove", (event) => tipAt(event.pageX + 14, event.pageY + 14, lines.join("\n")));
  element.addEventListener("mouseleave", () => (tip.hidden = true));
  return element;
}

function drawnBond(view, directions, places, most) {
  const [source, target, before, , kind, known] = directions[0].bond;
  const [from, to] = [places[source], places[target]];
  const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
  const added = before === null;
  const halves = directions.map(({ bond, weight }) =>
    line(middle, places[bond[1]], { class: "weight", "stroke-width": (WIDEST * Math.max(0, weight)) / most }),
  );
  const atoms = Object.fromEntries(view.atoms.map((atom) => [atom[0], namedAtom(atom)]));
  const lines = directions.map(
    ({ bond }) => `${atoms[bond[1]]} attends to ${atoms[bond[0]]}: before ${told(bond[2])}, attacked ${told(bond[3])}`,
  );
  const notes = [kind && `bond: ${kind}`, known && "known reason", added && "added by the attack"].filter(Boolean);
  const reached = tellOver(line(from, to, { class: "reach" }), ...lines, ...notes);
  return { halves, bonds: strokes(from, to, kind, added ? "added" : known ? "known" : "bond"), reached };
}

function drawnAtom(view, atom, place) {
  const [node, kind, , , known] = atom;
  const own = view.bonds.find(([source, target]) => source === node && target === node);
  const mark = injected(node) ? "added" : known ? "known" : "plain";
  const circle = make("circle", { class: `atom ${mark}`, cx: place.x, cy: place.y, r: kind === "H" ? 7 : kind.length > 1 ? 12 : 10 });
  const look = Object.hasOwn(ELEMENTS, kind) ? `kind${ELEMENTS[kind]}` : kind === "H" ? "small" : "";
  const name = make("text", { x: place.x, y: place.y, class: look }, (kind || String(node)).slice(0, 4));
  const notes = [
    own && `attends to itself: before ${told(own[2])}, attacked ${told(own[3])}`,
    known && "known reason",
    injected(node) && "added by the attack",
  ];
  return tellOver(make("g", {}, circle, name), namedAtom(atom), ...notes.filter(Boolean));
}

function drawing(title, view, after, most, box) {
  const atoms = view.atoms.filter(([node]) => after || !injected(node));
  const places = Object.fromEntries(atoms.map(([node, , x, y]) => [node, { x: UNIT * x, y: UNIT * y }]));
  const drawn = bondsOf(view, after).map((directions) => drawnBond(view, directions, places, most));
  const label = `${title}: ${atoms.length} atoms; the table below has the weights`;
  return make(
    "svg",
    { class: "molecule", viewBox: box.join(" "), role: "img", "aria-label": label },
    ...drawn.flatMap((part) => part.halves),
    ...drawn.flatMap((part) => part.bonds),
    ...drawn.map((part) => part.reached),
    ...atoms.map((atom) => drawnAtom(view, atom, places[atom[0]])),
  );
}

function boxOf(views) {
  const [xs, ys] = [2, 3].map((axis) => views.flatMap((view) => view.atoms.map((atom) => UNIT * atom[axis])));
  const [left, top] = [Math.min(...xs) - 24, Math.min(...ys) - 24];
  return [left, top, Math.max(...xs) - left + 24, Math.max(...ys) - top + 24];
}

function bondTable(named) {
  const head = [
    ...["atom", "attends to", "bond"],
    ...named.flatMap(([model]) => [`${model}, before`, `${model}, attacked`]),
  ];
  const rows = new Map();
  named.forEach(([, view], place) => {
    const atoms = new Map(view.atoms.map((atom) => [atom[0], namedAtom(atom)]));
    const marked = new Set(view.atoms.filter((atom) => atom[4]).map(([node]) => node));
    for (const [source, target, before, after, kind, known] of view.bonds) {
      const key = `${source},${target}`;
      const notes = [kind, (known || (source === target && marked.has(source))) && "known reason"];
      const added = before === null && "added";
      const words = [...notes, added, source === target && "itself"].filter(Boolean).join(", ");
      const empty = Array(2 * named.length).fill("");
      if (!rows.has(key)) rows.set(key, [atoms.get(target), atoms.get(source), words, ...empty]);
      rows.get(key).splice(3 + 2 * place, 2, told(before), told(after));
    }
  });
  return make("details", {}, make("summary", {}, "The weights as a table"), table(head, [...rows.values()]));
}

function showGraph(graph, jump) {
  const named = graphViewsOf(graph);
  const views = named.map(([, view]) => view);
  const most = Math.max(1e-9, ...views.flatMap((view) => view.bonds.filter(notSelf).flatMap((b) => [b[2], b[3]])));
  const box = boxOf(views);
  tip.hidden = true;
  graphs.replaceChildren(
    ...named.flatMap(([model, view]) =>
      [false, true].map((after) => {
        const said = className(after ? view.answer_attacked : view.answer);
        const title = `${model}, ${after ? `attacked (seed ${view.seed})` : "before"}: ${said}`;
        return make("div", { class: "panel" }, make("h3", { title }, title), drawing(title, view, after, most, box));
      }),
    ),
  );
  document.getElementById("scale-high").textContent = short(+most.toPrecision(2));
  document.getElementById("search").value = String(graph);
  const absent = shown.models.filter((model) => !named.some(([other]) => other === model));
  const label = views[0].label === null ? "" : `, true class ${className(views[0].label)}`;
  const changes = named.map(([model, view]) =>
    view.answer === view.answer_attacked
      ? `${model} says ${className(view.answer)}, also under attack`
      : `${model} says ${className(view.answer)}, under attack ${className(view.answer_attacked)}`,
  );
  note.textContent = [
    `Graph ${graph}${label}: ${changes.join("; ")}.`,
    ...(absent.length ? [`This file keeps no picture of it for ${absent.join(", ")}.`] : []),
  ].join(" ");
  seen.replaceChildren(bondTable(named));
  if (jump) document.getElementById("view").scrollIntoView();
}

const notSelf = ([source, target]) => source !== target;

function searchGraph(text) {
  const wanted = text.trim();
  const kept = keptGraphs();
  const found = kept.find((graph) => String(graph) === wanted);
  if (found !== undefined) showGraph(found, false);
  else note.textContent = `No graph ${text} among the ${kept.length} in this file: ${kept.join(", ")}.`;
}

function graphLegend() {
  const views = shown.models.flatMap((model) => Object.values(shown.graphs[model]));
  const [atoms, bonds] = [views.flatMap((view) => view.atoms), views.flatMap((view) => view.bonds)];
  const ring = (name) => ({ class: `atom ${name}`, cx: 20, cy: 8, r: 7 });
  const most = make("span", { id: "scale-high" });
  const scale = make("span", {}, "half of a bond: attention of the atom there to the other one, at most ", most);
  return make(
    "ul",
    { class: "key molecule" },
    sample(scale, "line", { class: "weight", "stroke-width": 12 }),
    ...(bonds.some((bond) => bond[5]) ? [sample("known reason", "line", { class: "known" })] : []),
    ...(atoms.some((atom) => atom[4]) ? [sample("known reason", "circle", ring("known"))] : []),
    sample("bond added by the attack", "line", { class: "added" }),
    sample("atom added by the attack", "circle", ring("added")),
  );
}

function molecules() {
  const kept = keptGraphs();
  if (!kept.length) return;
  const options = kept.map((graph) => make("option", { value: graph }));
  viewer("What the model attends to in one graph", "Graph", options, searchGraph, graphLegend());
  graphs.classList.remove("pairs"); // two wide panels a row, for each model
  showGraph(shown.first_graph ?? kept[0], false);
}
