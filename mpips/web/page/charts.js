"use strict";
// Charts: curves as SVG; strips and heat maps, which have many cells, on a canvas. Each is reached by Tab, and the arrow
// keys move its cursor as the pointer does; the values at the cursor stand in a line of text above it.

const SIZE = {left: 58, right: 10, top: 8, bottom: 22, height: 208};

const ticks = (low, high, n) => {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / n, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
};
const timeTicks = (low, high, n) => {
  const span = Math.max(high - low, 1e-9);
  const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800].find((s) => s >= span / n) || 2419200;
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) found.push(t);
  return found;
};
// A time on an axis: as short as the span allows.
const tickTime = (t, span) => {
  if (span > 172800) return Number((t / 86400).toFixed(1)) + " d";
  if (span <= 7200) return duration(t);
  return t % 3600 === 0 ? t / 3600 + " h" : Number((t / 3600).toFixed(1)) + " h";
};
const logTicks = (low, high) => {
  const found = [];
  for (let p = Math.ceil(low - 1e-9); p <= high + 1e-9; p++) found.push(p);
  return found.length >= 2 ? found : ticks(low, high, 4);
};

// Exponential mean over points, as if they came at equal distances; a gap stays a gap.
const smoothed = (points, weight) => {
  if (!weight) return points;
  let mean = 0, norm = 0;
  return points.map(([x, y]) => {
    if (y === null || !Number.isFinite(y)) return [x, y];
    mean = weight * mean + (1 - weight) * y;
    norm = weight * norm + (1 - weight);
    return [x, mean / norm];
  });
};

const pathOf = (points, px, py) => {
  let text = "", pen = false;
  for (const [x, y] of points) {
    if (y === null || y === undefined || !Number.isFinite(y)) { pen = false; continue; }
    text += (pen ? "L" : "M") + px(x).toFixed(1) + " " + py(y).toFixed(1);
    pen = true;
  }
  return text;
};

// Nearest point at or before x.
const at = (points, x) => {
  let low = 0, high = points.length - 1;
  if (high < 0) return null;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (points[middle][0] <= x) low = middle; else high = middle - 1;
  }
  return points[low];
};

// The cursor of a chart: a position from 0 to 1, by pointer and keys.
const cursored = (element, show, hide, steps = 100) => {
  let place = null;
  const move = (to) => { place = Math.min(Math.max(to, 0), 1); show(place); };
  element.addEventListener("pointermove", (event) => {
    const box = element.getBoundingClientRect();
    move((event.clientX - box.left) / Math.max(box.width, 1));
  });
  element.addEventListener("pointerleave", () => { if (document.activeElement !== element) { place = null; hide(); } });
  element.addEventListener("blur", () => { place = null; hide(); });
  element.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 10 / steps : 1 / steps;
    const to = {ArrowLeft: (place ?? 1) - step, ArrowRight: (place ?? 1) + step, Home: 0, End: 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(to);
  });
};

