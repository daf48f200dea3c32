// SPDX-License-Identifier: Apache-2.0
// The page of `headgate xray`: reads the report, JSON in <script id="report">, and draws it. The parts stand in the order of
// the page. `chosen` holds what the reader has chosen; chooseHead() and recolour() redraw what depends on it. The arrays of
// a head are base64 and decoded when they are drawn.
"use strict";

(() => {
  const byId = (id) => document.getElementById(id);
  const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
  const known = (x) => typeof x === "number" && Number.isFinite(x);

  // ---------------------------------------------------------------- elements, numbers, tokens

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "style") node.style.cssText = value;
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  }
  const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  function number(x) {
    if (!known(x)) return "–";
    if (Number.isInteger(x)) return x.toLocaleString("en-US");
    const size = Math.abs(x);
    if (size >= 1000) return x.toLocaleString("en-US", { maximumFractionDigits: 0 });
    if (size < 0.001) return x.toExponential(1).replace("e-", "e−");
    return x.toPrecision(size < 1 ? 3 : 4).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
  }
  const withUnit = (x, unit) => known(x) && unit ? `${number(x)} ${unit}` : number(x);

  // A token as one line: spaces at its ends and line breaks are visible.
  function visible(piece) {
    if (piece === "") return "(part of a character)";
    return piece.replace(/\r/g, "␍").replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");
  }
  function tokenRange(model, first, last) {
    if (first >= last) return `token ${first} “${visible(model.text[first] ?? "")}”`;
    const text = model.text.slice(first, last + 1).join("");
    return `tokens ${first}–${last} “${visible(text.length > 60 ? text.slice(0, 58) + "…" : text)}”`;
  }

  const decode = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const weight = (byte) => (byte / 255) ** 2; // maps and `received` store round(255 √w)

  // The byte that the strongest colour stands for: at most one in 200 is larger, so that a few do not fade all others.
  function strongest(bytes) {
    const counts = new Uint32Array(256);
    for (const byte of bytes) ++counts[byte];
    let byte = 255;
    for (let above = counts[255]; above <= bytes.length / 200 && byte > 1; above += counts[byte]) --byte;
    return byte;
  }
  function largest(numbers) {
    const sorted = Float64Array.from(numbers.filter(known)).sort();
    return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * 0.995))] : 1;
  }

  // ---------------------------------------------------------------- the report

  let report;
  try {
    report = JSON.parse(byId("report").textContent);
  } catch (error) {
    byId("source").textContent = `This page holds no readable report (${error.message}).`;
    return;
  }
  const models = report.models;
  const lastPart = (path) => path.replace(/\/+$/, "").split("/").pop() || path;
  const names = models.map((model) =>
    models.filter((other) => lastPart(other.name) === lastPart(model.name)).length > 1 ? model.name : lastPart(model.name));
  const hasGate = (model) => Boolean(model.gate) && model.gate !== "none";

  const described = new Map((report.figures || []).map((figure) => [figure.key, figure]));
  const figure = (key) => described.get(key) || { key, name: key, unit: "", sentence: "" };
  // The keys that any of these rows has a number for, in the report's order.
  function keysOf(rows) {
    const present = new Set();
    for (const row of rows) for (const key in row) if (known(row[key])) present.add(key);
    return [...described.keys()].filter((key) => present.delete(key)).concat([...present]);
  }
  const headFigures = (model, layer, head) => model.head_figures?.[layer]?.[head] || {};
  const allHeads = (model) => model.heads.flatMap((row, layer) => row.map((_, head) => ({ layer, head })));

  const chosen = { model: 0, layer: 0, head: 0, key: "", shade: "received", scope: "head", token: null };
  const current = () => models[chosen.model];

  // ---------------------------------------------------------------- colours

  // ColorBrewer's YlGnBu, which colour-blind readers can tell apart; reversed on dark pages, so that more stands out more.
  const STOPS = ["fffde0", "edf8b1", "c7e9b4", "7fcdbb", "41b6c4", "1d91c0", "225ea8", "253494", "081d58"]
    .map((stop) => [0, 2, 4].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  const palette = { rgb: [], css: [], ink: [] };

  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (systemIsDark.matches ? "dark" : "light")) === "dark";

  function makePalette() {
    for (let i = 0; i < 256; ++i) {
      const at = (isDark() ? 255 - i : i) / 255 * (STOPS.length - 1);
      const stop = Math.min(STOPS.length - 2, Math.floor(at));
      const rgb = STOPS[stop].map((low, c) => Math.round(low + (STOPS[stop + 1][c] - low) * (at - stop)));
      const [r, g, b] = rgb.map((c) => (c / 255) ** 2.2);
      palette.rgb[i] = rgb;
      palette.css[i] = `rgb(${rgb})`;
      palette.ink[i] = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#0b0e13" : "#ffffff";
    }
  }
  const shadeOf = (t) => clamp(Math.round(t * 255), 0, 255);

  function drawScale(node, low, middle, high) {
    const stops = Array.from({ length: 17 }, (_, i) => palette.css[shadeOf(i / 16)]);
    node.replaceChildren(el("i", { style: `background:linear-gradient(90deg,${stops})` }),
      el("span", {}, low), el("span", {}, middle), el("span", {}, high));
    node.setAttribute("aria-label", `Colours: ${low}, ${middle}, ${high}`);
    node.setAttribute("role", "img");
  }

  function applyTheme() {
    byId("theme").textContent = isDark() ? "☀ Light" : "☾ Dark";
    byId("theme").setAttribute("aria-label", isDark() ? "Switch to the light theme" : "Switch to the dark theme");
    makePalette();
  }
  function remembered(theme) {
    try {
      if (theme) localStorage.setItem("headgate-theme", theme);
      return localStorage.getItem("headgate-theme");
    } catch { // a browser may forbid storage to files
      return null;
    }
  }

  // ---------------------------------------------------------------- the small box beside the pointer

  function tip(lines, x, y) {
    const box = byId("tip");
    box.replaceChildren(...lines.map((line) => el("div", {}, line)));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${clamp(x + 14, 6, Math.max(6, innerWidth - width - 6))}px`;
    box.style.top = `${y + 18 + height > innerHeight ? Math.max(6, y - height - 12) : y + 18}px`;
  }
  const hideTip = () => { byId("tip").hidden = true; };
  function tipAt(node, lines) {
    const box = node.getBoundingClientRect();
    tip(lines, box.left + box.width / 2, box.bottom - 10);
  }

  // Hover, or focus and arrow keys, choose one of a drawing's values: a slider to screen readers. `at` gives the value under
  // a pointer as a share of the width, `mark` shows value i (null: none) and returns its share of the width.
  function inspect(node, { label, count, at, lines, mark }) {
    let index = 0;
    const show = (i, x, y) => {
      index = clamp(i, 0, count - 1);
      const share = mark(index);
      const box = node.getBoundingClientRect();
      node.setAttribute("aria-valuenow", index);
      node.setAttribute("aria-valuetext", lines(index).join("; "));
      tip(lines(index), x ?? box.left + share * box.width, y ?? box.top + box.height / 3);
    };
    const hide = () => { mark(null); hideTip(); };
    const share = (event) => (event.clientX - node.getBoundingClientRect().left) / node.getBoundingClientRect().width;
    return fill(node, {
      tabindex: 0, role: "slider", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": count - 1, "aria-valuenow": 0,
      "aria-valuetext": lines(0).join("; "),
      onpointermove: (event) => show(at(share(event)), event.clientX, event.clientY),
      onpointerleave: hide,
      onfocus: () => { if (node.matches(":focus-visible")) show(index); },
      onblur: hide,
      onkeydown: (event) => {
        const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -count, End: count };
        if (event.key === "Escape") hide();
        if (!(event.key in steps)) return;
        event.preventDefault();
        show(index + steps[event.key]);
      },
    }, []);
  }

  // ---------------------------------------------------------------- lines and bars

  const DASHES = ["none", "7 4", "2 3", "9 3 2 3"];
  const colour = (i) => `var(--model-${i % 4})`;
  function marker(i, x, y, size) {
    const paths = [
      `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0z`,
      `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}z`,
      `M${x} ${y - size * 1.2}l${size * 1.2} ${size * 2.1}h${-size * 2.4}z`,
      `M${x} ${y - size * 1.4}l${size * 1.4} ${size * 1.4}l${-size * 1.4} ${size * 1.4}l${-size * 1.4} ${-size * 1.4}z`];
    return svg("path", { d: paths[i % 4], style: `fill:${colour(i)}` });
  }
  const sample = (i) => svg("svg", { class: "sample", viewBox: "0 0 34 14", "aria-hidden": "true" },
    svg("path", { class: "curve", d: "M0 7H34", style: `stroke:${colour(i)};stroke-dasharray:${DASHES[i % 4]}` }),
    marker(i, 17, 7, 4));

  function niceTicks(low, high, wanted) {
    const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((s) => s * power >= rough) * power;
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); ++i) ticks.push(Number((i * step).toPrecision(12)));
    return ticks;
  }

  // From 0, unless the numbers lie far from it for their spread.
  function rangeOf(values) {
    let low = Infinity, high = -Infinity;
    for (const value of values) if (known(value)) { low = Math.min(low, value); high = Math.max(high, value); }
    if (low > high) return null;
    if (low >= 0 && low < 0.6 * high) low = 0;
    if (low === high) { low = low > 0 ? 0 : low - 1; high = high > 0 ? high : high + 1; }
    return { low, high };
  }

  // Lines over 0 … count−1. series: [{index of the model, values}]; `at` names a place, e.g. "layer 3".
  function lineChart({ label, unit, series, count, axis, at, wide, fixed, marked }) {
    const W = wide ? 780 : 540, H = wide ? 190 : 215, left = 56, right = 14, top = 12, bottom = 36;
    const values = series.flatMap((line) => line.values).filter(known);
    const range = fixed || rangeOf(values);
    if (!range || !values.length) return el("p", { class: "hint" }, "No numbers.");
    const smallest = values.reduce((a, b) => Math.min(a, b), Infinity);
    const logarithmic = !fixed && smallest > 0 && range.high > 10 && range.high / smallest > 50;
    const scale = logarithmic ? Math.log10 : (v) => v;
    const low = logarithmic ? Math.floor(Math.log10(smallest)) : range.low;
    const high = logarithmic ? Math.ceil(Math.log10(range.high) - 1e-9) : niceTicks(range.low, range.high, 4).at(-1) >= range.high
      ? range.high : range.high + (range.high - range.low) * 0.04;
    const x = (i) => count === 1 ? (left + W - right) / 2 : left + (W - left - right) * i / (count - 1);
    const y = (v) => top + (H - top - bottom) * (1 - (scale(v) - low) / (high - low));
    const chart = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}` });

    const ticks = logarithmic
      ? Array.from({ length: high - low + 1 }, (_, i) => 10 ** (low + i)).filter((_, i) => i % Math.ceil((high - low) / 5) === 0)
      : niceTicks(low, high, 4);
    for (const tick of ticks) chart.append(
      svg("path", { class: "grid", d: `M${left} ${y(tick)}H${W - right}` }),
      svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, number(tick)));
    for (const tick of niceTicks(0, Math.max(1, count - 1), wide ? 10 : 8)) if (Number.isInteger(tick) && tick < count)
      chart.append(svg("text", { x: x(tick), y: H - bottom + 17, "text-anchor": "middle" }, tick));
    chart.append(svg("text", { x: (left + W - right) / 2, y: H - 4, "text-anchor": "middle" },
      axis + (logarithmic ? "; logarithmic scale" : "")));
    if (known(marked)) chart.append(svg("path", { class: "marked", d: `M${x(marked)} ${top}V${H - bottom}` }));

    for (const line of series) {
      let path = "", pen = "M";
      line.values.forEach((value, i) => {
        path += known(value) ? `${pen}${x(i).toFixed(1)} ${y(value).toFixed(1)}` : "";
        pen = known(value) ? "L" : "M";
      });
      chart.append(svg("path", { class: count > 200 ? "curve thin" : "curve", d: path,
        style: `stroke:${colour(line.index)};stroke-dasharray:${count > 64 ? "none" : DASHES[line.index % 4]}` }));
      if (count <= 64) line.values.forEach((value, i) => {
        if (known(value)) chart.append(marker(line.index, x(i), y(value), 3));
      });
    }
    const guide = svg("g");
    chart.append(guide);
    return inspect(chart, {
      label, count,
      at: (share) => Math.round((share * W - left) / (W - left - right) * (count - 1)),
      lines: (i) => [at(i), ...series.map((line) => (series.length > 1 || !wide ? `${names[line.index]}: ` : "") +
        withUnit(line.values[i], unit))],
      mark: (i) => {
        guide.replaceChildren();
        if (i === null) return 0;
        guide.append(svg("path", { class: "guide", d: `M${x(i)} ${top}V${H - bottom}` }));
        for (const line of series) if (known(line.values[i])) guide.append(marker(line.index, x(i), y(line.values[i]), 5));
        return x(i) / W;
      },
    });
  }

  function histogram(counts, index, label) {
    const W = 340, H = 190, left = 46, right = 10, top = 12, bottom = 36, n = counts.length;
    const total = counts.reduce((a, b) => a + b, 0) || 1, high = Math.max(...counts) / total || 1;
    const wide = (W - left - right) / n, y = (v) => top + (H - top - bottom) * (1 - v / high);
    const edge = (i) => number(i / n);
    const chart = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, style: `--model:${colour(index)}` });
    for (const tick of niceTicks(0, high, 3)) chart.append(
      svg("path", { class: "grid", d: `M${left} ${y(tick)}H${W - right}` }),
      svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick)));
    const bars = counts.map((c, i) => svg("rect", { class: "bar", x: left + i * wide + 0.75, width: wide - 1.5, y: y(c / total),
      height: H - bottom - y(c / total) }));
    chart.append(...bars);
    for (const tick of [0, 0.25, 0.5, 0.75, 1]) chart.append(
      svg("text", { x: left + tick * n * wide, y: H - bottom + 17, "text-anchor": "middle" }, tick));
    chart.append(svg("text", { x: (left + W - right) / 2, y: H - 4, "text-anchor": "middle" }, "gate"));
    return inspect(chart, {
      label, count: n,
      at: (share) => Math.floor((share * W - left) / wide),
      lines: (i) => [`gate ${edge(i)} to ${edge(i + 1)}`, `${number(counts[i] / total)} of the values (${number(counts[i])})`],
      mark: (at) => {
        bars.forEach((bar, i) => bar.classList.toggle("on", i === at));
        return (left + ((at ?? 0) + 0.5) * wide) / W;
      },
    });
  }

  // ---------------------------------------------------------------- 1. summary

  function modelFacts(model) {
    const heads = model.kv_heads && model.kv_heads !== model.heads[0]?.length ? `, ${model.kv_heads} of keys and values` : "";
    return `${hasGate(model) ? `gate ${model.gate}` : "no gate"} · ${number(model.parameters)} parameters · ${model.layers} layers × ` +
      `${model.heads[0]?.length ?? 0} heads${heads} · width ${number(model.dim)} · ${number(model.tokens)} tokens`;
  }

  function buildSummary() {
    byId("source").textContent = `Text: ${report.text}`;
    document.title = `headgate xray: ${names.join(", ")}`;
    byId("footer").textContent = `Written by headgate ${report.headgate}. Everything on this page is in this one file.`;

    const bars = [
      ["first_token_attention", "", "First token"],
      ["first_token_attention_gated", "after", "After the gate"],
      ["first_token_attention_uniform", "uniform", "If uniform"]];
    const longest = Math.max(0, ...models.flatMap((model) => bars.map(([key]) => model.figures[key])).filter(known));
    byId("bars-note").hidden = longest === 0;
    byId("cards").replaceChildren(...models.map((model, i) => el("article", { class: "panel card", style: `--model:${colour(i)}` },
      el("h2", {}, sample(i), names[i]),
      names[i] === model.name ? null : el("div", { class: "path" }, model.name),
      el("p", { class: "facts" }, modelFacts(model)),
      longest === 0 ? null : el("div", { class: "bars" }, ...bars.flatMap(([key, kind, name]) => {
        const value = model.figures[key];
        return [
          el("span", {}, name),
          known(value) ? el("div", { class: "track" }, el("div", { class: `fill ${kind}`, style: `width:${100 * value / longest}%` }))
            : el("span", { class: "none" }, kind === "after" && !hasGate(model) ? "no gate: all of it passes" : "not known"),
          el("span", { class: "number" }, number(value))];
      })))));

    const keys = keysOf(models.map((model) => model.figures));
    byId("headline").replaceChildren(
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Figure"),
        ...names.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...keys.map((key) => el("tr", {},
        el("th", { scope: "row" }, figure(key).name, " ", el("span", { class: "unit" }, figure(key).unit || ""),
          el("p", { class: "sentence" }, figure(key).sentence)),
        ...models.map((model) => known(model.figures[key]) ? el("td", {}, number(model.figures[key]))
          : el("td", { class: "none", title: "this model has none" }, "–", el("span", { hidden: "" }, "none")))))));
  }

  // ---------------------------------------------------------------- 2. layers

  function buildLayers() {
    byId("layers-legend").replaceChildren(...models.map((_, i) => el("span", {}, sample(i), names[i])));
    const keys = keysOf(models.flatMap((model) => model.layer_figures || []));
    byId("layers").hidden = keys.length === 0;
    byId("layer-charts").replaceChildren(...keys.map((key) => {
      const series = models.map((model, index) => ({ index, values: (model.layer_figures || []).map((row) => row[key]) }))
        .filter((line) => line.values.some(known));
      const { name, unit, sentence } = figure(key);
      return el("div", { class: "panel" },
        el("h3", {}, name, " ", el("span", { class: "unit" }, unit || "")),
        el("p", { class: "sentence" }, sentence),
        lineChart({ label: `${name} by layer`, unit, series, count: Math.max(...series.map((line) => line.values.length)),
          axis: "layer", at: (i) => `layer ${i}` }));
    }));
  }

  // ---------------------------------------------------------------- 3. layer × head maps

  const headName = (layer, head) => `layer ${layer}, head ${head}`;

  function buildMapKeys() {
    const keys = keysOf(models.flatMap((model) => (model.head_figures || []).flat()));
    byId("heads").hidden = keys.length === 0;
    byId("map-key").replaceChildren(...keys.map((key) => el("option", { value: key }, figure(key).name)));
    chosen.key = keys.includes("first_token_attention") ? "first_token_attention" : keys[0];
    byId("map-key").value = chosen.key;
    byId("map-key").addEventListener("change", (event) => { chosen.key = event.target.value; drawMaps(); });
  }

  // What the colours of the chosen key's maps stand for: one scale for all models.
  const mapRange = () => rangeOf(models.flatMap((model) => (model.head_figures || []).flat().map((row) => row[chosen.key])));

  function drawMaps() {
    const { name, unit, sentence } = figure(chosen.key);
    const range = mapRange();
    if (!range) return;
    byId("map-sentence").textContent = sentence;
    drawScale(byId("map-legend"), number(range.low), `${number((range.low + range.high) / 2)}`, withUnit(range.high, unit));

    const layers = Math.max(...models.map((model) => model.heads.length));
    const room = byId("maps").clientWidth;
    let columns = models.length;
    while (columns > 1 && (room / columns - 110) / layers < 13) --columns;
    const cell = clamp(Math.floor((room / columns - 110) / layers), 13, 64);
    byId("maps").style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    byId("maps").style.setProperty("--cell", `${cell}px`);
    byId("maps").style.setProperty("--cell-high", `${clamp(cell, 15, 34)}px`);
    byId("maps").replaceChildren(...models.map((model, index) => headMap(model, index, range, name, unit, cell)));
  }

  function headMap(model, index, range, name, unit, cell) {
    const layers = model.heads.length, heads = Math.max(...model.heads.map((row) => row.length));
    const value = (layer, head) => headFigures(model, layer, head)[chosen.key];
    const buttons = new Map();
    const tick = cell >= 18 ? 1 : 5;
    const lines = (layer, head) => [headName(layer, head), known(value(layer, head))
      ? `${name}: ${withUnit(value(layer, head), unit)}` : `${name}: this head has none`];
    const grid = el("div", { class: "map", role: "grid", "aria-label": `${name}, ${names[index]}: heads down, layers across`,
      style: `grid-template-columns:auto repeat(${layers}, var(--cell))` });
    grid.append(el("div", { role: "row" }, el("span", { class: "axis corner", role: "columnheader" }, "head \\ layer"),
      ...model.heads.map((_, l) => el("span", { class: "axis", role: "columnheader" }, l % tick === 0 ? l : ""))));
    for (let head = 0; head < heads; ++head) {
      const row = el("div", { role: "row" }, el("span", { class: "axis", role: "rowheader" }, head));
      for (let layer = 0; layer < layers; ++layer) {
        if (head >= model.heads[layer].length) { row.append(el("span")); continue; }
        const v = value(layer, head), shade = shadeOf((v - range.low) / (range.high - range.low));
        const button = el("button", { type: "button", role: "gridcell", tabindex: -1, class: known(v) ? null : "void",
          "data-layer": layer, "data-head": head, "aria-label": lines(layer, head).join(", "),
          style: known(v) ? `background:${palette.css[shade]};color:${palette.ink[shade]}` : "" },
          cell >= 40 && known(v) ? number(Number(v.toPrecision(2))) : "");
        buttons.set(`${layer} ${head}`, button);
        row.append(button);
      }
      grid.append(row);
    }
    const at = (target) => {
      const button = target.closest?.("button");
      return button && { button, layer: Number(button.dataset.layer), head: Number(button.dataset.head) };
    };
    fill(grid, {
      onpointerover: (event) => {
        const here = at(event.target);
        if (here) tip(lines(here.layer, here.head), event.clientX, event.clientY); else hideTip();
      },
      onpointerleave: hideTip,
      onfocusin: (event) => {
        const here = at(event.target);
        if (here && here.button.matches(":focus-visible")) tipAt(here.button, lines(here.layer, here.head));
      },
      onfocusout: hideTip,
      onclick: (event) => {
        const here = at(event.target);
        if (!here) return;
        chooseHead(index, here.layer, here.head);
        goTo("head");
      },
      onkeydown: (event) => {
        const here = at(event.target);
        const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1], Home: [-layers, 0], End: [layers, 0] };
        if (!here || !(event.key in steps)) return;
        event.preventDefault();
        const [across, down] = steps[event.key];
        const next = buttons.get(`${clamp(here.layer + across, 0, layers - 1)} ${clamp(here.head + down, 0, heads - 1)}`);
        if (!next) return;
        here.button.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      },
    }, []);
    const highest = allHeads(model).filter(({ layer, head }) => known(value(layer, head)))
      .sort((a, b) => value(b.layer, b.head) - value(a.layer, a.head)).slice(0, 4);
    const panel = el("div", { class: "panel", "data-model": index }, el("h3", {}, sample(index), names[index]),
      highest.length === 0 ? el("p", { class: "hint" }, `No head of this model has ${name}.`) : grid,
      highest.length === 0 ? null : el("div", { class: "highest" }, "Highest: ", ...highest.map(({ layer, head }) =>
        el("button", { type: "button", onclick: () => { chooseHead(index, layer, head); goTo("head"); } },
          `${headName(layer, head)}: ${number(value(layer, head))}`))));
    markChosen(panel);
    return panel;
  }

  // The chosen head's cell stands out; Tab reaches one cell of each map.
  function markChosen(panel) {
    const mine = Number(panel.dataset.model) === chosen.model;
    for (const button of panel.querySelectorAll(".map button")) {
      const here = Number(button.dataset.layer) === chosen.layer && Number(button.dataset.head) === chosen.head;
      button.setAttribute("aria-selected", mine && here);
      button.tabIndex = -1;
    }
    const entry = panel.querySelector(".map button[aria-selected=true]") || panel.querySelector(".map button");
    if (entry) entry.tabIndex = 0;
  }

  // ---------------------------------------------------------------- 4. a head's attention map

  const pattern = { bytes: null, size: 0, full: 255, image: document.createElement("canvas"), zoom: 1, x: 0, y: 0, cell: null };
  const MARGIN = 58;

  function paintPattern(canvas, bytes, size, strong) {
    canvas.width = canvas.height = size;
    const context = canvas.getContext("2d"), image = context.createImageData(size, size);
    for (let row = 0, at = 0; row < size; ++row) for (let column = 0; column <= row; ++column, ++at) {
      const pixel = 4 * (row * size + column);
      image.data.set(palette.rgb[shadeOf(bytes[at] / strong)], pixel);
      image.data[pixel + 3] = 255;
    }
    context.putImageData(image, 0, 0);
  }

  function loadPattern() {
    const model = current(), head = model.heads[chosen.layer][chosen.head];
    pattern.bytes = decode(head.map);
    if (pattern.size !== model.map_size) Object.assign(pattern, { zoom: 1, x: 0, y: 0 });
    pattern.size = model.map_size;
    pattern.cell = null;
    const strong = byId("full-scale").checked ? 255 : strongest(pattern.bytes);
    paintPattern(pattern.image, pattern.bytes, pattern.size, strong);
    drawScale(byId("pattern-legend"), "0", number(weight(strong / 2)), (strong < 255 ? "≥ " : "") + number(weight(strong)));
    const side = model.tokens / model.map_size;
    byId("pattern-sentence").textContent = "The softmax weight that each query token (down) gives to each key token (across), " +
      `before the gate, in this pass over the text${side > 1 ? `; a cell is the mean over about ${number(side)} × ${number(side)} tokens` : ""}; ` +
      "colours follow the weight’s square root, so that small weights show.";
    byId("pattern").setAttribute("aria-label",
      `Attention map of ${headName(chosen.layer, chosen.head)}: arrow keys move over its cells, plus and minus zoom, 0 shows all`);
    drawPattern();
    readCell(null);
  }

  const cellTokens = (cell) => {
    const { tokens, map_size } = current();
    return [Math.floor(cell * tokens / map_size), Math.floor((cell + 1) * tokens / map_size) - 1];
  };

  function drawPattern() {
    const canvas = byId("pattern"), model = current(), ratio = devicePixelRatio || 1;
    const side = canvas.clientWidth;
    if (!side || !pattern.bytes) return;
    canvas.width = canvas.height = Math.round(side * ratio);
    const style = getComputedStyle(canvas), context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const plot = side - MARGIN, shown = pattern.size / pattern.zoom, pixels = plot / shown;
    const px = (column) => MARGIN + (column - pattern.x) * pixels, py = (row) => MARGIN + (row - pattern.y) * pixels;

    context.save();
    context.beginPath();
    context.rect(MARGIN, MARGIN, plot, plot);
    context.clip();
    context.imageSmoothingEnabled = false;
    context.drawImage(pattern.image, px(0), py(0), pattern.size * pixels, pattern.size * pixels);
    if (chosen.token !== null) {
      const cell = (chosen.token + 0.5) * pattern.size / model.tokens;
      context.strokeStyle = style.accentColor;
      context.lineWidth = 1.5;
      context.setLineDash([5, 4]);
      context.beginPath();
      context.moveTo(px(cell), py(Math.floor(cell)));
      context.lineTo(px(cell), py(pattern.size));
      context.moveTo(px(0), py(cell));
      context.lineTo(px(Math.ceil(cell)), py(cell));
      context.stroke();
      context.setLineDash([]);
    }
    if (pattern.cell) {
      const { row, column } = pattern.cell, box = Math.max(pixels, 4), shift = (box - pixels) / 2;
      context.fillStyle = context.strokeStyle = style.accentColor;
      context.globalAlpha = 0.16;
      context.fillRect(MARGIN, py(row), plot, pixels);
      context.fillRect(px(column), MARGIN, pixels, plot);
      context.globalAlpha = 1;
      context.lineWidth = 2;
      context.strokeRect(px(column) - shift, py(row) - shift, box, box);
    }
    context.restore();
    context.strokeStyle = style.borderColor;
    context.strokeRect(MARGIN - 0.5, MARGIN - 0.5, plot, plot);

    // The tokens themselves where there is room, otherwise their numbers.
    context.fillStyle = style.color;
    context.textBaseline = "middle";
    const words = pixels >= 13 && pattern.size === model.tokens;
    context.font = words ? "11px ui-monospace, monospace" : "11px system-ui, sans-serif";
    const each = words ? 1 : Math.max(1, niceTicks(0, model.tokens / pattern.zoom, 6)[1] || 1);
    const last = model.tokens - 1;
    for (let token = 0; token <= last; token += each) {
      const cell = (token + 0.5) * pattern.size / model.tokens;
      const name = words ? visible(model.text[token] ?? "").slice(0, 7) : String(token);
      context.textAlign = "right";
      if (py(cell) >= MARGIN && py(cell) <= side) context.fillText(name, MARGIN - 6, py(cell));
      if (px(cell) < MARGIN || px(cell) > side) continue;
      context.save();
      context.translate(px(cell), MARGIN - 6);
      if (words) context.rotate(-Math.PI / 2);
      context.textAlign = words ? "left" : token === 0 ? "left" : "center";
      context.fillText(name, words ? 0 : token === 0 ? -3 : 0, words ? 0 : -6);
      context.restore();
    }
    context.font = "600 11.5px system-ui, sans-serif";
    if (!words) {
      context.textAlign = "left";
      context.fillText("key token →", MARGIN, MARGIN - 34);
      context.save();
      context.translate(12, MARGIN + 76);
      context.rotate(-Math.PI / 2);
      context.fillText("← query token", 0, 0);
      context.restore();
    }
  }

  // What the cell says, beside the pointer and below the map.
  function readCell(cell, x, y) {
    pattern.cell = cell;
    requestAnimationFrame(drawPattern);
    if (!cell) {
      byId("pattern-cell").textContent = "Point at a cell, or use the arrow keys, for its tokens and weight.";
      hideTip();
      return;
    }
    const model = current(), { row, column } = cell, [queryFirst, queryLast] = cellTokens(row), [keyFirst, keyLast] = cellTokens(column);
    const several = queryLast > queryFirst || keyLast > keyFirst;
    const lines = [`Query ${tokenRange(model, queryFirst, queryLast)}`, `Key ${tokenRange(model, keyFirst, keyLast)}`,
      column > row ? "Not seen: the key comes after the query"
        : `${several ? "Mean weight" : "Weight"} ${number(weight(pattern.bytes[row * (row + 1) / 2 + column]))}`];
    byId("pattern-cell").replaceChildren(el("strong", {}, lines[2]), ` · ${lines[0]} → ${lines[1].toLowerCase().slice(0, 3)}${lines[1].slice(3)}`);
    if (known(x)) tip([lines[2], lines[0], lines[1]], x, y); else hideTip();
  }

  function moveView(x, y) {
    const most = pattern.size - pattern.size / pattern.zoom;
    pattern.x = clamp(x, 0, most);
    pattern.y = clamp(y, 0, most);
    requestAnimationFrame(drawPattern);
  }
  // Zooms about a point, given as shares of the plot.
  function zoomBy(factor, shareX = 0.5, shareY = 0.5) {
    const before = pattern.size / pattern.zoom;
    pattern.zoom = clamp(pattern.zoom * factor, 1, Math.max(1, pattern.size / 6));
    const after = pattern.size / pattern.zoom;
    moveView(pattern.x + (before - after) * shareX, pattern.y + (before - after) * shareY);
  }
  function zoomAtCell(factor) {
    const shown = pattern.size / pattern.zoom, cell = pattern.cell;
    if (cell) zoomBy(factor, clamp((cell.column + 0.5 - pattern.x) / shown, 0, 1), clamp((cell.row + 0.5 - pattern.y) / shown, 0, 1));
    else zoomBy(factor);
  }

  function listenToPattern() {
    const canvas = byId("pattern");
    let drag = null;
    const place = (event) => {
      const box = canvas.getBoundingClientRect(), plot = box.width - MARGIN;
      return [(event.clientX - box.left - MARGIN) / plot, (event.clientY - box.top - MARGIN) / plot];
    };
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event), shown = pattern.size / pattern.zoom;
      if (drag) { moveView(drag.x - (x - drag.from[0]) * shown, drag.y - (y - drag.from[1]) * shown); return; }
      if (x < 0 || y < 0 || x >= 1 || y >= 1) { readCell(null); return; }
      readCell({ column: Math.floor(pattern.x + x * shown), row: Math.floor(pattern.y + y * shown) }, event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (pattern.zoom === 1) return;
      canvas.setPointerCapture(event.pointerId);
      drag = { from: place(event), x: pattern.x, y: pattern.y };
      hideTip();
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { drag = null; });
    canvas.addEventListener("pointerleave", () => { if (!drag) readCell(null); });
    canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      if (event.deltaY > 0 && pattern.zoom === 1) return;
      event.preventDefault();
      const [x, y] = place(event);
      zoomBy(Math.exp(-clamp(event.deltaY, -120, 120) / 300), clamp(x, 0, 1), clamp(y, 0, 1));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const far = event.shiftKey ? 10 : 1, size = pattern.size;
      const steps = { ArrowRight: [far, 0], ArrowLeft: [-far, 0], ArrowDown: [0, far], ArrowUp: [0, -far], Home: [-size, 0], End: [size, 0],
        PageUp: [0, -10], PageDown: [0, 10] };
      if (event.key === "+" || event.key === "=") zoomAtCell(1.5);
      else if (event.key === "-") zoomAtCell(1 / 1.5);
      else if (event.key === "0") zoomBy(1e-9);
      else if (event.key === "Escape") readCell(null);
      else if (event.key in steps && !event.ctrlKey && !event.altKey && !event.metaKey) {
        const from = pattern.cell || { column: Math.floor(pattern.x), row: Math.floor(pattern.y) };
        const step = pattern.cell ? steps[event.key] : [0, 0];
        const row = clamp(from.row + step[1], 0, size - 1), column = clamp(from.column + step[0], 0, size - 1);
        const shown = size / pattern.zoom;
        moveView(clamp(pattern.x, column + 1 - shown, column), clamp(pattern.y, row + 1 - shown, row));
        readCell({ column, row });
      } else return;
      event.preventDefault();
    });
    byId("zoom-in").addEventListener("click", () => zoomBy(1.5));
    byId("zoom-out").addEventListener("click", () => zoomBy(1 / 1.5));
    byId("zoom-all").addEventListener("click", () => zoomBy(1e-9));
    byId("full-scale").addEventListener("change", loadPattern);
    new ResizeObserver(drawPattern).observe(canvas);
  }

  // ---------------------------------------------------------------- 4. the rest of a head

  function buildHeadControls() {
    byId("head-model").replaceChildren(...names.map((name, i) => el("option", { value: i }, name)));
    const choose = () => chooseHead(Number(byId("head-model").value), Number(byId("head-layer").value), Number(byId("head-head").value));
    for (const id of ["head-model", "head-layer", "head-head"]) byId(id).addEventListener("change", choose);
    const step = (by) => {
      const heads = allHeads(current());
      const at = heads.findIndex(({ layer, head }) => layer === chosen.layer && head === chosen.head);
      const next = heads[(at + by + heads.length) % heads.length];
      chooseHead(chosen.model, next.layer, next.head);
    };
    byId("head-previous").addEventListener("click", () => step(-1));
    byId("head-next").addEventListener("click", () => step(1));
    listenToPattern();
  }

  function drawHead() {
    const model = current(), head = model.heads[chosen.layer][chosen.head];
    const options = (id, count, value) => {
      if (byId(id).length !== count) byId(id).replaceChildren(...Array.from({ length: count }, (_, i) => el("option", { value: i }, i)));
      byId(id).value = value;
    };
    byId("head-model").value = chosen.model;
    options("head-layer", model.heads.length, chosen.layer);
    options("head-head", model.heads[chosen.layer].length, chosen.head);
    byId("head-title").textContent = `One head: ${headName(chosen.layer, chosen.head)} of ${names[chosen.model]}`;
    loadPattern();

    const mine = headFigures(model, chosen.layer, chosen.head);
    byId("head-figures").replaceChildren(...keysOf((model.head_figures || []).flat()).flatMap((key) => {
      const { name, unit, sentence } = figure(key);
      const all = (model.head_figures || []).flat().map((row) => row[key]).filter(known);
      const rank = known(mine[key]) && all.length > 1 ? ` Rank ${1 + all.filter((v) => v > mine[key]).length} of ${all.length} heads, largest first.` : "";
      return [el("dt", {}, el("span", {}, name, " ", el("span", { class: "unit" }, unit || "")), el("b", {}, number(mine[key]))),
        el("dd", {}, sentence + rank)];
    }));

    const most = Math.max(...(head.top_keys || []).map(([, w]) => w), 1e-9);
    byId("top-keys").replaceChildren(...(head.top_keys || []).map(([token, w]) => el("li", {},
      el("button", { type: "button", "data-token": token, style: `--share:${100 * w / most}%`, onclick: () => markToken(token, true),
        "aria-label": `Mark ${tokenRange(model, token, token)}, mean weight ${number(w)}` },
        el("span", {}, token), el("code", {}, visible(model.text[token] ?? "")), el("span", {}, number(w))))));

    byId("gate-histogram").replaceChildren(el("h3", {}, "Values of the gate"),
      ...(head.gate_histogram ? [el("p", { class: "sentence" }, "How often each value of this head’s gate occurs, over its features and the tokens of this text."),
        histogram(head.gate_histogram, chosen.model, "Histogram of the gate")] : [el("p", { class: "hint" }, "This head has no gate.")]));
    drawStrip();
  }

  function drawGateLine() {
    const model = current(), { gate } = model.heads[chosen.layer][chosen.head];
    byId("gate-tokens").replaceChildren(el("h3", {}, "The gate, token by token"),
      ...(gate ? [el("p", { class: "sentence" }, "The mean of this head’s gate over its features, at each token of this text; near 0, the head adds almost nothing for that token."),
        lineChart({ label: "Gate at each token", unit: "", series: [{ index: chosen.model, values: Array.from(decode(gate), (byte) => byte / 255) }],
          count: model.tokens, axis: "token", at: (i) => tokenRange(model, i, i), wide: true, fixed: { low: 0, high: 1 }, marked: chosen.token })]
        : [el("p", { class: "hint" }, "This head has no gate: all that it reads is added to the residual stream.")]));
  }

  // Small maps of the heads of this layer, in every model that has the layer.
  function drawStrip() {
    byId("strip-title").textContent = `All heads of layer ${chosen.layer}`;
    byId("strip").replaceChildren(...models.flatMap((model, index) => chosen.layer >= model.heads.length ? [] : [el("div", {},
      el("strong", {}, sample(index), names[index]),
      ...model.heads[chosen.layer].map((head, h) => {
        const canvas = el("canvas", { "aria-hidden": "true" }), bytes = decode(head.map);
        paintPattern(canvas, bytes, model.map_size, strongest(bytes));
        return el("button", { type: "button", "aria-pressed": index === chosen.model && h === chosen.head, "data-model": index, "data-head": h,
          "aria-label": `Open head ${h} of ${names[index]}`,
          onclick: () => {
            chooseHead(index, chosen.layer, h);
            byId("strip").querySelector("[aria-pressed=true]")?.focus({ preventScroll: true });
          } }, canvas, el("span", {}, h));
      }))]));
  }

  // ---------------------------------------------------------------- 5. the text

  let tokenSpans = [], builtFor = -1, focused = 0;

  function buildTokens() {
    if (builtFor === chosen.model) return;
    builtFor = chosen.model;
    const model = current();
    tokenSpans = model.text.map((piece, i) => {
      const span = document.createElement("span");
      span.textContent = piece === "" ? "·" : piece.replace(/\n/g, "↵\n");
      span.tabIndex = -1;
      span.setAttribute("role", "option");
      span.dataset.token = i;
      return span;
    });
    focused = 0;
    if (tokenSpans.length) tokenSpans[0].tabIndex = 0;
    byId("tokens").replaceChildren(...tokenSpans);
    byId("tokens").setAttribute("aria-label", `The text as tokens of ${names[chosen.model]}`);
  }

  // One number a token, or null: the arrays of the chosen head, the mean over heads of its layer, or that over all layers.
  function tokenValues(shade) {
    const model = current(), head = model.heads[chosen.layer][chosen.head];
    if (shade === "loss") return [null, ...(model.token_losses || []).slice(0, model.text.length - 1)]; // of predicting this token
    const real = shade === "received" ? weight : (byte) => byte / 255;
    const rows = model.layer_text?.[shade];
    if (chosen.scope === "head") return head[shade] ? Array.from(decode(head[shade]), real) : null;
    if (!rows) return null;
    if (chosen.scope === "layer") return rows[chosen.layer] ? Array.from(decode(rows[chosen.layer]), real) : null;
    const sum = new Float64Array(model.text.length), given = rows.filter(Boolean);
    for (const row of given) decode(row).forEach((byte, i) => { sum[i] += real(byte); });
    return Array.from(sum, (value) => value / given.length);
  }

  function shadeText() {
    buildTokens();
    const model = current(), gated = Boolean(model.layer_text?.gate) || Boolean(model.heads[chosen.layer][chosen.head].gate);
    if (chosen.shade === "gate" && !gated) chosen.shade = "received";
    const losses = (model.token_losses || []).some(known);
    if (chosen.shade === "loss" && !losses) chosen.shade = "received";
    for (const button of byId("shades").children) {
      button.setAttribute("aria-pressed", button.dataset.shade === chosen.shade);
      button.disabled = button.dataset.shade === "gate" ? !gated : button.dataset.shade === "loss" && !losses;
      button.title = button.disabled ? `This model has no ${button.dataset.shade}` : "";
    }
    for (const button of byId("scopes").children) {
      button.setAttribute("aria-pressed", chosen.shade !== "loss" && button.dataset.scope === chosen.scope);
      button.disabled = chosen.shade === "loss";
    }
    const values = tokenValues(chosen.shade) || [];
    const top = chosen.shade === "gate" ? 1 : largest(values) || 1;
    const scaled = chosen.shade === "received" ? (v) => Math.sqrt(v / top) : (v) => v / top;
    tokenSpans.forEach((span, i) => {
      const shade = known(values[i]) ? shadeOf(scaled(values[i])) : -1;
      span.style.backgroundColor = shade < 0 ? "" : palette.css[shade];
      span.style.color = shade < 0 ? "" : palette.ink[shade];
    });
    drawScale(byId("text-legend"), "0", number(chosen.shade === "received" ? top / 4 : top / 2),
      (chosen.shade === "gate" ? "" : "≥ ") + number(top) + (chosen.shade === "loss" ? " nats" : ""));
    const whose = { head: headName(chosen.layer, chosen.head), layer: `the heads of layer ${chosen.layer}`, all: "all heads of all layers" }[chosen.scope];
    byId("text-sentence").textContent = {
      received: `Mean softmax weight that each token receives from the tokens that see it, itself included, in ${whose} of ${names[chosen.model]}; colours follow its square root.`,
      gate: `Mean of the gate at each token, over features, in ${whose} of ${names[chosen.model]}; near 0, almost nothing is added for that token.`,
      loss: `−log p that ${names[chosen.model]} gives to each token after those before it, in nats: the higher, the less expected; the first token is not predicted.`,
    }[chosen.shade];
  }

  function tokenLines(i) {
    const model = current(), at = (shade) => tokenValues(shade)?.[i];
    const whose = { head: "this head", layer: "mean of its layer", all: "mean of all layers" }[chosen.scope];
    const lines = [tokenRange(model, i, i)];
    if (known(at("received"))) lines.push(`attention received, ${whose}: ${number(at("received"))}`);
    if (known(at("gate"))) lines.push(`gate, ${whose}: ${number(at("gate"))}`);
    const loss = at("loss");
    if (known(loss)) lines.push(`loss of predicting it: ${number(loss)} nats`);
    return lines;
  }

  function markToken(token, scroll) {
    chosen.token = chosen.token === token ? null : token;
    showMark();
    const span = tokenSpans[token], box = byId("tokens");
    if (scroll && span && chosen.token !== null) box.scrollTop = span.offsetTop - box.clientHeight / 2;
  }
  function showMark() {
    byId("tokens").querySelector("[aria-selected=true]")?.removeAttribute("aria-selected");
    if (chosen.token !== null) tokenSpans[chosen.token]?.setAttribute("aria-selected", "true");
    for (const button of byId("top-keys").querySelectorAll("button"))
      button.setAttribute("aria-pressed", Number(button.dataset.token) === chosen.token);
    drawPattern();
    drawGateLine();
  }

  // The token of the line below (1) or above (−1) that is nearest across.
  function tokenInLine(from, direction) {
    const { offsetTop, offsetLeft } = tokenSpans[from];
    let best = from, line = null;
    for (let i = from + direction; i >= 0 && i < tokenSpans.length; i += direction) {
      const span = tokenSpans[i];
      if (span.offsetTop === offsetTop) continue;
      line ??= span.offsetTop;
      if (span.offsetTop !== line) break;
      if (best === from || Math.abs(span.offsetLeft - offsetLeft) < Math.abs(tokenSpans[best].offsetLeft - offsetLeft)) best = i;
    }
    return best;
  }

  function listenToText() {
    for (const button of byId("shades").children) button.addEventListener("click", () => { chosen.shade = button.dataset.shade; shadeText(); });
    for (const button of byId("scopes").children) button.addEventListener("click", () => { chosen.scope = button.dataset.scope; shadeText(); });
    const of = (event) => event.target.dataset?.token === undefined ? null : Number(event.target.dataset.token);
    const focus = (i) => {
      tokenSpans[focused].tabIndex = -1;
      focused = clamp(i, 0, tokenSpans.length - 1);
      tokenSpans[focused].tabIndex = 0;
      tokenSpans[focused].setAttribute("aria-label", tokenLines(focused).join("; "));
      tokenSpans[focused].focus();
    };
    fill(byId("tokens"), {
      onpointerover: (event) => { if (of(event) !== null) tip(tokenLines(of(event)), event.clientX, event.clientY); else hideTip(); },
      onpointerleave: hideTip,
      onfocusin: (event) => { if (of(event) !== null && event.target.matches(":focus-visible")) tipAt(event.target, tokenLines(of(event))); },
      onfocusout: hideTip,
      onclick: (event) => { if (of(event) !== null) { focus(of(event)); markToken(focused, false); } },
      onkeydown: (event) => {
        const to = { ArrowRight: focused + 1, ArrowLeft: focused - 1, Home: 0, End: tokenSpans.length - 1 }[event.key]
          ?? (event.key === "ArrowDown" ? tokenInLine(focused, 1) : event.key === "ArrowUp" ? tokenInLine(focused, -1) : null);
        if (to !== null) focus(to);
        else if (event.key === "Enter" || event.key === " ") markToken(focused, false);
        else if (event.key === "Escape") hideTip();
        else return;
        event.preventDefault();
      },
    }, []);
  }

  // ---------------------------------------------------------------- what is chosen

  function goTo(id) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    byId(id).scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "start" });
    byId(id).querySelector("h1, h2").focus({ preventScroll: true });
    hideTip();
  }

  function chooseHead(model, layer, head) {
    if (clamp(model, 0, models.length - 1) !== chosen.model) chosen.token = null; // another model has other tokens
    chosen.model = clamp(model, 0, models.length - 1);
    chosen.layer = clamp(layer, 0, current().heads.length - 1);
    chosen.head = clamp(head, 0, current().heads[chosen.layer].length - 1);
    const hash = `#model=${chosen.model}&layer=${chosen.layer}&head=${chosen.head}`;
    if (location.hash !== hash) history.replaceState(null, "", hash);
    for (const panel of document.querySelectorAll("#maps .panel")) markChosen(panel);
    drawHead();
    shadeText();
    showMark();
  }

  function headOfHash() {
    const given = new URLSearchParams(location.hash.slice(1));
    if (!given.has("layer")) return null;
    return ["model", "layer", "head"].map((name) => Math.max(0, Math.trunc(Number(given.get(name))) || 0));
  }

  // Without an address: the head of the first model whose attention to the first token is largest.
  function firstHead() {
    const value = ({ layer, head }) => headFigures(models[0], layer, head).first_token_attention ?? -1;
    const best = allHeads(models[0]).reduce((a, b) => value(b) > value(a) ? b : a);
    return [0, best.layer, best.head];
  }

  function recolour() {
    applyTheme();
    drawMaps();
    chooseHead(chosen.model, chosen.layer, chosen.head);
  }

  // ---------------------------------------------------------------- start

  const theme = remembered();
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  applyTheme();
  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    remembered(document.documentElement.dataset.theme);
    recolour();
  });
  systemIsDark.addEventListener("change", recolour);
  for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", (event) => {
    event.preventDefault();
    goTo(link.getAttribute("href").slice(1));
  });
  addEventListener("hashchange", () => { const given = headOfHash(); if (given) chooseHead(...given); });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  addEventListener("scroll", hideTip, { passive: true });
  let resized = 0;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(drawMaps, 150); });

  buildSummary();
  buildLayers();
  buildMapKeys();
  buildHeadControls();
  listenToText();
  drawMaps();
  chooseHead(...(headOfHash() || firstHead()));
})();
