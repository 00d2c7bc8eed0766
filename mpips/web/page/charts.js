"use strict";
// Charts by uPlot: curves and stacks of shares. A chart is reached by Tab, and the arrow keys move its cursor as the
// pointer does; the values at the cursor stand in a line of text above it. Dragging zooms, a double click resets.

const charts = new Map(); // the charts of the page by the name of their card; uPlot
const zooms = new Map(); // range of x that the reader has chosen, by card and axis

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const paint = (colour) => (colour.startsWith("var(") ? css(colour.slice(4, -1)) : colour);
const isNumber = (v) => v !== null && v !== undefined && Number.isFinite(v);

// Exponential mean over points, as if they came at equal distances; a gap stays a gap.
const smoothed = (points, weight) => {
  let mean = 0, norm = 0;
  return points.map(([x, y]) => {
    if (!isNumber(y)) return [x, y];
    mean = weight * mean + (1 - weight) * y;
    norm = weight * norm + (1 - weight);
    return [x, mean / norm];
  });
};

// Last point at or before x.
const at = (points, x) => {
  let low = 0, high = points.length - 1;
  if (high < 0 || points[0][0] > x) return null;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (points[middle][0] <= x) low = middle; else high = middle - 1;
  }
  return points[low];
};

// Points with ascending x, the last one of equal x.
const ascending = (points) => {
  const sorted = points.every(([x], i) => !i || points[i - 1][0] <= x) ? points : [...points].sort((a, b) => a[0] - b[0]);
  return sorted.filter(([x], i) => i + 1 === sorted.length || sorted[i + 1][0] > x);
};

// A time on an axis: as short as the span allows.
const tickTime = (t, span) => {
  if (span > 172800) return Number((t / 86400).toFixed(1)) + " d";
  if (span <= 7200) return duration(t);
  return Number((t / 3600).toFixed(1)) + " h";
};
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2419200];
const AXIS_NAMES = {samples: "samples", epoch: "epochs", step: "steps", time: "time since the start"};
const placeText = (axis, x) => (axis === "time" ? duration(x) : axis === "epoch" ? "epoch " + number(x) : `${short(x)} ${AXIS_NAMES[axis]}`);

// Give the charts the widths of their cards.
const fitCharts = () => {
  for (const chart of charts.values()) {
    const width = chart.root.parentElement.clientWidth;
    if (width && width !== chart.width) chart.setSize({width, height: chart.height});
  }
};

// Labels of values with as many digits as tell them apart.
const labelled = (values, y) => [3, 4, 5, 6, 7, 8].map((digits) => values.map((v) => (v === null ? null : y(v, digits)))).find((found) => new Set(found).size === found.length) || values.map((v) => y(v));

const axesOf = (options) => {
  const line = css("--line"), font = "11px " + getComputedStyle(document.body).fontFamily, soft = css("--soft");
  const common = {stroke: soft, font, labelFont: font, grid: {stroke: css("--faint"), width: 1}, ticks: {stroke: line, width: 1, size: 4}};
  const x = {...common, grid: {show: false}, label: AXIS_NAMES[options.x], labelSize: 16, labelGap: 0, size: 24, gap: 3, space: 64, values: (u, splits) => {
    const span = u.scales.x.max - u.scales.x.min;
    return options.x === "time" ? splits.map((t) => tickTime(t, span)) : splits.map((v) => (v === null ? null : short(v)));
  }};
  // Epochs, steps and samples are counted in ones, unless there are few of them.
  const ones = Array.from({length: 16}, (_, p) => [1, 2, 5].map((m) => m * 10 ** p)).flat();
  x.incrs = options.x === "time" ? TIME_STEPS : (u, axis, low, high) => (high - low >= 3 ? ones : [0.1, 0.2, 0.5, ...ones]);
  const y = {...common, gap: 4, space: options.log ? 20 : 34, values: (u, splits) => labelled(splits, options.y), size: (u, values) => {
    const longest = Math.max(...(values || []).map((v) => String(v ?? "").length), 3);
    return Math.ceil(longest * 6.6) + 14;
  }};
  return [x, y];
};

const rangeOfY = (options) => (u, low, high) => {
  if (options.range) return options.range;
  if (low === null || high === null) return options.log ? [0.1, 1] : [0, 1];
  if (options.log) return uPlot.rangeLog(low, high, 10, false);
  if (low === high) { const pad = Math.abs(high) * 0.1 || 1; return [options.zero && low >= 0 ? 0 : low - pad, high + pad]; }
  const pad = 0.06 * (high - low);
  return [options.zero ? Math.min(low, 0) : low - pad, high + pad];
};

