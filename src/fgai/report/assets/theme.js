// Light or dark: as the reader's system asks, or as the button says; paper is light.
const themed = []; // what to draw again when the colours change
const colour = (name) =>
  getComputedStyle(document.documentElement)
    .getPropertyValue("--" + name)
    .trim();

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = name === "dark" ? "Light" : "Dark";
  themed.forEach((redraw) => redraw());
}

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const asked = () => setTheme(dark.matches ? "dark" : "light");
  const now = () => document.documentElement.dataset.theme;
  let before = "light";
  asked();
  dark.addEventListener("change", asked);
  document.getElementById("theme").addEventListener("click", () => setTheme(now() === "dark" ? "light" : "dark"));
  let closed = []; // paper cannot be unfolded
  addEventListener("beforeprint", () => {
    before = now();
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((part) => (part.open = true));
    setTheme("light");
  });
  addEventListener("afterprint", () => {
    closed.forEach((part) => (part.open = false));
    setTheme(before);
  });
}
