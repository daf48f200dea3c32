// SPDX-License-Identifier: Apache-2.0
// Draws what the sections of a page share: elements, numbers, tokens, colours, charts. report.js and the page's own
// script follow it in the same script element.

const byId = (id) => document.getElementById(id);
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const known = (x) => typeof x === "number" && Number.isFinite(x);
const on = (id, event, act) => byId(id).addEventListener(event, act);
const boxOf = (node) => node.getBoundingClientRect();
const root = document.documentElement;
const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

// ---- elements, numbers, tokens

// Appends children one by one: a call takes no more arguments than fit the stack, fewer than a long text has tokens.
function fill(node, attributes, ...children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null) node.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null) node.append(child);
  return node;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, ...children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, ...children);
const sentence = (text) => el("p", { class: "sentence" }, text);

// Writes two to four digits, or the whole part. Numbers that lie within `spread` of each other get the digits that a
// hundredth of it needs, so that the ticks of an axis stay exact.
function number(x, spread = Infinity) {
  if (!known(x)) return "–";
  const size = Math.abs(x), place = (v) => Math.floor(Math.log10(v));
  const usual = size >= 1e12 ? 3 : size >= 1000 || Number.isInteger(x) ? place(size) + 1
    : size >= 1 ? 4 : size >= 0.001 ? 3 : 2;
  const digits = clamp(place(size) - place(spread) + 3, Math.max(1, usual), 16), rounded = Number(x.toPrecision(digits));
  if (size >= 1e12 || (size > 0 && size < 1e-5))
    return rounded.toExponential().replace("e+", "e").replace("e-", "e−");
  return size >= 1000 ? x.toLocaleString("en-US", { maximumSignificantDigits: digits }) : String(rounded);
}
const share = (x) => !known(x) ? "–" : x > 0 && x < 0.0005 ? "<0.001" : x.toFixed(3);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
// Lets a name break behind its punctuation, and not within a word.
const breakable = (name) => name.split(/(?<=[-_./\\])/).flatMap((part, i) => i ? [el("wbr"), part] : [part]);
const withUnit = (x, unit, spread) => number(x, spread) + (known(x) && unit ? ` ${unit}` : "");

// Shows a token on one line, with visible line breaks and outer spaces.
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
const weight = (byte) => (byte / 255) ** 2; // maps and `received` hold round(255 √w)

// Returns the value of the strongest colour. At most one value in 200 is larger, so that a few outliers do not fade all
// others.
function strongest(values) {
  const sorted = Float64Array.from(values).filter(known).sort();
  return sorted.length ? sorted[Math.ceil(sorted.length * 0.995) - 1] : 0;
}

// ---- colours

// ColorBrewer's YlGnBu and, for numbers below 0, its Oranges, equally dark, which colour-blind readers can tell apart.
// Dark pages reverse them, so that larger values always stand out more.
const stopsOf = (colours) => colours.map((stop) => [0, 2, 4].map((at) => parseInt(stop.slice(at, at + 2), 16)));
const paletteOf = (...colours) =>
  ({ stops: stopsOf(colours), pixel: new Uint8ClampedArray(1024), css: [], ink: [] });
const palette = paletteOf("fffdd6", "edf8b1", "c7e9b4", "7fcdbb", "41b6c4", "1d91c0", "225ea8", "253494", "081d58");
const paletteBelow =
  paletteOf("fffdd6", "fdd9ae", "fdae6b", "fd8d3c", "e6600d", "c04402", "8f2d04", "5c1c05", "2f0e03");

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme || (systemIsDark.matches ? "dark" : "light")) === "dark";

function applyTheme() {
  byId("theme").textContent = isDark() ? "☀ Light" : "☾ Dark";
  byId("theme").setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
  fillPalette(palette);
  fillPalette(paletteBelow);
}
function fillPalette({ stops, pixel, css, ink }) {
  for (let i = 0; i < 256; ++i) {
    const at = (isDark() ? 255 - i : i) / 255 * (stops.length - 1), stop = Math.min(stops.length - 2, Math.floor(at));
    const rgb = stops[stop].map((low, c) => Math.round(low + (stops[stop + 1][c] - low) * (at - stop)));
    const [r, g, b] = rgb.map((c) => (c / 255) ** 2.2);
    pixel.set([...rgb, 255], 4 * i);
    css[i] = `rgb(${rgb})`;
    ink[i] = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#0b0e13" : "#ffffff";
  }
}
const shadeOf = (share) => clamp(Math.round(share * 255), 0, 255);

