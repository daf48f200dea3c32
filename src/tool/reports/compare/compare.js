// SPDX-License-Identifier: Apache-2.0
// Draws the report of `headgate compare`: a card and a button for each run, a chart for each figure with all runs that
// are not hidden, and a table of the last values.

const runs = report.runs;
const names = shortNames(runs.map(({ name }) => name));
const hidden = new Set();

// ---- summary

function runCard(run, i) {
  const count = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;
  const facts = [`step ${number(run.steps)}`, known(run.tokens) ? count(run.tokens, "token") : null,
    count(run.records, "record"), count(run.spikes.length, "loss spike")];
  return el("article", { class: "panel card" }, el("h2", {}, sample(i), names[i]),
    names[i] === run.name ? null : el("div", { class: "path" }, run.name),
    el("p", { class: "facts" }, facts.filter(Boolean).join(" · ")),
    run.notes.map((note) => el("p", { class: "notes" }, note)));
}

function buildSummary() {
  document.title = `headgate compare: ${names.join(", ")}`;
  byId("source").textContent = runs.length === 1 ? "One run." : `${runs.length} runs.`;
  byId("cards").replaceChildren(...runs.map(runCard));
  fillTable(byId("last"), keysOf(runs.map(({ last }) => last)), runs.map(({ last, lowest }) => (key) =>
    el("td", { title: known(last[key]) ? null : "this run has none" }, shown(key, last[key]),
      lowest[key] ? el("span", { class: "lowest" },
        `lowest ${shown(key, lowest[key].value)}, step ${number(lowest[key].step)}`) : null)));
}

// ---- charts

// Returns the steps at which any of these curves has a value, and for each curve its values there: undefined if it has
// none.
function aligned(curves) {
  const steps = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, i) => [step, i]));
  const rows = curves.map((curve) => {
    const row = Array(steps.length).fill(undefined);
    curve.steps.forEach((step, i) => { row[place.get(step)] = curve.values[i]; });
    return row;
  });
  return { steps, rows };
}

function figurePanel(key) {
  const shown = runs.map((run, index) => ({ index, curve: run.curves[key] }))
    .filter(({ index, curve }) => curve && !hidden.has(index));
  const { steps, rows } = aligned(shown.map(({ curve }) => curve));
  const fixed = shareScale([key], runs.flatMap((run) => run.curves[key]?.values ?? []));
  return el("div", { class: "panel", "data-key": key }, el("h3", {}, figure(key).name), sentence(figure(key).sentence),
    !steps.length ? el("p", { class: "hint" }, "No run that is shown has this figure.") : chart({
      label: `${figure(key).name} over steps`, axis: "step", xs: steps, count: steps.length, fixed,
      place: (i) => `step ${number(steps[i])}`,
      series: shown.map(({ index }, i) => ({ index, values: rows[i] })) }));
}

function drawCharts() {
  const keys = [...described.keys()].filter((key) => runs.some((run) => run.curves[key]));
  byId("charts").replaceChildren(...keys.map(figurePanel));
}

function buildLegend() {
  byId("runs-legend").replaceChildren(...runs.map((_, i) => el("button", {
    "aria-pressed": "true",
    onclick: ({ currentTarget }) => {
      if (!hidden.delete(i)) hidden.add(i);
      currentTarget.setAttribute("aria-pressed", String(!hidden.has(i)));
      drawCharts();
    },
  }, sample(i), names[i])));
}

// ---- start

listenToBar(applyTheme);
applyTheme();
buildSummary();
buildLegend();
drawCharts();
