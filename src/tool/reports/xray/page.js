// SPDX-License-Identifier: Apache-2.0
// Draws the report, the JSON of the element `report`, in the order of the page. `chosen` holds what the reader has
// chosen; chooseHead() redraws what depends on it. Arrays are base64, decoded when they are drawn.

// ---- the report

const models = report.models;
const names = shortNames(models.map(({ name }) => name));
const hasGate = (model) => Boolean(model.gate) && model.gate !== "none";

const headFigures = (model) => (model.head_figures || []).flat();
const figureOf = (model, layer, head, key) => model.head_figures?.[layer]?.[head]?.[key];
const allHeads = (model) => model.heads.flatMap((row, layer) => row.map((_, head) => ({ layer, head })));

// Types of layers, if they differ within a model.
const TYPES = { full_attention: "full attention", sliding_attention: "sliding attention",
  linear_attention: "linear attention" };
const typesOf = (model) => model.layer_types || model.heads.map(() => "full_attention");
const isMixed = (model) => new Set(typesOf(model)).size > 1;
const isLinear = (model, layer) => typesOf(model)[layer] === "linear_attention";
const typeName = (model, layer) => TYPES[typesOf(model)[layer]] ?? "";

const headName = (layer, head) => `layer ${layer}, head ${head}`;

const chosen = { model: 0, layer: 0, head: 0, key: "", shade: "received", scope: "head", token: null };
const current = () => models[chosen.model];
const currentHead = () => current().heads[chosen.layer][chosen.head];

// ---- 1. summary

const FIRST = "first_token_attention", UNIFORM = "first_token_attention_uniform";
const BARS = [[FIRST, ""], ["first_token_attention_gated", "after"]];

// Returns how many layers and heads a model has, type by type if they differ. Names each number of heads that a layer has.
// Heads of keys and values are one number for the model, so they are left out where layers differ in heads.
function layerFacts(model) {
  const types = typesOf(model), each = [...new Set(types)];
  const counts = (has) => [...new Set(model.heads.filter((_, layer) => has(types[layer])).map((row) => row.length))];
  const queryHeads = counts((type) => type !== "linear_attention");
  return each.map((type) => {
    const heads = counts((one) => one === type), linear = type === "linear_attention";
    const shared = !linear && queryHeads.length === 1 && known(model.kv_heads) && model.kv_heads !== heads[0];
    const layers = each.length > 1 ? `${types.filter((one) => one === type).length} layers of ${TYPES[type]}`
      : `${model.layers} layers`;
    return `${layers} × ${heads.join("/")} ${linear ? "value heads" : "heads"}` +
      (shared ? ` (${model.kv_heads} of keys and values)` : "");
  });
}

function modelCard(model, i) {
  const facts = [hasGate(model) ? `gate ${model.gate}` : "no gate", `${number(model.parameters)} parameters`,
    ...layerFacts(model), `width ${number(model.dim)}`, `${number(model.tokens)} tokens in one sequence`];
  const uniform = model.figures[UNIFORM], percent = (share) => `${100 * clamp(share, 0, 1)}%`;
  const bars = BARS.filter(([key]) => known(model.figures[key])).flatMap(([key, kind]) => [
    el("span", {}, capital(figure(key).name)),
    el("div", { class: "track", title: `if uniform: ${shown(UNIFORM, uniform)}` },
      el("div", { class: `fill ${kind}`, style: `width:${percent(model.figures[key])}` }),
      known(uniform) ? el("i", { class: "uniform", style: `left:${percent(uniform)}` }) : null),
    el("span", { class: "number" }, shown(key, model.figures[key]))]);
  return el("article", { class: "panel card", style: `--model:${colour(i)}` },
    el("h2", {}, sample(i), el("span", {}, breakable(names[i]))),
    names[i] === model.name ? null : el("div", { class: "path" }, breakable(model.name)),
    el("p", { class: "verdict" }, model.verdict),
    el("p", { class: "facts" }, facts.join(" · ")),
    bars.length ? el("div", { class: "bars" }, bars) : null);
}

function buildSummary() {
  byId("source").textContent = `Text: ${report.text}`;
  document.title = `headgate xray: ${names.join(", ")}`;
  byId("bars-note").hidden = !models.some(({ figures }) => BARS.some(([key]) => known(figures[key])));
  byId("cards").replaceChildren(...models.map(modelCard));
  fillTable(byId("headline"), keysOf(models.map((model) => model.figures)), models.map(({ figures }) => (key) =>
    el("td", { title: known(figures[key]) ? null : "this model has none" }, shown(key, figures[key]))));
}

// ---- 2. layers

