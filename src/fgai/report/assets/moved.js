// The nodes that changed most: a table that sorts, filters, and opens a node's neighbourhood.
const COLUMNS = {
  node: "node",
  overlap: "top 5 kept",
  shift: "attention moved",
  class: "class",
  changed: "attacks that change it",
  classes: "classes under attack",
};
const className = (number) => (number === null ? null : (shown.class_names[number] ?? number));
const called = (node) => (shown.names[node] === undefined ? String(node) : `${node} (${shown.names[node]})`);

function movedRows(model) {
  return shown.moved[model].map((row) => ({
    ...row,
    changed: row.answers_attacked.filter((answer) => answer !== row.answer).length,
    class: className(row.answer),
    classes: row.answers_attacked.map(className).join(", "),
  }));
}

function moved() {
  if (!shown.models.some((model) => shown.moved[model].length)) return;
  const sorted = { by: "overlap", sign: 1 };
  const options = shown.models.map((model) => make("option", { value: model }, model));
  const model = make("select", { id: "moved-model", onchange: fill }, ...options);
  const filter = make("input", { id: "moved-filter", type: "search", oninput: fill });
  const changed = make("input", { id: "moved-changed", type: "checkbox", onchange: fill });
  const heads = sortableHeads(COLUMNS, sorted, fill);
  const body = make("tbody", {});
  const count = make("p", { class: "about", role: "status" });

  function line(row) {
    const graph = graphOf(row.node);
    const jump = graph === undefined ? () => show(row.node, true) : () => showGraph(graph, true);
    const open =
      viewsOf(row.node).length || graph !== undefined
        ? make("button", { type: "button", onclick: jump }, called(row.node))
        : called(row.node); // this file keeps no picture of it
    const rest = Object.keys(COLUMNS).slice(1);
    return make("tr", {}, make("td", {}, open), ...rest.map((name) => make("td", {}, short(row[name]))));
  }

  function fill() {
    const wanted = filter.value.trim().toLowerCase();
    const rows = movedRows(model.value).filter(
      (row) => called(row.node).toLowerCase().includes(wanted) && (!changed.checked || row.changed),
    );
    body.replaceChildren(...inOrder(rows, sorted, heads, (row, name) => row[name]).map(line));
    count.textContent = `${rows.length} of the ${shown.moved[model.value].length} that changed most, of ${shown.nodes}.`;
  }

  const controls = [
    make("label", {}, "Model ", model),
    make("label", {}, "Filter ", filter),
    make("label", {}, changed, " only those whose class changed"),
  ];
  const grid = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body);
  const holder = scrolling("The nodes that changed most", grid);
  holder.classList.add("tall");
  fold("moved", "The nodes that changed most", make("div", { class: "controls" }, ...controls), holder, count);
  fill();
}