// Colours numbers by their distance above the range's low end or, if the range includes both signs, from 0.
const largestOf = ({ low, high }) => Math.max(-low, high);
function colourOf(value, range) {
  const { css, ink } = range.low < 0 && value < 0 ? paletteBelow : palette;
  const share = range.low < 0 ? Math.abs(value) / largestOf(range) : (value - range.low) / (range.high - range.low);
  return { background: css[shadeOf(share)], ink: ink[shadeOf(share)] };
}
function drawRange(node, range) {
  const [low, high] = range.low < 0 ? [-largestOf(range), largestOf(range)] : [range.low, range.high];
  const at = (share) => low + (high - low) * share;
  drawStops(node, (share) => colourOf(at(share), range).background,
    [low, at(0.5), high].map((value) => number(value, high - low)));
}

const drawScale = (node, ...labels) => drawStops(node, (share) => palette.css[shadeOf(share)], labels);
function drawStops(node, colourAt, labels) {
  const stops = Array.from({ length: 17 }, (_, i) => colourAt(i / 16));
  node.replaceChildren(el("i", { style: `background:linear-gradient(90deg,${stops})` }),
    ...labels.map((label) => el("span", {}, label)));
  fill(node, { role: "img", "aria-label": `Colours: ${labels.join(", ")}` });
}

// ---- values under the pointer or the focus

function tip(lines, x, y) {
  const box = byId("tip");
  box.replaceChildren(...lines.map((line) => el("div", {}, line)));
  box.hidden = false;
  const { width, height } = boxOf(box);
  box.style.left = `${clamp(x + 14, 6, Math.max(6, innerWidth - width - 6))}px`;
  box.style.top = `${y + 18 + height > innerHeight ? Math.max(6, y - height - 12) : y + 18}px`;
}
const hideTip = () => { byId("tip").hidden = true; };

// Describes the parts of a box: linesOf(part) returns the lines about the part under the pointer or the focus, null for
// none.
function explain(box, linesOf) {
  const show = (event, x, y) => {
    const lines = linesOf(event.target);
    if (lines) tip(lines, x, y); else hideTip();
  };
  return fill(box, {
    onpointerover: (event) => show(event, event.clientX, event.clientY),
    onpointerleave: hideTip,
    onfocusin: (event) => {
      const { left, width, bottom } = boxOf(event.target);
      if (event.target.matches(":focus-visible")) show(event, left + width / 2, bottom - 10);
    },
    onfocusout: hideTip,
  });
}

// Draws `count` values, one of which the pointer, or focus and arrow keys, select: a slider to screen readers. `at`
// returns the value at a share of the width; `mark` shows value i (null: none) and returns its share of the width.
function inspect(node, { label, count, at, lines, mark }) {
  let index = 0;
  const show = (i, x, y) => {
    index = clamp(i, 0, count - 1);
    const share = mark(index), { left, width, top, height } = boxOf(node);
    fill(node, { "aria-valuenow": index, "aria-valuetext": lines(index).join("; ") });
    tip(lines(index), x ?? left + share * width, y ?? top + height / 3);
  };
  const hide = () => { mark(null); hideTip(); };
  return fill(node, {
    tabindex: 0, role: "slider", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": count - 1,
      "aria-valuenow": 0,
    "aria-valuetext": lines(0).join("; "),
    onpointermove: (event) =>
      show(at((event.clientX - boxOf(node).left) / boxOf(node).width), event.clientX, event.clientY),
    onpointerleave: hide,
    onfocus: () => { if (node.matches(":focus-visible")) show(index); },
    onblur: hide,
    onkeydown: (event) => {
      const step = { PageUp: 10, PageDown: -10, Home: -count, End: count }[event.key]
        ?? (([x, y]) => x - y)(ARROWS[event.key] || [0, 0]);
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      show(index + step);
    },
  });
}