// Names a layer, with its type in the models whose layers differ.
function layerName(layer) {
  const mixed = models.filter(isMixed), of = (model) => typeName(model, layer);
  if (!mixed.some(of)) return `layer ${layer}`;
  const types = mixed.length === models.length && new Set(mixed.map(of)).size === 1 ? of(mixed[0])
    : models.map((model, i) => isMixed(model) && of(model) ? `${of(model)} in ${names[i]}` : "").filter(Boolean)
      .join(", ");
  return `layer ${layer} (${types})`;
}

// Draws a model's layers in order, each with the letter and the colour of its type.
function layerList(model, index) {
  const types = typesOf(model), count = (type) => types.filter((one) => one === type).length;
  const key = [...new Set(types)].map((type) => el("span", { class: "kind-key" },
    el("i", { class: `kind ${type}`, "aria-hidden": "true" }, TYPES[type][0].toUpperCase()),
    `${TYPES[type]}, ${count(type)} layers`));
  const layers = types.map((type, layer) => el("li", { class: `kind ${type}`, "data-layer": layer,
    "aria-label": `layer ${layer}: ${TYPES[type]}` }, TYPES[type][0].toUpperCase()));
  return explain(el("div", { class: "panel kinds" }, el("h3", {}, sample(index), el("span", {}, breakable(names[index]))),
    el("ol", { start: 0 }, layers), el("p", { class: "hint" }, key)),
  ({ dataset: { layer } }) => layer ? [`${names[index]}, layer ${layer}`, typeName(model, layer)] : null);
}

const DISTANCE = "mean_distance";

// Returns a figure of each layer of a model: null where it has none, up to the layers of the deepest model.
const mostLayers = Math.max(...models.map((model) => model.heads.length));
const byLayer = (model, key) => Array.from({ length: mostLayers }, (_, layer) =>
  model.layer_figures?.[layer]?.[key] ?? null);

// Returns the lists of numbers that differ, without those that have none: most models see the same text.
const distinct = (lists) => [...new Map(lists.filter((list) => list.some(known)).map((list) => [String(list), list]))
  .values()];

function layerChart(key) {
  const far = key === DISTANCE;
  const series = models.map((model, index) => ({ index, values: byLayer(model, key) }))
    .filter((line) => line.values.some(known));
  const uniform = key !== FIRST ? [] : models.map((model) => byLayer(model, UNIFORM));
  return el("div", { class: far ? "panel far" : "panel", "data-key": key },
    el("h3", {}, far ? "How far each layer looks" : capital(figure(key).name)), sentence(figure(key).sentence),
    uniform.length ? el("p", { class: "hint" }, "Dashed: uniform attention over the tokens that a query sees.") : null,
    chart({ label: `${figure(key).name} by layer`, series, axis: "layer", place: layerName, wide: far ? 1110 : 0,
      unit: far ? "tokens" : "", fixed: shareScale([key], series.flatMap(({ values }) => values)),
      references: distinct(uniform), count: mostLayers }),
    models.map((model, i) => {
      const note = overrideNote(model, key);
      note?.prepend(`${names[i]}: `);
      return note;
    }));
}

function buildLayers() {
  byId("layers-legend").replaceChildren(...models.map((_, i) => el("span", {}, sample(i), names[i])));
  byId("layer-lists").replaceChildren(...models.flatMap((model, i) => isMixed(model) ? [layerList(model, i)] : []));
  const keys = keysOf(models.flatMap((model) => model.layer_figures || []));
  byId("layers").hidden = !keys.length;
  const first = keys.filter((key) => key === DISTANCE);
  const others = keys.filter((key) => key !== DISTANCE && key !== UNIFORM); // which is a line in another chart
  byId("layer-charts").replaceChildren(...[...first, ...others].map(layerChart));
}

// ---- 3. layer × head maps

function buildMapKeys() {
  const keys = keysOf(models.flatMap(headFigures));
  byId("heads").hidden = !keys.length;
  byId("map-key").replaceChildren(...keys.map((key) => el("option", { value: key }, capital(figure(key).name))));
  byId("map-key").value = chosen.key = keys.includes(FIRST) ? FIRST : keys[0];
  on("map-key", "change", (event) => { chosen.key = event.target.value; drawMaps(); });
  buildWorth(keys);
}

// Builds the buttons for the maps of what heads are worth.
function buildWorth(keys) {
  const kinds = overrideKinds.filter((kind) => keys.includes(kind.figure));
  byId("worth").hidden = !kinds.length;
  const draw = (key) => { byId("map-key").value = chosen.key = key; drawMaps(); };
  byId("worth").querySelector(".group").replaceChildren(...kinds.map((kind) =>
    el("button", { "data-key": kind.figure, onclick: () => draw(kind.figure) }, kind.word)));
}

