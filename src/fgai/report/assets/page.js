// The page, from the verdict down.
function verdict({ model, word, reasons, proved }) {
  return make(
    "div",
    { class: "card" },
    make("h3", {}, model),
    make("p", {}, make("span", { class: `word ${word}` }, word)),
    make("ul", {}, ...reasons.map((reason) => make("li", {}, reason))),
    make("p", { class: "about" }, proved),
  );
}

document.title = `${shown.title}: ${document.title}`;
main.replaceChildren(make("p", { class: "about" }, `${shown.title} ${shown.attack}`));
section("verdict", "Verdict", make("div", { class: "cards" }, ...shown.verdicts.map(verdict)));
shown.tables.forEach((one, place) => section(`table-${place}`, one.title, table(one.head, one.rows)));
startTheme();
charts();
moved();
neighbourhoods();
const made = [...shown.provenance, ["drawn by", shown.libraries.join(", ")]];
const facts = made.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
section("provenance", "How it was made", make("dl", {}, ...facts));
