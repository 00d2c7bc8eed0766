"use strict";
// The curves of training over samples, epochs, steps or time, of all runs that are shown.
// A run is {name, index, state, curve: {columns, rows, tests}, history: {heads, checkpoints, rows}, config}.

const card = (id, title, unit, size, ...children) => make("section", {class: "card " + size, id: "panel-" + id, "aria-label": title},
  make("div", {class: "card-top"}, make("h3", {}, title), unit ? make("span", {class: "unit"}, unit) : null), ...children);

const column = (run, name) => (run.curve ? run.curve.columns.indexOf(name) : -1);
// Unix time at which the first attempt began; a trial of a sweep is made long before it.
const startOf = (state) => { const began = state.events.find((e) => e.event === "began"); return (began && began.time_s) || state.created_s || 0; };
const beginOf = (run) => (run.state ? startOf(run.state) : 0);

// The value at x between pairs in ascending order, which grows linearly between them.
const between = (pairs, x) => {
  if (pairs.length < 2) return null;
  let i = pairs.findIndex(([a]) => a >= x);
  if (i < 0) i = pairs.length - 1;
  const [[x0, y0], [x1, y1]] = [pairs[Math.max(i, 1) - 1], pairs[Math.max(i, 1)]];
  return x1 > x0 ? y0 + (x - x0) / (x1 - x0) * (y1 - y0) : y1;
};
const epochsAt = (run, step) => between((run.state.about && run.state.about.epochs) || [], step);
// True for a script that has losses and counts no samples.
const countsNone = (run) => !!run.state.progress && known(run.state.progress.loss) && !run.state.progress.samples;
const hasEpochs = (run) => !!(run.state && run.state.about && run.state.about.epochs.length);

// Samples that the run had trained on at a step, between two rows of the curve.
const samplesAt = (run, step) => {
  const rows = run.curve.rows, s = column(run, "step"), n = column(run, "samples");
  if (!rows.length) return null;
  let i = rows.findIndex((row) => row[s] >= step);
  if (i < 0) i = rows.length - 1;
  const [a, b] = i > 0 ? [rows[i - 1], rows[i]] : [[], rows[0]];
  const from = i > 0 ? a[s] : 0, first = i > 0 ? a[n] : 0;
  return b[s] > from ? first + (step - from) / (b[s] - from) * (b[n] - first) : b[n];
};

// Points of one column over the axis that is chosen. Attempts are not joined by a line; but for the axis of time, what a
// later attempt repeats is left out of the earlier one.
const pointsOf = (run, name, axis) => {
  if (!run.curve) return [];
  const y = column(run, name), time = column(run, "time_s"), s = column(run, "step"), attempt = column(run, "generation"), begin = beginOf(run);
  const x = (row) => (axis === "time" ? row[time] - begin : axis === "epoch" ? epochsAt(run, row[s]) : row[column(run, axis)]);
  let found = [], last = null;
  for (const row of run.curve.rows) {
    const at = x(row);
    if (!isNumber(at)) continue;
    if (last !== null && row[attempt] !== last) {
      if (axis !== "time") found = found.filter(([before]) => before < at);
      if (found.length) found.push([(found[found.length - 1][0] + at) / 2, null]);
    }
    last = row[attempt];
    found.push([at, row[y]]);
  }
  return found;
};

// The loss by epoch in the result of a run that was too short for rows of progress.
const lossesOf = (run, axis) => {
  const found = pointsOf(run, "loss", axis), {losses, epochs} = run.state.about || {};
  if (!losses || losses.length < 2 || found.filter((p) => isNumber(p[1])).length > 1 || axis === "time") return found;
  const stepAt = (epoch) => between(epochs.map(([step, e]) => [e, step]), epoch);
  return losses.map(([epoch, loss]) => [axis === "epoch" ? epoch : axis === "step" ? stepAt(epoch) : samplesAt(run, stepAt(epoch)), loss]).filter(([x]) => isNumber(x));
};

const legendOf = (series, y) => make("div", {class: "legend"}, series.map((s) => {
  const last = s.points.filter((p) => isNumber(p[1])).pop();
  const mark = s.colour ? swatch(s.colour) : keyLine(s.index);
  return make("span", {"data-series": s.name}, mark, " ", s.name, " ", make("b", {}, last ? y(last[1]) : "-"), s.bestText ? make("span", {class: "best-text"}, " ", s.bestText) : null);
}));

// A card with curves; null if none has a value, or all values are 0, or with `several` if each is a point.
const chartCard = (id, title, unit, series, options) => {
  const there = series.filter((s) => s.points.some((p) => isNumber(p[1])));
  const few = there.every((s) => s.points.filter((p) => isNumber(p[1])).length < 2);
  if (!there.length || (few && options.several) || (options.zero && there.every((s) => s.points.every((p) => !p[1])))) return null;
  return card(id, title, unit, options.size, legendOf(there, options.y), lineChart(id, there, {label: title, ...options}));
};

const curvePanel = (id, title, unit, name, runs, view, options) => chartCard(id, title, unit, runs.map((run) => ({name: run.name, index: run.index, points: name === "loss" ? lossesOf(run, view.axis) : pointsOf(run, name, view.axis)})), {x: view.axis, smooth: view.smooth, ...options});

// Metrics of the validation data have this before their names.
const VALIDATION = "validation ";
const metricOf = (name) => (name.startsWith(VALIDATION) ? name.slice(VALIDATION.length) : name);

// The best evaluation of a metric: of those that the page has, or the one whose checkpoint is kept.
const bestTest = (run, name) => {
  const about = run.state.about || {higher: {}}, metric = metricOf(name), tests = run.curve.tests.filter((t) => isNumber(t[3][name])), best = about.best;
  if (!tests.length) return null;
  if (Object.hasOwn(about.higher, metric)) return tests.reduce((a, b) => ((about.higher[metric] ? b[3][name] > a[3][name] : b[3][name] < a[3][name]) ? b : a));
  return best && best.metric === metric ? tests.find((t) => t[5] === best.epoch) || null : null;
};

const testPanels = (runs, view) => {
  const names = [...new Set(runs.flatMap((run) => (run.curve ? run.curve.tests.flatMap((t) => Object.keys(t[3])) : [])))].slice(0, 12);
  const size = names.length === 1 ? "wide" : names.length === 2 || names.length === 4 ? "" : "third";
  const place = (run, t) => (view.axis === "time" ? t[0] - beginOf(run) : view.axis === "step" ? t[1] : view.axis === "epoch" ? epochsAt(run, t[1]) : samplesAt(run, t[1]));
  return names.map((name) => {
    const series = runs.filter((run) => run.curve).map((run) => {
      const best = bestTest(run, name), tests = run.curve.tests.filter((t) => name in t[3]);
      const points = tests.map((t) => [place(run, t), t[3][name]]).filter(([x]) => isNumber(x));
      const several = tests.length > 1 && best && isNumber(place(run, best));
      return {name: run.name, index: run.index, points, best: several ? [place(run, best), best[3][name]] : null, bestText: several ? `best ${number(best[3][name])} after epoch ${best[5]}` : ""};
    });
    const metric = metricOf(name);
    const arrow = runs.filter((run) => run.state.about && Object.hasOwn(run.state.about.higher, metric)).map((run) => run.state.about.higher[metric])[0];
    const unit = (metric === name ? "on test data" : "on validation data") + (arrow === undefined ? "" : arrow ? ", higher is better" : ", lower is better");
    return chartCard("test-" + name.replaceAll(" ", "-"), titleOf(metric), unit, series, {x: view.axis, y: number, size, height: 200, points: true});
  });
};