// ---- lines and bars

const COLOURS = 6; // --model-0 … of page.css
const DASHES = ["none", "7 4", "2 3", "9 3 2 3"];
const colour = (i) => `var(--model-${i % COLOURS})`;
const look = (i) => (i + Math.floor(i / COLOURS)) % DASHES.length; // selects dash and marker, which differ where colours repeat
function marker(i, x, y, r) {
  const shape = ["M-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0z", "M-1-1h2v2h-2z", "M0-1.2l1.2 2.1h-2.4z",
    "M0-1.4L1.4 0 0 1.4-1.4 0z"][look(i)];
  return svg("path", { d: shape, transform: `translate(${x} ${y}) scale(${r})`, style: `fill:${colour(i)}` });
}
const sample = (i) => svg("svg", { class: "sample", viewBox: "0 0 34 14", "aria-hidden": "true" },
  svg("path", { class: "curve", d: "M0 7H34", style: `stroke:${colour(i)};stroke-dasharray:${DASHES[look(i)]}` }),
    marker(i, 17, 7, 4));

function niceTicks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((s) => s * power >= rough * (1 - 1e-9)) * power,
    first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) =>
    Number(((first + i) * step).toPrecision(15)));
}
const labelsOf = (ticks) => ticks.map((tick) => number(tick, ticks.length > 1 ? ticks[1] - ticks[0] : Infinity));

// Starts at 0, unless the numbers are far from it compared with their spread.
function rangeOf(values) {
  const numbers = values.filter(known);
  if (!numbers.length) return null;
  let low = numbers.reduce((a, b) => Math.min(a, b)), high = numbers.reduce((a, b) => Math.max(a, b));
  if (low >= 0 && low < 0.6 * high) low = 0;
  if (high <= 0 && high > 0.6 * low) high = 0;
  if (low === high) [low, high] = low > 0 ? [0, low] : [low, low < 0 ? 0 : 1];
  if (high - low === Infinity) [low, high] = [low / 2, high / 2]; // values beyond are drawn at the edge
  return { low, high };
}

// Returns the last index up to i with a recorded value; −1: none.
function recorded(values, i) {
  while (i >= 0 && values[i] === undefined) --i;
  return i;
}
const nearest = (xs, wanted) =>
  xs.reduce((best, x, i) => Math.abs(x - wanted) < Math.abs(xs[best] - wanted) ? i : best, 0);

function pathOf(points, x, y) {
  let pen = "M";
  return points.map((v, i) => {
    if (v === undefined) return "";
    const part = known(v) ? `${pen}${x(i).toFixed(1)} ${y(v).toFixed(1)}` : "";
    pen = known(v) ? "L" : "M";
    return part;
  }).join("");
}

