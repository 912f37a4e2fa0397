// One panel: a node's neighbourhood as a graph, drawn by Cytoscape; all panels are moved together.
const DECADES = 3; // of attention, from the darkest line to the faintest
const KINDS = 8; // colours of node types
let panels = [];

const kindOf = (node) => (node in shown.types ? `kind${shown.kinds.indexOf(shown.types[node]) % KINDS}` : "");

function labelled(node) {
  if (!(node in shown.types)) return String(node);
  return injected(node) ? `new ${shown.types[node]}` : String(shown.names[node] ?? node);
}

function elements(view, after, most) {
  const links = view.links.filter((link) => link[after ? 3 : 2] !== null && link[0] !== link[1]);
  const there = new Set([view.node, ...links.flatMap((link) => link.slice(0, 2))]);
  const nodes = [...there].map((node) => ({
    data: { id: String(node), label: labelled(node) },
    classes: [node === view.node ? "own" : "", injected(node) ? "injected" : "", kindOf(node)],
  }));
  const edges = links.map(([source, target, before, now]) => {
    const share = Math.max(0, 1 + Math.log10((after ? now : before) / most) / DECADES) || 0;
    const data = { source: String(source), target: String(target), before, now, share };
    return { data, classes: target === view.node ? fate(view, source) : "among" };
  });
  return [...nodes, ...edges];
}

function look() {
  const by = `mapData(share, 0, 1, ${colour("weak")}, ${colour("strong")})`;
  const mark = { shape: "diamond", width: 22, height: 22, "background-color": colour("ground") };
  const centre = { width: 28, height: 28, "background-color": colour("accent"), "font-weight": "bold" };
  const plain = { width: 16, height: 16, "background-color": colour("faint"), color: colour("ink"), "font-size": 12 };
  const named = { "text-background-color": colour("ground"), "text-background-opacity": 0.8 }; // names are long
  const line = { "curve-style": "straight", "target-arrow-shape": "triangle", "arrow-scale": 0.9 };
  return [
    { selector: "node", style: { ...plain, label: "data(label)", "text-valign": "bottom", "text-margin-y": 2 } },
    { selector: ".own", style: { ...centre, "border-width": 3, "border-color": colour("ink") } },
    { selector: ".injected", style: { ...mark, "border-width": 3, "border-color": colour("injected") } },
    ...shown.kinds.map((_, place) => ({
      selector: `.kind${place % KINDS}`,
      style: { ...named, "background-color": colour(`line${place % KINDS}`) },
    })),
    { selector: ":selected", style: { "border-width": 5, "border-color": colour("focus") } },
    { selector: "edge", style: { ...line, "line-color": by, "target-arrow-color": by } },
    { selector: ".kept", style: { width: 5 } },
    { selector: ".lost", style: { width: 4, "line-style": "dashed", "line-dash-pattern": [10, 6] } },
    { selector: ".new", style: { width: 4, "line-style": "dashed", "line-dash-pattern": [1, 7], "line-cap": "round" } },
    { selector: ".other", style: { width: 1.5 } },
    { selector: ".among", style: { width: 1, opacity: 0.4, "target-arrow-shape": "none" } },
  ];
}

function ring(nodes, radius, turn) {
  return nodes.map((node, place) => {
    const angle = (2 * Math.PI * (place + turn)) / nodes.length;
    return [node, { x: radius * Math.sin(angle), y: -radius * Math.cos(angle) }];
  });
}

// The node in the middle, the top neighbours of any panel around it, the others outside.
function layout(views) {
  const node = views[0].node;
  const tops = new Set(views.flatMap((view) => [...view.top_before, ...view.top_after]));
  const nodes = [...new Set(views.flatMap((view) => view.neighbours))];
  const inner = nodes.filter((other) => tops.has(other));
  const outer = nodes.filter((other) => !tops.has(other));
  const near = Math.max(110, 8 * inner.length);
  const far = Math.max(near + 80, 7 * outer.length);
  return Object.fromEntries([[node, { x: 0, y: 0 }], ...ring(inner, near, 0), ...ring(outer, far, 0.5)]);
}

function tell(event, ...lines) {
  const { pageX, pageY } = event.originalEvent;
  tipAt(pageX + 14, pageY + 14, lines.join("\n"));
}

function tellEdge(event, view) {
  const { source, target, before, now } = event.target.data();
  const said = (weight) => (weight === null ? "not there" : short(weight));
  const kind = Number(target) === view.node ? FATES[fate(view, Number(source))] : "between neighbours";
  tell(event, `${called(target)} attends to ${called(source)}`, `before ${said(before)}, attacked ${said(now)}`, kind);
}

function tellNode(event) {
  const node = Number(event.target.id());
  const kind = shown.types[node] === undefined ? [] : [`type ${shown.types[node]}`];
  tell(event, called(node), ...kind, ...(injected(node) ? ["injected by the attack"] : []));
}

function panel(model, view, after, positions, most) {
  const title = `${model}, ${after ? `attacked (seed ${view.seed})` : "before"}`;
  const help = "arrow keys move, plus and minus zoom, 0 shows all; the table below says the same";
  const holder = make("div", { class: "graph", tabindex: 0, role: "application", "aria-label": `${title}: ${help}` });
  graphs.append(make("div", { class: "panel" }, make("h3", { title }, title), holder));
  const preset = { name: "preset", positions: (node) => positions[node.id()], fit: false };
  const limits = { minZoom: 0.1, maxZoom: 5 };
  const cy = cytoscape({
    container: holder,
    elements: elements(view, after, most),
    style: look(),
    layout: preset,
    ...limits,
  });
  cy.on("mouseover tap", "edge", (event) => tellEdge(event, view));
  cy.on("mouseover tap", "node", tellNode);
  cy.on("mouseout", () => (tip.hidden = true));
  cy.on("viewport", () => together(cy));
  holder.addEventListener("keydown", (event) => steer(cy, event));
  return cy;
}

let following = false;
function together(leader) {
  if (following) return;
  following = true;
  panels.filter((cy) => cy !== leader).forEach((cy) => cy.viewport({ zoom: leader.zoom(), pan: leader.pan() }));
  following = false;
}

function steer(cy, event) {
  const step = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] }[event.key];
  const factor = { "+": 1.25, "=": 1.25, "-": 0.8 }[event.key];
  const renderedPosition = { x: cy.width() / 2, y: cy.height() / 2 };
  if (step) cy.panBy({ x: step[0], y: step[1] });
  else if (factor) cy.zoom({ level: cy.zoom() * factor, renderedPosition });
  else if (event.key === "0") fitAll();
  else return;
  event.preventDefault();
}

function resizeAll() {
  panels.forEach((cy) => cy.resize());
  fitAll();
}

function fitAll() {
  if (!panels.length || !panels[0].width()) return;
  const boxes = panels.map((cy) => cy.nodes().boundingBox());
  const [left, top] = ["x1", "y1"].map((side) => Math.min(...boxes.map((box) => box[side])));
  const [right, bottom] = ["x2", "y2"].map((side) => Math.max(...boxes.map((box) => box[side])));
  const [width, height] = [panels[0].width(), panels[0].height()];
  const zoom = Math.min((width - 24) / (right - left), (height - 24) / (bottom - top), 2);
  const pan = { x: (width - zoom * (left + right)) / 2, y: (height - zoom * (top + bottom)) / 2 };
  panels[0].viewport({ zoom, pan });
}