// Returns on what an override's figure of a model was measured, or why there is none; null for other figures.
const overrideKinds = models.map((model) => model.overrides?.kinds || []).find((kinds) => kinds.length) || [];
function overrideNote({ overrides }, key) {
  const kind = overrides?.kinds.find((one) => one.figure === key);
  if (!kind) return null;
  return el("p", { class: "hint override" }, kind.left_out ? `Left out: ${kind.left_out}.`
    : `Against a loss of ${number(overrides.loss)} nats on the first ${number(overrides.tokens)} tokens.`);
}

function drawMaps() {
  const values = models.flatMap(headFigures).map((row) => row[chosen.key]); // one scale for all models
  const range = shareScale([chosen.key], values) ?? rangeOf(values);
  if (!range) return;
  byId("map-sentence").textContent = figure(chosen.key).sentence;
  drawRange(byId("map-legend"), range);
  for (const button of byId("worth").querySelectorAll("button"))
    button.setAttribute("aria-pressed", button.dataset.key === chosen.key);
  const fit = (columns) => Math.floor((byId("maps").clientWidth / columns - 126) / mostLayers) - 1;
  let columns = models.length;
  while (columns > 1 && fit(columns) < 12) --columns;
  const cell = clamp(fit(columns), root.clientWidth <= 640 ? 7 : 12, 64); // 30 layers fit a phone
  byId("maps").setAttribute("style", `--columns:${columns};--cell:${cell}px;--cell-high:${clamp(cell, 15, 34)}px`);
  byId("maps").replaceChildren(...models.map((model, index) => headMap(model, index, range, cell)));
}

