// Heads of a table that sorts: a button in each, and the order in `aria-sort`. Unknown values are last in both orders.
function compared(a, b) {
  return typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
}

// `order` holds the column (`by`) and the direction (`sign`); `fill` is called when they change. `first` is the direction
// of the first click.
function sortableHeads(columns, order, fill, first = () => 1) {
  return Object.entries(columns).map(([name, title]) => {
    const sort = () => {
      order.sign = order.by === name ? -order.sign : first(name);
      order.by = name;
      fill();
    };
    const button = make("button", { type: "button", onclick: sort }, title);
    return make("th", { scope: "col", "data-name": name }, button);
  });
}

function inOrder(rows, order, heads, valueOf) {
  const direction = order.sign > 0 ? "ascending" : "descending";
  heads.forEach((head) => head.setAttribute("aria-sort", head.dataset.name === order.by ? direction : "none"));
  const known = (row) => valueOf(row, order.by) ?? null;
  return rows.sort((a, b) => {
    const [first, second] = [known(a), known(b)];
    if (first === null || second === null) return (first === null) - (second === null);
    return order.sign * compared(first, second);
  });
}