// A chart of curves. series: [{name, points: [[x, y], ...], index}]; options: {label, x: "time" or a name, y: function for
// values, log, smooth, zero, height, width}.
const lineChart = (series, options) => {
  const width = options.width, height = options.height || SIZE.height;
  const shown = series.map((s) => ({...s, smooth: smoothed(s.points, options.smooth || 0)}));
  const good = (y) => y !== null && y !== undefined && Number.isFinite(y) && (!options.log || y > 0);
  let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
  for (const s of shown) for (const points of options.smooth ? [s.points, s.smooth] : [s.points])
    for (const [x, y] of points) {
      if (!good(y)) continue;
      x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y);
    }
  if (x0 > x1) return make("p", {class: "missing"}, "No values yet.");
  if (options.zero && !options.log) { y0 = Math.min(y0, 0); y1 = Math.max(y1, 0); }
  const to = options.log ? Math.log10 : (v) => v;
  let low = to(y0), high = to(y1);
  if (high - low < 1e-12 * Math.max(Math.abs(high), 1e-300) || high === low) { const pad = Math.abs(high) * 0.1 || 1; low -= options.zero && low === 0 ? 0 : pad; high += pad; }
  else { const pad = 0.05 * (high - low); high += pad; if (!(options.zero && low === 0)) low -= pad; }
  const single = x0 === x1 ? x0 : null;
  if (single !== null) { x0 -= 0.5; x1 += 0.5; }
  const {left, right, top, bottom} = SIZE;
  const px = (x) => left + (x - x0) / (x1 - x0) * (width - left - right);
  const py = (y) => top + (high - to(y)) / (high - low) * (height - top - bottom);
  const svg = draw("svg", {class: "chart", viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img", "aria-label": `${options.label}. Arrow keys move the cursor.`});
  const clip = options.log ? (points) => points.map(([x, y]) => [x, good(y) ? y : null]) : (points) => points;
  const values = (options.log ? logTicks(low, high) : ticks(low, high, Math.max(3, Math.round(height / 36)))).map((t) => (options.log ? 10 ** t : t));
  // With as many digits as tell the values apart.
  const labels = [4, 5, 6, 7, 8].map((digits) => values.map((v) => options.y(v, digits))).find((found) => new Set(found).size === found.length) || values.map((v) => options.y(v));
  values.forEach((value, i) => {
    const y = py(value);
    svg.append(draw("line", {class: "rule", x1: left, x2: width - right, y1: y, y2: y}), draw("text", {x: left - 6, y: y + 4, "text-anchor": "end"}, labels[i]));
  });
  const isTime = options.x === "time", n = Math.max(2, Math.floor(width / 85));
  for (const t of single !== null ? [single] : isTime ? timeTicks(x0, x1, n) : ticks(x0, x1, n)) {
    const x = px(t);
    svg.append(draw("line", {class: "axis", x1: x, x2: x, y1: height - bottom, y2: height - bottom + 4}), draw("text", {x, y: height - 5, "text-anchor": x > width - 40 ? "end" : "middle"}, isTime ? tickTime(t, x1 - x0) : short(t)));
  }
  svg.append(draw("line", {class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom}));
  for (const s of shown) {
    const paint = (points, name) => {
      const path = draw("path", {class: name, d: pathOf(clip(points), px, py), "stroke-dasharray": name === "curve" ? dash(s.index) : ""});
      path.style.stroke = s.colour || colour(s.index);
      svg.append(path);
      if (points.length === 1 && good(points[0][1])) {
        const dot = draw("circle", {cx: px(points[0][0]), cy: py(points[0][1]), r: 3});
        dot.style.fill = s.colour || colour(s.index);
        svg.append(dot);
      }
    };
    if (options.smooth) paint(s.points, "raw");
    paint(s.smooth, "curve");
  }
  for (const mark of options.marks || []) {
    if (mark.x < x0 || mark.x > x1) continue;
    const line = draw("line", {class: "cross", x1: px(mark.x), x2: px(mark.x), y1: top, y2: height - bottom});
    svg.append(line);
  }
  const cross = draw("line", {class: "cross", y1: top, y2: height - bottom, visibility: "hidden"});
  svg.append(cross);
  const text = make("div", {class: "readout", "aria-live": "polite"});
  cursored(svg, (place) => {
    const share = (place * width - left) / (width - left - right);
    const x = x0 + Math.min(Math.max(share, 0), 1) * (x1 - x0);
    cross.setAttribute("x1", px(x)); cross.setAttribute("x2", px(x)); cross.setAttribute("visibility", "visible");
    const values = shown.map((s) => { const p = at(s.points, x); return `${s.name} ${p ? options.y(p[1]) : "-"}`; });
    text.textContent = `${isTime ? duration(x) : short(x) + " " + options.x}:  ${values.join("   ")}`;
  }, () => { cross.setAttribute("visibility", "hidden"); text.textContent = ""; });
  return make("div", {}, text, svg);
};

const canvasOf = (width, height) => {
  const scale = Math.min(window.devicePixelRatio || 1, 2), canvas = make("canvas", {tabindex: 0, role: "img"});
  canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale);
  canvas.style.height = height + "px";
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return [canvas, context];
};

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Dark to light, of equal steps in lightness: readable in grey, too.
const HEAT = ["#2d1160", "#51127c", "#721f81", "#932b80", "#b73779", "#d8456c", "#f1605d", "#fc8961", "#feb078", "#fed799", "#fcfdbf"];
const heat = (share) => {
  const place = Math.min(Math.max(share, 0), 1) * (HEAT.length - 1), i = Math.min(Math.floor(place), HEAT.length - 2), part = place - i;
  const mix = (k) => Math.round(parseInt(HEAT[i].slice(k, k + 2), 16) * (1 - part) + parseInt(HEAT[i + 1].slice(k, k + 2), 16) * part);
  return `rgb(${mix(1)},${mix(3)},${mix(5)})`;
};

// Rows over time. rows: [{label, side, cells}], times: begin and end of each column; paint(context, cell, x, y, w, h) draws a
// cell, say(cell) is its text. The rows of many ranks scroll.
const rowsChart = (rows, times, options) => {
  const height = Math.max(14, Math.min(34, Math.floor(220 / Math.max(rows.length, 1)))), width = options.width;
  const [canvas, context] = canvasOf(width, height * rows.length);
  const x0 = times[0][0], x1 = Math.max(times[times.length - 1][1], x0 + 1e-9);
  const px = (t) => (t - x0) / (x1 - x0) * width;
  context.fillStyle = css("--faint");
  context.fillRect(0, 0, width, height * rows.length);
  rows.forEach((row, r) => row.cells.forEach((cell, c) => {
    if (cell === null) return;
    const x = px(times[c][0]);
    options.paint(context, cell, x, r * height + 1, Math.max(px(times[c][1]) - x + 0.3, 0.8), height - 2);
  }));
  canvas.setAttribute("aria-label", `${options.label}. Left and right move in time, up and down between ranks.`);
  const text = make("div", {class: "readout", "aria-live": "polite"});
  let row = 0;
  const show = (place) => {
    const t = x0 + place * (x1 - x0);
    let c = times.findIndex(([, end]) => t <= end);
    if (c < 0) c = times.length - 1;
    const cell = rows[row].cells[c];
    text.textContent = `${rows[row].label}, ${duration(times[c][0])} to ${duration(times[c][1])}:  ${cell === null ? "no values" : options.say(cell)}`;
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    row = Math.min(Math.max(Math.floor((event.clientY - box.top) / height), 0), rows.length - 1);
  });
  let last = 1;
  canvas.addEventListener("keydown", (event) => {
    const by = {ArrowUp: -1, ArrowDown: 1}[event.key];
    if (!by) return;
    event.preventDefault();
    row = Math.min(Math.max(row + by, 0), rows.length - 1);
    show(last);
  });
  cursored(canvas, (place) => { last = place; show(place); }, () => { text.textContent = ""; }, Math.max(times.length, 1));
  const labels = (name) => make("div", {class: "row-labels"}, rows.map((r) => { const d = make("div", {title: r.label}, String(r[name] ?? "")); d.style.height = height + "px"; return d; }));
  const axis = make("div", {class: "time-axis"}, make("span", {}, duration(x0)), make("span", {}, duration((x0 + x1) / 2)), make("span", {}, duration(x1)));
  return make("div", {}, text, make("div", {class: "scroll"}, make("div", {class: "with-rows"}, labels("label"), make("div", {}, canvas), labels("side"), axis)));
};
