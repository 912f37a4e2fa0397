// The page, from the grades down.
function grades({ model, line, lights, notes, proved }) {
  const light = ({ name, value, sentence }) =>
    make("li", {}, make("span", { class: `word ${value}` }, `${name}: ${value}`), " ", sentence);
  return make(
    "div",
    { class: "card" },
    make("h3", {}, model),
    make("p", {}, line),
    make("ul", { class: "lights" }, ...lights.map(light)),
    ...[...notes, proved].map((note) => make("p", { class: "about" }, note)),
  );
}

document.title = `${shown.title}: ${document.title}`;
main.replaceChildren(make("p", { class: "about" }, `${shown.title} ${shown.attack}`));
section("grades", "Grades", make("div", { class: "cards" }, ...shown.grades.map(grades)));
shown.tables.forEach((one, place) => section(`table-${place}`, one.title, table(one.head, one.rows)));
startTheme();
charts();
moved();
neighbourhoods();
const made = [...shown.provenance, ["drawn by", shown.libraries.join(", ")]];
const facts = made.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
section("provenance", "How it was made", make("dl", {}, ...facts));