// Draws lines or bars over 0 … count−1, at the numbers `xs`. series: [{index of the line, values}]; place(i) names what
// i stands for. A value is null if it is missing, undefined if none was recorded: then the line continues and the
// previous value still counts. Bars are shares of [0, 1] in `count` parts.
// references: lists of numbers that are drawn dashed, without a name.
function chart({ label, unit, series, count, axis, place, wide, fixed, marked, bars, references = [],
  xs = [...Array(count).keys()] }) {
  // About the width at which it is shown, so that letters have their own size: `wide` pixels at most, or a panel's.
  const W = wide ? clamp(root.clientWidth - 90, 320, wide) : 330, broad = W > 600;
  const H = broad ? 190 : 205, top = 12, bottom = H - 36;
  const values = series.flatMap((line) => line.values).filter(known);
  const range = fixed || rangeOf(values), smallest = values.reduce((a, b) => Math.min(a, b), Infinity);
  const logarithmic = !fixed && smallest > 0 && range.high > 10 && range.high / smallest > 50;
  const scale = logarithmic ? Math.log10 : (v) => v, spread = logarithmic ? Infinity : range.high - range.low;
  const low = logarithmic ? Math.max(-300, Math.floor(Math.log10(smallest))) : range.low;
  const high = logarithmic ? Math.ceil(Math.log10(range.high) - 1e-9) : range.high;
  const powers = logarithmic ? Array.from({ length: high - low + 1 }, (_, i) => 10 ** (low + i)) : [];
  const yTicks = logarithmic ? powers.filter((_, i) => i % Math.ceil(powers.length / 6) === 0)
    : niceTicks(low, high, 4);
  const yLabels = logarithmic ? yTicks.map((tick) => number(tick)) : labelsOf(yTicks);
  const left = clamp(16 + 7 * Math.max(...yLabels.map((text) => text.length)), 52, 150), width = W - left - 14;
  const from = xs[0], last = xs[count - 1], step = width / Math.max(1, bars ? count : last - from);
  const start = bars ? step / 2 : count === 1 ? width / 2 : 0;
  const across = (at) => left + start + step * (at - from), x = (i) => across(xs[i]);
  const y = (v) => bottom - (bottom - top) * ((clamp(scale(v), low, high) - low) / (high - low));
  const rule = (kind, at) => svg("path", { class: kind, d: `M${x(at)} ${top}V${bottom}` });
  const bar = (i, v, kind) =>
    svg("rect", { class: kind, x: x(i) - 0.45 * step, width: 0.9 * step, y: y(v), height: bottom - y(v) });

  const xTicks = niceTicks(from, Math.max(from + 1, last), broad ? 10 : last < 1000 ? 8 : 4)
    .filter((tick) => Number.isInteger(tick) && tick <= last), xLabels = labelsOf(xTicks);
  const write = (text, atX, atY, anchor) => svg("text", { x: atX, y: atY, "text-anchor": anchor }, text);
  const guide = svg("g", {}), drawing = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}` },
    yTicks.map((tick) => svg("path", { class: "grid", d: `M${left} ${y(tick)}h${width}` })),
    yTicks.map((tick, i) => write(yLabels[i], left - 8, y(tick) + 4, "end")),
    bars ? [0, 0.25, 0.5, 0.75, 1].map((tick) => write(tick, left + tick * width, bottom + 17, "middle"))
      : xTicks.map((tick, i) => write(xLabels[i], Math.min(across(tick), W - 3.5 * xLabels[i].length), bottom + 17,
        "middle")),
    write(axis + (logarithmic ? "; logarithmic scale" : ""), left + width / 2, H - 4, "middle"));
  for (const { index, values: points } of series) {
    if (bars) { drawing.append(...points.map((v, i) => bar(i, v, "bar"))); continue; }
    const drawn = points.filter(known).length;
    drawing.append(svg("path", { class: drawn > 200 ? "curve thin" : "curve", d: pathOf(points, x, y),
      style: `stroke:${colour(index)};stroke-dasharray:${drawn > 64 ? "none" : DASHES[look(index)]}` }));
    if (drawn <= 64) points.forEach((v, i) => { if (known(v)) drawing.append(marker(index, x(i), y(v), 3)); });
  }
  for (const points of references) drawing.append(svg("path", { class: "reference", d: pathOf(points, x, y) }));
  if (known(marked)) drawing.append(rule("marked", marked));
  drawing.append(guide);
  return inspect(drawing, {
    label, count,
    at: (share) => nearest(xs, from + (share * W - left - start) / step),
    lines: (i) => [place(i), ...series.map(({ index, values: v }) => {
      const at = recorded(v, i), value = withUnit(v[at], unit, spread);
      return `${names[index]}: ${value}${at === i || at < 0 ? "" : ` (${place(at)})`}`;
    })],
    mark: (i) => {
      const here = series.map((line) => ({ ...line, at: i === null ? -1 : recorded(line.values, i) }));
      guide.replaceChildren(...here.filter(({ values: v, at }) => known(v[at])).map(({ index, values: v, at }) =>
        bars ? bar(at, v[at], "bar on") : marker(index, x(at), y(v[at]), 5)));
      if (i !== null && !bars) guide.prepend(rule("guide", i));
      return x(i) / W;
    },
  });
}
