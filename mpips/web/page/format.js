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

const number = (value, digits = 4) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en-US");
  if (size >= 1e5 || size < 1e-3) return value.toExponential(digits - 1).replace(/\.?0*e\+?/, "e");
  return Number(value.toPrecision(digits)).toLocaleString("en-US", {maximumFractionDigits: 20});
};

const short = (value, digits = 3) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  for (const [unit, scale] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (Math.abs(value) >= scale) return Number((value / scale).toPrecision(digits)) + unit;
  return String(Number(value.toPrecision(digits)));
};

const whole = (value) => (value === null || value === undefined ? "-" : Math.round(value).toLocaleString("en-US"));

const bytes = (value, digits = 3) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  for (const [unit, scale] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (Math.abs(value) >= scale) return Number((value / scale).toPrecision(digits)) + " " + unit;
  return Math.round(value) + " B";
};
const bytesPerS = (value, digits = 3) => (value === null || value === undefined ? "-" : bytes(value, digits) + "/s");
const percent = (share) => (share === null || share === undefined || Number.isNaN(share) ? "-" : (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %");

const duration = (seconds) => {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "-";
  const s = Math.round(Math.max(seconds, 0)), two = (n) => String(n).padStart(2, "0");
  const days = Math.floor(s / 86400), hours = Math.floor(s / 3600) % 24, minutes = Math.floor(s / 60) % 60;
  const clock = (days || hours ? hours + ":" + two(minutes) : String(minutes)) + ":" + two(s % 60);
  return days ? days + " d " + clock : clock;
};

// A duration, with parts of a second if it is short.
const lasted = (seconds) => (known(seconds) && seconds < 60 ? number(seconds, 3) + " s" : duration(seconds));

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

const sum = (list) => list.reduce((a, b) => a + b, 0);
// Numbers within a text, such as those of a result, with 4 digits.
const rounded = (text) => (/^-?[0-9]+\.[0-9]+(e[-+]?[0-9]+)?$/i.test(text) ? number(Number(text)) : text);
const known = (value) => value !== null && value !== undefined;

const COLOURS = 8;
const colour = (i) => `var(--s${i % COLOURS})`;
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const dash = (i) => DASHES[Math.floor(i / COLOURS) % DASHES.length];
const swatch = (fill) => { const s = make("span", {class: "swatch"}); s.style.background = fill; return s; };
const keyLine = (i) => { const s = make("span", {class: "key"}); s.style.borderTopColor = colour(i); s.style.borderTopStyle = dash(i).length ? "dashed" : "solid"; return s; };