// Keys and pointer of a chart: Tab, arrow keys, a zoom that stays when the page is drawn again.
const interactive = (chart, key, text, say) => {
  const root = chart.root, xs = chart.data[0];
  let place = null;
  const move = (to) => {
    place = Math.min(Math.max(to, 0), xs.length - 1);
    chart.setCursor({left: chart.valToPos(xs[place], "x"), top: chart.over.clientHeight / 2});
  };
  chart.hooks.setCursor = [() => { text.textContent = isNumber(chart.cursor.idx) ? say(xs[chart.cursor.idx]) : ""; }];
  chart.hooks.setSelect = [() => {
    const {left, width} = chart.select;
    if (width > 0) zooms.set(key, [chart.posToVal(left, "x"), chart.posToVal(left + width, "x")]);
  }];
  root.addEventListener("blur", () => { place = null; chart.setCursor({left: -10, top: -10}); });
  root.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 10 : 1, from = place ?? xs.length;
    const to = {ArrowLeft: from - step, ArrowRight: (place ?? -1) + step, Home: 0, End: xs.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(to);
  });
};

const chartOf = (id, data, series, bands, options, say) => {
  const key = `${id} ${options.x}`, box = make("div", {class: "chart"}), text = make("div", {class: "readout", "aria-live": "polite"});
  const chart = new uPlot({
    width: 300, height: options.height || 220, series: [{}, ...series], bands, legend: {show: false}, padding: [8, 12, 0, 0],
    axes: axesOf(options),
    scales: {
      x: {time: false, range: (u, low, high) => zooms.get(key) || (low === high ? [low - 0.5, high + 0.5] : [low, high])},
      y: {distr: options.log ? 3 : 1, range: rangeOfY(options)},
    },
    cursor: {y: false, bind: {dblclick: (u, target, handler) => (event) => { zooms.delete(key); handler(event); }}},
  }, data, box);
  chart.root.tabIndex = 0;
  chart.root.setAttribute("role", "img");
  chart.root.setAttribute("aria-label", `${options.label} over ${AXIS_NAMES[options.x]}. Arrow keys move the cursor.`);
  interactive(chart, key, text, say);
  if (charts.has(id)) charts.get(id).destroy(); // it listens to the window
  charts.set(id, chart);
  return make("div", {}, text, box);
};

// A chart of curves. series: [{name, points: [[x, y], ...], index, best: [x, y] or null}]; options: {label, x: a key of
// AXIS_NAMES, y: function for values, log, smooth, zero, height}.
const lineChart = (id, series, options) => {
  const shown = series.map((s) => ({...s, points: ascending(s.points).map(([x, y]) => [x, isNumber(y) && (!options.log || y > 0) ? y : null])}));
  const tables = [], drawn = [];
  const add = (points, made) => { tables.push([points.map((p) => p[0]), points.map((p) => p[1])]); drawn.push(made); };
  for (const s of shown) {
    if (!s.points.some((p) => p[1] !== null)) continue;
    const stroke = paint(s.colour || colour(s.index)), only = s.points.filter((p) => p[1] !== null).length === 1;
    const points = {show: only || s.points.length < 40 && !!options.points, size: 5, fill: stroke};
    if (options.smooth) add(s.points, {label: s.name, stroke, width: 1, alpha: 0.3, points: {show: false}});
    add(options.smooth ? smoothed(s.points, options.smooth) : s.points, {label: s.name, stroke, width: 1.8, dash: dash(s.index), points});
    if (s.best) add([s.best], {label: s.name + " best", paths: () => null, stroke, points: {show: true, size: 11, width: 2.5, stroke, fill: css("--card")}});
  }
  if (!tables.length) return make("p", {class: "missing"}, "No values yet.");
  const say = (x) => `${placeText(options.x, x)}:  ${shown.map((s) => { const p = at(s.points, x); return `${s.name} ${p && p[1] !== null ? options.y(p[1]) : "-"}`; }).join("   ")}`;
  return chartOf(id, uPlot.join(tables), drawn, undefined, options, say);
};

// Shares that add up to 1 over time, one above the other. parts: [{name, colour}]; rows: [[x, [share, ...]], ...].
const stackChart = (id, parts, rows, options) => {
  const xs = rows.map(([x]) => x), sums = parts.map((_, i) => rows.map(([, shares]) => shares && sum(shares.slice(0, i + 1))));
  const series = parts.map((part, i) => ({label: part.name, stroke: paint(part.colour), width: 0, points: {show: rows.length === 1}, ...(i ? {} : {fill: paint(part.colour)})}));
  const bands = parts.slice(1).map((part, i) => ({series: [i + 2, i + 1], fill: paint(part.colour)}));
  const say = (x) => { const row = at(rows, x); return `${placeText(options.x, x)}:  ${parts.map((p, i) => `${p.name} ${row && row[1] ? percent(row[1][i]) : "-"}`).join("   ")}`; };
  return chartOf(id, [xs, ...sums], series, bands, {...options, range: [0, 1], y: percent}, say);
};
