// What one node attends to: a panel a model, before and after, on one layout that all of them share.
const FATES = {
  kept: "in the top 5 before and after",
  lost: "in the top 5 before, lost",
  new: "new in the top 5",
  other: "not in the top 5",
};
const graphs = make("div", { class: "graphs" });
const seen = make("div", {});
const note = make("p", { class: "about", role: "status" });

const kept = () => [...new Set(shown.models.flatMap((model) => Object.keys(shown.views[model])))].map(Number);
const viewsOf = (node) =>
  shown.models.filter((model) => shown.views[model][node]).map((model) => shown.views[model][node]);
const modelsOf = (node) => shown.models.filter((model) => shown.views[model][node]);
const injected = (node) => node >= shown.nodes;
const own = (view) => view.links.filter((link) => link[1] === view.node);

function fate(view, source) {
  const was = view.top_before.includes(source);
  const is = view.top_after.includes(source);
  if (was) return is ? "kept" : "lost";
  return is ? "new" : "other";
}

function neighbours(node) {
  const views = viewsOf(node);
  const head = ["neighbour", ...modelsOf(node).flatMap((model) => [`${model}, before`, `${model}, attacked`, "top 5"])];
  const near = views.flatMap((view) => own(view).map((link) => link[0]));
  const far = views.flatMap((view) => view.neighbours); // with “tree”, nodes further away can be in the top 5
  const sources = [...new Set([...near, ...far])];
  const rows = sources.map((source) => {
    const kind = (injected(source) ? ", injected" : "") + (source === node ? ", itself" : "");
    const cells = views.flatMap((view) => {
      const link = own(view).find(([from]) => from === source);
      if (link) return [link[2], link[3], fate(view, source)];
      return view.neighbours.includes(source) ? ["no link", "no link", fate(view, source)] : ["", "", "not shown"];
    });
    return [called(source) + kind + (near.includes(source) ? "" : ", further away"), ...cells];
  });
  return make("details", {}, make("summary", {}, "The weights as a table"), table(head, rows));
}

function show(node, jump) {
  const views = viewsOf(node);
  const models = modelsOf(node);
  const weights = views.flatMap((view) => own(view).flatMap((link) => [link[2] || 0, link[3] || 0]));
  const most = Math.max(1e-9, ...weights);
  const positions = layout(views);
  panels.forEach((cy) => cy.destroy());
  graphs.replaceChildren();
  tip.hidden = true;
  panels = views.flatMap((view, place) =>
    [false, true].map((after) => panel(models[place], view, after, positions, most)),
  );
  fitAll();
  const two = (weight) => String(+weight.toPrecision(2));
  document.getElementById("scale-high").textContent = two(most);
  document.getElementById("scale-low").textContent = `${two(most / 10 ** DECADES)} or less`;
  document.getElementById("search").value = String(node);
  const absent = shown.models.filter((model) => !models.includes(model));
  const unseen = Math.max(...views.map((view) => view.unseen));
  const losses = views.map((view, place) => {
    const stayed = view.top_before.filter((source) => view.top_after.includes(source)).length;
    return `${models[place]} keeps ${stayed} of its top ${view.top_before.length}`;
  });
  note.textContent = [
    `Node ${called(node)}: ${losses.join(", ")}.`,
    ...models
      .filter((model) => shown.proved[model]?.[node])
      .map((model) => `Proved for ${model}: ${shown.proved[model][node]}`),
    ...(unseen ? [`${unseen} more neighbours, of less attention, are not shown.`] : []),
    ...(absent.length ? [`This file keeps no picture of it for ${absent.join(", ")}.`] : []),
  ].join(" ");
  seen.replaceChildren(neighbours(node));
  if (jump) document.getElementById("view").scrollIntoView();
}

function search(text) {
  const wanted = text.trim().toLowerCase();
  const meant = (node) => String(node) === wanted || String(shown.names[node] ?? "").toLowerCase() === wanted;
  const nodes = kept();
  const found = nodes.find(meant);
  const beside = nodes.find((node) => viewsOf(node).some((view) => view.neighbours.some(meant)));
  if (found !== undefined) show(found, false);
  else if (beside !== undefined) {
    show(beside, false);
    note.textContent = `${text} has no picture of its own; it is a neighbour of node ${called(beside)}, shown here.`;
    panels.forEach((cy) =>
      cy
        .nodes()
        .filter((element) => meant(Number(element.id())))
        .select(),
    );
  } else {
    note.textContent = `No node ${text} among the ${nodes.length} in this file; fgai report --node puts one in.`;
  }
}

function legend() {
  return make(
    "ul",
    { class: "key" },
    sample(FATES.kept, "line", { class: "own", "stroke-width": 5 }),
    sample(FATES.lost, "line", { class: "own", "stroke-width": 4, "stroke-dasharray": "10 6" }),
    sample(FATES.new, "line", {
      class: "own",
      "stroke-width": 4,
      "stroke-dasharray": "1 7",
      "stroke-linecap": "round",
    }),
    sample(FATES.other, "line", { class: "own", "stroke-width": 1.5 }),
    sample("injected by the attack", "path", { class: "mark", d: "M20 1 L27 8 L20 15 L13 8 Z" }),
    ...shown.kinds.map((kind, place) =>
      sample(`type ${kind}`, "circle", { class: `kind${place % KINDS}`, cx: 20, cy: 8, r: 7 }),
    ),
    make(
      "li",
      {},
      "attention ",
      make("span", { id: "scale-low" }),
      make("span", { class: "scale" }),
      make("span", { id: "scale-high" }),
    ),
  );
}

// A part with a search, panels, a key, and the same as a table.
function viewer(title, what, options, found, key, ...buttons) {
  const input = make("input", { id: "search", type: "search", list: "known", autocomplete: "off" });
  const submitted = (event) => {
    event.preventDefault();
    found(input.value);
  };
  const form = make(
    "form",
    { class: "controls", role: "search", onsubmit: submitted },
    make("label", {}, `${what} `, input),
    make("datalist", { id: "known" }, ...options),
    make("button", {}, "Show"),
    ...buttons,
  );
  const top = make("div", { class: "top" }, make("h2", {}, title), form);
  graphs.classList.toggle("pairs", shown.models.length > 1);
  main.append(make("section", { id: "view", "aria-label": title }, top, note, graphs, key, seen));
}

function neighbourhoods() {
  const nodes = kept();
  if (!nodes.length) return;
  const known = nodes.map((node) => make("option", { value: node }, String(shown.names[node] ?? "")));
  const fit = make("button", { type: "button", onclick: fitAll }, "Fit");
  viewer("What one node attends to", "Node", known, search, legend(), fit);
  show(shown.first_node ?? nodes[0], false);
  themed.push(() => panels.forEach((cy) => cy.style(look())));
  new ResizeObserver(resizeAll).observe(graphs);
}