function headMap(model, index, range, cell) {
  const { name } = figure(chosen.key), layers = model.heads.length,
    heads = Math.max(...model.heads.map((row) => row.length));
  const value = ({ layer, head }) => figureOf(model, layer, head, chosen.key);
  const place = (button) => ({ layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
  const lines = (at) => [headName(at.layer, at.head), known(value(at)) ? `${name}: ${shown(chosen.key, value(at))}`
    : `${name}: none`];
  const open = ({ layer, head }) => { chooseHead(index, layer, head); goTo("head"); };
  const buttons = new Map();
  const button = (layer, head) => {
    const v = value({ layer, head }), { background, ink } = colourOf(v, range);
    const made = el("button",
      { role: "gridcell", class: known(v) ? null : "void", "data-layer": layer, "data-head": head,
      "aria-label": lines({ layer, head }).join(", "),
      style: known(v) ? `background:${background};color:${ink}` : null },
    cell >= 40 && known(v) ? brief(chosen.key, v) : null);
    buttons.set(`${layer} ${head}`, made);
    return made;
  };
  const axis = (text, role) => el("span", { class: "axis", role }, text);
  const grid = el("div", { class: "map", role: "grid",
      style: `grid-template-columns:auto repeat(${layers}, var(--cell))`,
    "aria-label": `${name}, ${names[index]}: heads down, layers across` },
  el("div", { role: "row" }, axis("head \\ layer", "columnheader"), model.heads.map((_, layer) =>
    axis(layer % (cell < 18 ? 5 : 1) ? "" : layer, "columnheader"))),
  Array.from({ length: heads }, (_, head) => el("div", { role: "row" }, axis(head, "rowheader"),
    model.heads.map((row, layer) => head < row.length ? button(layer, head) : el("span")))));
  explain(grid, (target) => target.dataset.layer ? lines(place(target)) : null);
  fill(grid, {
    onclick: ({ target }) => { if (target.dataset.layer) open(place(target)); },
    onkeydown: (event) => {
      const step = { Home: [-layers, 0], End: [layers, 0], ...ARROWS }[event.key];
      if (!step || !event.target.dataset.layer) return;
      event.preventDefault();
      const { layer, head } = place(event.target);
      const next = buttons.get(`${clamp(layer + step[0], 0, layers - 1)} ${clamp(head + step[1], 0, heads - 1)}`);
      event.target.tabIndex = -1;
      (next || event.target).tabIndex = 0;
      next?.focus();
    },
  });
  const describe = (at) => `${headName(at.layer, at.head)}: ${shown(chosen.key, value(at))}`;
  const highest = allHeads(model).filter((at) => known(value(at))).sort((a, b) => value(b) - value(a)).slice(0, 3);
  const panel = el("div", { class: "panel", "data-model": index }, el("h3", {}, sample(index), el("span", {}, breakable(names[index]))),
    !highest.length ? el("p", { class: "hint" }, "This model has none.")
      : [grid, el("div", { class: "highest" }, "Highest: ",
      highest.map((at) => el("button", { onclick: () => open(at) }, describe(at))))],
    overrideNote(model, chosen.key));
  markChosen(panel);
  return panel;
}

// Highlights the chosen head's cell. Tab reaches one cell of each map.
function markChosen(panel) {
  const cells = [...panel.querySelectorAll("[role=gridcell]")];
  const mine = cells.find(({ dataset }) => Number(panel.dataset.model) === chosen.model
    && Number(dataset.layer) === chosen.layer && Number(dataset.head) === chosen.head);
  for (const cell of cells) fill(cell,
    { "aria-selected": cell === mine, tabindex: cell === (mine || cells[0]) ? 0 : -1 });
}

// ---- 4. a head's attention map

const MARGIN = 58;
const pattern = { bytes: null, size: 0, image: el("canvas"), zoom: 1, x: 0, y: 0, cell: null };
const shownCells = () => pattern.size / pattern.zoom;

// Returns the byte that the strongest colour stands for.
function paintPattern(canvas, bytes, size, strong = Math.max(1, strongest(bytes))) {
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d"), image = context.createImageData(size, size);
  const pixels = new Uint32Array(image.data.buffer), colours = new Uint32Array(palette.pixel.buffer);
  for (let row = 0, at = 0; row < size; ++row)
    for (let column = 0; column <= row; ++column, ++at)
      pixels[row * size + column] = colours[shadeOf(bytes[at] / strong)];
  context.putImageData(image, 0, 0);
  return strong;
}

function loadPattern() {
  const { map_size: size, tokens } = current();
  if (pattern.size !== size) Object.assign(pattern, { size, zoom: 1, x: 0, y: 0 });
  pattern.bytes = decode(currentHead().map);
  const strong = paintPattern(pattern.image, pattern.bytes, size, byId("full-scale").checked ? 255 : undefined);
  drawScale(byId("pattern-legend"), "0", number(weight(strong / 2)), (strong < 255 ? "≥ " : "")
    + number(weight(strong)));
  const side = number(Number((tokens / size).toPrecision(2)));
  const cells = tokens > size ? `; a cell is a mean over about ${side} queries and as many keys` : "";
  const what = isLinear(current(), chosen.layer)
    ? "The share of each token (across) in what each token (down) reads of the state, by the magnitude of its weight, " +
      "before the gate"
    : "The softmax weight that each query token (down) gives to each key token (across), before the gate";
  byId("pattern-sentence").textContent =
    `${what}, in this pass over the text${cells}; colours follow the weight’s square root, so that small weights show.`;
  byId("pattern").setAttribute("aria-label",
    `Attention map of ${headName(chosen.layer, chosen.head)}: ` +
      "arrow keys move over its cells, plus and minus zoom, 0 shows all");
  readCell(null);
}

function drawPattern() {
  const canvas = byId("pattern"), { text, tokens } = current(), ratio = devicePixelRatio || 1,
    side = canvas.clientWidth;
  if (!side || !pattern.bytes) return;
  canvas.width = canvas.height = Math.round(side * ratio);
  canvas.style.touchAction = pattern.zoom > 1 ? "none" : "pan-y";
  const style = getComputedStyle(canvas), context = canvas.getContext("2d"), plot = side - MARGIN,
    pixels = plot / shownCells();
  const px = (column) => MARGIN + (column - pattern.x) * pixels, py = (row) => MARGIN + (row - pattern.y) * pixels;
  const centre = (token) => (token + 0.5) * pattern.size / tokens;
  context.scale(ratio, ratio);
  context.save();
  context.beginPath();
  context.rect(MARGIN, MARGIN, plot, plot);
  context.clip();
  context.fillStyle = style.borderColor;
  context.globalAlpha = 0.3;
  context.fillRect(MARGIN, MARGIN, plot, plot);
  context.globalAlpha = 1;
  context.imageSmoothingEnabled = false;
  context.drawImage(pattern.image, px(0), py(0), pattern.size * pixels, pattern.size * pixels);
  context.fillStyle = context.strokeStyle = style.accentColor;
  context.lineWidth = 1.5;
  if (chosen.token !== null) {
    const at = centre(chosen.token);
    context.stroke(new Path2D(`M${px(at)} ${py(at)}V${py(pattern.size)}M${px(0)} ${py(at)}H${px(at)}`));
  }
  if (pattern.cell) {
    const { row, column } = pattern.cell, grown = Math.max(0, 5 - pixels) / 2;
    context.globalAlpha = 0.12;
    context.fillRect(MARGIN, py(row), plot, pixels);
    context.fillRect(px(column), MARGIN, pixels, plot);
    context.globalAlpha = 1;
    context.strokeRect(px(column) - grown, py(row) - grown, pixels + 2 * grown, pixels + 2 * grown);
  }
  context.restore();

  // Shows the tokens themselves if there is room, otherwise their numbers.
  const words = pixels >= 13 && pattern.size === tokens, each = words ? 1
    : Math.ceil(niceTicks(0, tokens / pattern.zoom, 6)[1]);
  const write = (label, x, y, align, turn) => {
    context.save();
    context.translate(x, y);
    context.rotate(turn);
    context.textAlign = align;
    context.fillText(label, 0, 0);
    context.restore();
  };
  context.fillStyle = style.color;
  context.textBaseline = "middle";
  context.font = words ? "11px ui-monospace, monospace" : "11px system-ui, sans-serif";
  for (let token = 0; token < tokens; token += each) {
    const label = words ? visible(text[token] ?? "").slice(0, 7) : String(token), x = px(centre(token)),
      y = py(centre(token));
    if (y >= MARGIN && y <= side) write(label, MARGIN - 6, y, "right", 0);
    const align = words ? "left" : x > side - 20 ? "right" : "center";
    if (x >= MARGIN && x <= side) write(label, x, MARGIN - (words ? 6 : 12), align, words ? -Math.PI / 2 : 0);
  }
  context.font = "600 11.5px system-ui, sans-serif";
  if (!words) write("key token →", MARGIN, MARGIN - 34, "left", 0);
  if (!words) write("← query token", 12, MARGIN, "right", -Math.PI / 2);
}

// Describes a cell, below the map and, with x and y, beside the pointer.
function readCell(cell, x, y) {
  pattern.cell = cell;
  requestAnimationFrame(drawPattern);
  if (!cell) {
    byId("pattern-cell").textContent = "Point at a cell, or use the arrow keys, for its tokens and weight.";
    hideTip();
    return;
  }
  const model = current(), { row, column } = cell, start = (c) => Math.floor(c * model.tokens / model.map_size);
  const query = tokenRange(model, start(row), start(row + 1) - 1),
    key = tokenRange(model, start(column), start(column + 1) - 1);
  const says = column > row ? "Not seen: the key comes after the query"
    : `${model.map_size < model.tokens ? "Mean weight" : "Weight"} ` +
      number(weight(pattern.bytes[row * (row + 1) / 2 + column]));
  byId("pattern-cell").replaceChildren(el("strong", {}, says), ` · query ${query} → key ${key}`);
  if (known(x)) tip([says, `query ${query}`, `key ${key}`], x, y); else hideTip();
}

function moveView(x, y) {
  pattern.x = clamp(x, 0, pattern.size - shownCells());
  pattern.y = clamp(y, 0, pattern.size - shownCells());
  requestAnimationFrame(drawPattern);
}
// Zooms about a point, given as shares of the plot.
function zoomBy(factor, [shareX, shareY] = [0.5, 0.5]) {
  const before = shownCells();
  pattern.zoom = clamp(pattern.zoom * factor, 1, Math.max(1, pattern.size / 6));
  moveView(pattern.x + (before - shownCells()) * clamp(shareX, 0, 1), pattern.y
    + (before - shownCells()) * clamp(shareY, 0, 1));
}

function listenToPattern() {
  const canvas = byId("pattern");
  let drag = null;
  const place = (event) => {
    const { left, top, width } = boxOf(canvas);
    return [(event.clientX - left - MARGIN) / (width - MARGIN), (event.clientY - top - MARGIN) / (width - MARGIN)];
  };
  fill(canvas, {
    onpointermove: (event) => {
      const [x, y] = place(event), shown = shownCells();
      if (drag) moveView(drag.x - (x - drag.from[0]) * shown, drag.y - (y - drag.from[1]) * shown);
      else if (Math.min(x, y) < 0 || Math.max(x, y) >= 1) readCell(null);
      else readCell({ column: Math.floor(pattern.x + x * shown), row: Math.floor(pattern.y + y * shown) },
        event.clientX, event.clientY);
    },
    onpointerdown: (event) => {
      if (pattern.zoom === 1) return;
      canvas.setPointerCapture(event.pointerId);
      drag = { from: place(event), x: pattern.x, y: pattern.y };
      hideTip();
    },
    onlostpointercapture: () => { drag = null; },
    onpointerleave: () => { if (!drag) readCell(null); },
    onwheel: (event) => { // the page scrolls unless the map has the focus
      if ((document.activeElement !== canvas && !event.ctrlKey) || (event.deltaY > 0 && pattern.zoom === 1)) return;
      event.preventDefault();
      zoomBy(Math.exp(-clamp(event.deltaY, -120, 120) / 300), place(event));
    },
    onkeydown: (event) => {
      const { size, cell } = pattern, far = event.shiftKey ? 10 : 1;
      const step = { Home: [-size, 0], End: [size, 0], PageUp: [0, -10], PageDown: [0, 10], ...ARROWS }[event.key];
      const zoom = { "+": 1.5, "=": 1.5, "-": 1 / 1.5, 0: 1e-9 }[event.key];
      if (event.ctrlKey || event.altKey || event.metaKey || !(step || zoom || event.key === "Escape")) return;
      event.preventDefault();
      const share = (at, from) => (at + 0.5 - from) / shownCells();
      if (zoom) zoomBy(zoom, cell ? [share(cell.column, pattern.x), share(cell.row, pattern.y)] : undefined);
      else if (!step) readCell(null);
      else {
        const column = clamp(cell ? cell.column + step[0] * far : Math.floor(pattern.x), 0, size - 1);
        const row = clamp(cell ? cell.row + step[1] * far : Math.floor(pattern.y), 0, size - 1);
        moveView(clamp(pattern.x, column + 1 - shownCells(), column), clamp(pattern.y, row + 1 - shownCells(), row));
        readCell({ row, column });
      }
    },
  });
  for (const [id, factor] of [["zoom-in", 1.5], ["zoom-out", 1 / 1.5], ["zoom-all", 1e-9]]) on(id, "click", () =>
    zoomBy(factor));
  on("full-scale", "change", loadPattern);
  new ResizeObserver(drawPattern).observe(canvas);
}

// ---- 4. the rest of a head

function buildHeadControls() {
  const selects = ["head-model", "head-layer", "head-head"].map(byId);
  selects[0].replaceChildren(...names.map((name, i) => el("option", { value: i }, name)));
  for (const select of selects) select.addEventListener("change", () =>
    chooseHead(...selects.map((each) => Number(each.value))));
  const step = (by) => {
    const heads = allHeads(current()),
      at = heads.findIndex(({ layer, head }) => layer === chosen.layer && head === chosen.head);
    const { layer, head } = heads[(at + by + heads.length) % heads.length];
    chooseHead(chosen.model, layer, head);
  };
  on("head-previous", "click", () => step(-1));
  on("head-next", "click", () => step(1));
  listenToPattern();
}

function drawHead() {
  const model = current(), head = currentHead();
  const options = (id, count, value) => {
    if (byId(id).length !== count) byId(id).replaceChildren(...Array.from({ length: count }, (_, i) =>
      el("option", { value: i }, i)));
    byId(id).value = value;
  };
  byId("head-model").value = chosen.model;
  options("head-layer", model.heads.length, chosen.layer);
  options("head-head", model.heads[chosen.layer].length, chosen.head);
  const type = isMixed(model) ? ` (${typeName(model, chosen.layer)})` : "";
  byId("head-title").textContent = `One head: ${headName(chosen.layer, chosen.head)}${type} of ${names[chosen.model]}`;
  loadPattern();

  byId("head-figures").replaceChildren(...keysOf(headFigures(model)).map((key) => {
    const mine = figureOf(model, chosen.layer, chosen.head, key),
      all = headFigures(model).map((row) => row[key]).filter(known);
    const rank = known(mine) ? `${1 + all.filter((v) => v > mine).length} of ${all.length}` : "";
    const value = el("span", {}, el("b", {}, shown(key, mine)), el("span", { class: "rank" }, rank));
    return el("div", {}, el("dt", {}, el("span", {}, capital(figure(key).name)), value), el("dd", {}, figure(key).sentence));
  }));

  const keys = head.top_keys || [];
  byId("top-keys").replaceChildren(...keys.map(([token, w]) => el("li", {}, el("button", {
    "data-token": token, style: `--share:${100 * w}%`, onclick: () => markToken(token, true),
    "aria-label": `Mark ${tokenRange(model, token, token)}, mean weight ${share(w)}` },
  el("span", {}, token), el("code", {}, visible(model.text[token] ?? "")), el("span", {}, share(w))))));

  const counts = head.gate_histogram || [], total = counts.reduce((a, b) => a + b, 0) || 1, n = counts.length;
  byId("gate-histogram").hidden = !n;
  byId("gate-histogram").replaceChildren(...(!n ? [] : [el("h3", {}, "Values of the gate"),
    sentence("How often each value of this head’s gate occurs, over its features and the tokens of this text; the " +
      "vertical axis ends at the most frequent."),
    chart({ label: "Histogram of the gate", unit: "of the values", axis: "gate", count: n, bars: true,
      series: [{ index: chosen.model, values: counts.map((c) => c / total) }],
        fixed: { low: 0, high: Math.max(...counts) / total || 1 },
      place: (i) => `gate ${number(i / n)} to ${number((i + 1) / n)}` })]));
  byId("gate-histogram").setAttribute("style", `--model:${colour(chosen.model)}`);
  drawStrip();
}

function drawGateLine() {
  const model = current(), { gate } = currentHead();
  const line = () => chart({
    label: "Gate at each token", unit: "", axis: "token", wide: 730, fixed: { low: 0, high: 1 }, marked: chosen.token,
    series: [{ index: chosen.model, values: Array.from(decode(gate), (byte) => byte / 255) }],
    count: model.tokens, place: (i) => tokenRange(model, i, i),
  });
  byId("gate-tokens").replaceChildren(el("h3", {}, "The gate, token by token"), sentence(
    gate && isLinear(model, chosen.layer)
      ? "The mean magnitude of this head’s output gate, SiLU, over its features, at each token of this text; near 0, " +
        "the head adds almost nothing there, and values above 1 are drawn as 1."
      : gate ? "The mean of this head’s gate over its features, at each token of this text; near 0, the head adds almost " +
        "nothing there."
      : hasGate(model) ? "The report has no gate of this head alone."
          : "This model has no gate: its heads cannot close."),
  gate ? line() : "");
}

// Draws small maps of the heads of this layer, for every model that has the layer.
function drawStrip() {
  byId("strip-title").textContent = `All heads of layer ${chosen.layer}`;
  byId("strip").replaceChildren(...models.map((model, index) =>
    el("div", { hidden: chosen.layer < model.heads.length ? null : "" },
    el("strong", {}, sample(index), el("span", {}, breakable(names[index]))),
    (model.heads[chosen.layer] || []).map((head, h) => {
      const canvas = el("canvas", { "aria-hidden": "true" });
      paintPattern(canvas, decode(head.map), model.map_size);
      return el("button", { "aria-pressed": index === chosen.model && h === chosen.head,
        "aria-label": `Open head ${h} of ${names[index]}`,
        onclick: () => {
          chooseHead(index, chosen.layer, h);
          byId("strip").querySelector("[aria-pressed=true]").focus({ preventScroll: true });
        } }, canvas, h);
    }))));
}

// ---- 5. the text

let spans = [], spansOf = null, focused = 0;
const DARKEST_LOSS = 8; // nats: a token with a probability of 1 in 3000

function buildTokens() {
  if (spansOf === current()) return;
  spansOf = current();
  focused = 0;
  spans = spansOf.text.map((piece, i) =>
    el("span", { role: "option", tabindex: i ? -1 : 0, "data-token": i, "aria-selected": "false" },
    piece === "" ? "·" : piece.replace(/\n/g, "↵\n")));
  byId("tokens").replaceChildren();
  fill(byId("tokens"), {}, spans);
  byId("tokens").setAttribute("aria-label", `The text as tokens of ${names[chosen.model]}`);
}

// Returns one number a token, or null: of the chosen head, or the mean over the heads of its layer, or over all layers.
function tokenValues(shade) {
  const model = current(), real = shade === "received" ? weight : (byte) => byte / 255;
  // loss of predicting this token
  if (shade === "loss") return [null, ...(model.token_losses || []).slice(0, model.tokens - 1)];
  const rows = model.layer_text?.[shade] || [];
  const given = { head: [currentHead()[shade]], layer: [rows[chosen.layer]],
    all: rows }[chosen.scope].filter(Boolean).map(decode);
  return given.length ? model.text.map((_, i) => given.reduce((sum, row) => sum + real(row[i]), 0) / given.length) : [];
}

function shadeText() {
  buildTokens();
  const model = current(), name = names[chosen.model];
  const has = { received: true, gate: Boolean(model.layer_text?.gate || currentHead().gate),
    loss: (model.token_losses || []).some(known) };
  const shade = has[chosen.shade] ? chosen.shade : "received"; // the choice stays for models that have it
  for (const button of byId("shades").children) {
    fill(button, { "aria-pressed": button.dataset.shade === shade, title: has[button.dataset.shade] ? ""
      : "this model has none" });
    button.disabled = !has[button.dataset.shade];
  }
  for (const button of byId("scopes").children) {
    button.setAttribute("aria-pressed", shade !== "loss" && button.dataset.scope === chosen.scope);
    button.disabled = shade === "loss";
  }
  // One scale for every text and model, so that a colour means the same wherever it stands.
  const values = tokenValues(shade), top = shade === "loss" ? DARKEST_LOSS : 1, power = shade === "received" ? 0.5 : 1;
  spans.forEach((span, i) => {
    const at = shadeOf((values[i] / top) ** power);
    span.style.backgroundColor = known(values[i]) ? palette.css[at] : "";
    span.style.color = known(values[i]) ? palette.ink[at] : "";
  });
  drawScale(byId("text-legend"), "0", number(top * 0.5 ** (1 / power)), shade === "loss" ? `≥ ${top} nats` : "1");
  const { layer, head, scope } = chosen;
  const whose = { head: headName(layer, head), layer: `the heads of layer ${layer}`,
    all: "all heads of all layers" }[scope];
  byId("text-sentence").textContent = {
    received:
      `The mean ${isLinear(model, layer) && scope !== "all" ? "share" : "weight"} that each token receives from ` +
      `itself and those after it, in ${whose} of ${name}; ` +
      "few see the last tokens, so theirs is high; colours follow the square root.",
    gate: `The mean of the gate at each token, over features, in ${whose} of ${name}; near 0, almost nothing is added.`,
    loss: `−log p that ${name} gives to each token but the first, from those before it, in nats: ` +
      "the higher, the less expected.",
  }[shade];
}

function tokenLines(i) {
  const whose = { head: "this head", layer: "mean of its layer", all: "mean of all layers" }[chosen.scope];
  const line = (name, value, unit) => known(value) ? [`${name}: ${withUnit(value, unit)}`] : [];
  return [tokenRange(current(), i, i), ...line(`attention received, ${whose}`, tokenValues("received")[i]),
    ...line(`gate, ${whose}`, tokenValues("gate")[i]),
      ...line("loss of predicting it", tokenValues("loss")[i], "nats")];
}

function markToken(token, scroll) {
  chosen.token = chosen.token === token ? null : token;
  showMark();
  if (scroll) byId("tokens").scrollTop = spans[token].offsetTop - byId("tokens").clientHeight / 2;
}
function showMark() {
  byId("tokens").querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
  spans[chosen.token]?.setAttribute("aria-selected", "true");
  for (const button of byId("top-keys").querySelectorAll("button"))
    button.setAttribute("aria-pressed", Number(button.dataset.token) === chosen.token);
  requestAnimationFrame(drawPattern);
  drawGateLine();
}

// Returns the token above (−1) or below (1), or ten tokens away if no line is there.
function tokenBeyond(direction) {
  const { left, top, height } = boxOf(spans[focused]);
  const there = document.elementFromPoint(left + 3, top + height / 2 + direction * 25);
  return Number(there?.dataset.token ?? focused + 10 * direction);
}

function listenToText() {
  for (const kind of ["shade", "scope"])
    on(`${kind}s`, "click", ({ target }) => { chosen[kind] = target.dataset[kind] ?? chosen[kind]; shadeText(); });
  const focus = (i) => {
    spans[focused].tabIndex = -1;
    focused = clamp(i, 0, spans.length - 1);
    fill(spans[focused], { tabindex: 0, "aria-label": tokenLines(focused).join("; ") }).focus();
  };
  explain(byId("tokens"), ({ dataset }) => dataset.token ? tokenLines(Number(dataset.token)) : null);
  fill(byId("tokens"), {
    onclick: ({ target }) => {
      if (!target.dataset.token) return;
      focus(Number(target.dataset.token));
      markToken(focused, false);
    },
    onkeydown: (event) => {
      const [across, down] = ARROWS[event.key] || [0, 0], enter = event.key === "Enter" || event.key === " ";
      const to = { Home: 0, End: spans.length }[event.key] ?? (down ? tokenBeyond(down) : focused + across);
      if (to === focused && !enter) return;
      event.preventDefault();
      if (enter) markToken(focused, false); else focus(to);
    },
  });
}

// ---- what is chosen

function chooseHead(model, layer, head) {
  model = clamp(model, 0, models.length - 1);
  if (model !== chosen.model) chosen.token = null; // another model has other tokens
  chosen.model = model;
  chosen.layer = clamp(layer, 0, current().heads.length - 1);
  chosen.head = clamp(head, 0, current().heads[chosen.layer].length - 1);
  history.replaceState(null, "", `#model=${chosen.model}&layer=${chosen.layer}&head=${chosen.head}`);
  for (const panel of byId("maps").children) markChosen(panel);
  drawHead();
  shadeText();
  showMark();
}

// Opens the head that the address names, or else that of the first model that attends most to the first token.
function openAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const value = ({ layer, head }) => figureOf(models[0], layer, head, FIRST) ?? -1;
  const { layer, head } = allHeads(models[0]).reduce((a, b) => value(b) > value(a) ? b : a);
  if (!given.has("layer")) chooseHead(0, layer, head);
  else chooseHead(...["model", "layer", "head"].map((name) => Math.trunc(Number(given.get(name))) || 0));
}

function recolour() {
  applyTheme();
  drawMaps();
  chooseHead(chosen.model, chosen.layer, chosen.head);
}

// ---- start

let drawnWidth = root.clientWidth;

listenToBar(recolour);
addEventListener("resize", () => {
  drawMaps();
  if (root.clientWidth === drawnWidth) return;
  drawnWidth = root.clientWidth;
  buildLayers();
  drawGateLine();
});
addEventListener("hashchange", openAddress);

applyTheme();
buildSummary();
buildLayers();
buildMapKeys();
buildHeadControls();
listenToText();
drawMaps();
openAddress();
