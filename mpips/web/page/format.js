"use strict";
// Numbers, times and elements. All text of a run becomes text nodes: nothing of it is read as HTML.

const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) element.append(child);
  return element;
};

const SVG = "http://www.w3.org/2000/svg";
const draw = (tag, attributes = {}, text = null) => {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  return element;
};

const number = (value, digits = 4) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return size >= 100 ? value.toFixed(1) : Number(value.toPrecision(digits)).toString();
};

const short = (value) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  for (const [unit, scale] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (Math.abs(value) >= scale) return Number((value / scale).toPrecision(3)) + unit;
  return String(Number(value.toPrecision(3)));
};

const whole = (value) => (value === null || value === undefined ? "-" : Math.round(value).toLocaleString("en-US"));

const bytes = (value) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  for (const [unit, scale] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (Math.abs(value) >= scale) return Number((value / scale).toPrecision(3)) + " " + unit;
  return Math.round(value) + " B";
};
const bytesPerS = (value) => (value === null || value === undefined ? "-" : bytes(value) + "/s");
const percent = (share) => (share === null || share === undefined || Number.isNaN(share) ? "-" : (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %");

const duration = (seconds) => {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "-";
  const s = Math.round(Math.max(seconds, 0)), two = (n) => String(n).padStart(2, "0");
  const days = Math.floor(s / 86400), hours = Math.floor(s / 3600) % 24, minutes = Math.floor(s / 60) % 60;
  const clock = (days || hours ? hours + ":" + two(minutes) : String(minutes)) + ":" + two(s % 60);
  return days ? days + " d " + clock : clock;
};

const age = (seconds) => {
  if (seconds < 120) return Math.round(Math.max(seconds, 0)) + " s";
  if (seconds < 7200) return Math.round(seconds / 60) + " min";
  return seconds < 172800 ? (seconds / 3600).toFixed(1) + " h" : Math.round(seconds / 86400) + " days";
};

const date = (time_s) => {
  const d = new Date(1000 * time_s), two = (n) => String(n).padStart(2, "0");
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
};

// Whether a run goes on, by its state.
const GOOD = ["running", "done"], WARN = ["starting", "restarting", "not started", "preempted", "interrupted", "ended"];
const MARKS = {running: "●", done: "✓", failed: "✕", stalled: "✕", dead: "✕", damaged: "✕", restarting: "↻", starting: "…", "not started": "…"};
const badge = (state) => make("span", {class: "badge " + (GOOD.includes(state) ? "good" : WARN.includes(state) ? "warn" : "bad"), "data-state": state}, (MARKS[state] || "○") + " " + state);

const COLOURS = 8;
const colour = (i) => `var(--s${i % COLOURS})`;
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const dash = (i) => DASHES[Math.floor(i / COLOURS) % DASHES.length];
const swatch = (fill) => { const s = make("span", {class: "swatch"}); s.style.background = fill; return s; };
const keyLine = (i) => { const s = make("span", {class: "key"}); s.style.borderTopColor = colour(i); s.style.borderTopStyle = dash(i) ? "dashed" : "solid"; return s; };
