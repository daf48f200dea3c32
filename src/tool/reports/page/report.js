// SPDX-License-Identifier: Apache-2.0
// Shows the report, the JSON of the element `report`: its figures, and the bar at the top. The page's own script, which
// follows, defines `names`, the headings of columns and lines.

let report;
try {
  report = JSON.parse(byId("report").textContent);
} catch (error) {
  byId("source").textContent = "No readable report.";
  throw error;
}
byId("footer").textContent = `Written by headgate ${report.headgate}. This file is the whole report.`;

// Returns the last part of each path, or the whole path if two end alike.
function shortNames(paths) {
  const lastPart = (path) => path.replace(/\/+$/, "").split("/").pop() || path;
  return paths.map((path) =>
    paths.filter((other) => lastPart(other) === lastPart(path)).length > 1 ? path : lastPart(path));
}

const described = new Map((report.figures || []).map((figure) => [figure.key, figure]));
const figure = (key) => described.get(key) || { key, name: key, sentence: "" };
// Shows a value of a figure: all shares with the same digits.
const shown = (key, value) => figure(key).share ? share(value) : number(value);
// The same in two digits, for a cell of a map.
const brief = (key, value) => figure(key).share ? value.toFixed(2) : number(Number(value.toPrecision(2)));
// Returns the keys for which any of these rows has a number, in the report's order.
function keysOf(rows) {
  const present = new Set();
  for (const row of rows) for (const key in row) if (known(row[key])) present.add(key);
  return [...described.keys()].filter((key) => present.delete(key)).concat([...present]);
}

// Draws shares from 0 to 1, so that a bar or a colour means the same on every page. Returns null, for a scale by the
// values, if a figure is not a share or a value lies outside [0, 1], as gates may whose function is not a sigmoid.
const FROM_0_TO_1 = { low: 0, high: 1 };
function shareScale(keys, values) {
  const rounding = 1e-6;
  const within = values.filter(known).every((v) => v >= -rounding && v <= 1 + rounding);
  return within && keys.every((key) => figure(key).share) ? FROM_0_TO_1 : null;
}

// Makes a row for each figure, with its meaning; columns: for each of `names` a function that makes the cell of a key.
// In a narrow window a row becomes a card, with each cell on its own line after its column's name (page.css). The roles
// keep it a table for screen readers there.
function fillTable(table, keys, columns) {
  const head = (name) => el("th", { scope: "col", role: "columnheader" }, breakable(name));
  fill(table, { role: "table" }).replaceChildren(
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head("Figure"), names.map(head))),
    el("tbody", { role: "rowgroup" }, keys.map((key) => el("tr", { role: "row" },
      el("th", { scope: "row", role: "rowheader" }, capital(figure(key).name), sentence(figure(key).sentence)),
      columns.map((cell, i) => fill(cell(key), { role: "cell", "data-column": names[i] }))))));
}

function goTo(id) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  byId(id).scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "start" });
  byId(id).querySelector("h1, h2").focus({ preventScroll: true });
  hideTip();
}

// Handles the theme's button and the sections' links; recolour() redraws in the colours of another theme.
function listenToBar(recolour) {
  on("theme", "click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    recolour();
  });
  systemIsDark.addEventListener("change", recolour);
  for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", (event) => {
    event.preventDefault();
    goTo(link.getAttribute("href").slice(1));
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  addEventListener("scroll", hideTip, { passive: true });
}
