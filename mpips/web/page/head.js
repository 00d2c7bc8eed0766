"use strict";
// The first screen: what was trained, its best evaluation, how far it came and in how much time; the trials of a sweep.

const fact = (name, value, ...more) => make("div", {"data-fact": name}, make("dt", {}, name), make("dd", {}, value, more.filter(Boolean).map((text) => make("span", {class: "more"}, text))));
const plain = (name) => name.replaceAll("_", " ");
// Name of a metric as a title.
const titleOf = (name) => (["auc", "rmse", "mae"].includes(name) ? name.toUpperCase() : plain(name).replace(/^./, (c) => c.toUpperCase()));
const OVER_BADLY = ["failed", "stalled", "dead", "damaged"];

const modelText = (model) => {
  const tables = `${whole(model.tables)} table${model.tables === 1 ? "" : "s"}`;
  return [`${model.values < 1e6 ? whole(model.values) : short(model.values, 4)} values`, `${tables}${model.rows ? `, ${short(model.rows, 4)} rows` : ""}, ${bytes(4 * model.values)}`];
};

// Seconds of a run from its start to its end, or to its last status.
const secondsOf = (state) => {
  const end = state.finished_s || (state.progress ? state.written_s : null);
  return end && startOf(state) ? Math.max(end - startOf(state), 0) : null;
};

const aboutFacts = (s) => {
  const about = s.about || {}, best = about.best, facts = [];
  if (about.task) facts.push(fact("trained", about.task, about.data));
  if (about.model) facts.push(fact("model", ...modelText(about.model)));
  if (best) {
    const others = Object.entries(best.others).slice(0, 3).map(([name, value]) => `${plain(name)} ${number(value)}`).join(", ");
    facts.push(fact("best " + plain(best.metric), number(best.value), `after epoch ${best.epoch}${others ? "; " + others : ""}`));
  }
  const seconds = secondsOf(s);
  if (seconds !== null) facts.push(fact("time", lasted(seconds), known(about.samples_per_s) ? `${short(about.samples_per_s, 4)} samples/s in training` : null));
  return facts;
};

// Numbers of this moment of a run that goes on; of one that does not, where it stopped.
const progressFacts = (s) => {
  const p = s.progress, facts = [], failures = s.events.filter((e) => e.event === "failed").length;
  if (!p) return facts;
  if (s.alive && p.n_epochs) facts.push(fact("epoch", `${Math.min(p.epoch + 1, p.n_epochs)} / ${p.n_epochs}`));
  else if (s.alive && p.has_epochs) facts.push(fact("epoch", whole(p.epoch + 1)));
  if (p.step) facts.push(fact("step", whole(p.step)));
  const losses = (s.about && s.about.losses) || [], loss = losses.length ? losses[losses.length - 1][1] : p.loss;
  if (known(loss)) facts.push(fact("training loss", number(loss)));
  if (s.alive) {
    if (p.samples_per_s) facts.push(fact("samples/s", short(p.samples_per_s)));
    if (p.staleness) facts.push(fact("staleness", number(p.staleness, 3)));
    if (p.push_bytes_per_s) facts.push(fact("push", bytesPerS(p.push_bytes_per_s)));
    if (p.pull_bytes_per_s) facts.push(fact("pull", bytesPerS(p.pull_bytes_per_s)));
    if (known(p.left_s)) facts.push(fact("left", duration(p.left_s)));
  }
  if (s.generation) facts.push(fact("attempt", whole(s.generation)));
  if (failures) facts.push(fact("failures", whole(failures)));
  if (s.checkpoint) facts.push(fact("checkpoint", s.checkpoint));
  return facts;
};

const headOfRun = (run, several, isReport) => {
  const s = run.state;
  if (!s) return make("section", {class: "head"}, make("div", {class: "head-top"}, keyLine(run.index), make("span", {class: "head-name"}, run.name), make("span", {class: "badge"}, "… reading")));
  const p = s.progress, bad = OVER_BADLY.includes(s.state), sentence = (s.about && s.about.sentence) || "";
  const written = s.written_s ? `begun ${date(s.created_s)}, last written ${date(s.written_s)}` : `made ${date(s.created_s || 0)}`;
  const reading = known(s.loading) ? make("p", {class: "note", "data-loading": "1"}, `Reading a long file: ${percent(s.loading)}. The curves show a sample of it until then.`) : null;
  const now = Date.now() / 1000, quiet = !isReport && s.alive && s.written_s && now - s.written_s > 30;
  const facts = aboutFacts(s), progress = progressFacts(s);
  // That it is finished, and when, is written above it.
  const note = s.note && !s.note.startsWith("finished ") ? make("p", {class: "note" + (bad ? " bad" : "")}, s.note) : null;
  return make("section", {class: "head" + (several ? " compact" : ""), "data-run": run.name},
    make("div", {class: "head-top"}, keyLine(run.index), make("span", {class: "head-name"}, run.name), badge(s.state), make("span", {class: "unit"}, written)),
    sentence ? make("p", {class: "sentence"}, sentence) : null,
    facts.length ? make("dl", {class: "facts main"}, facts) : null,
    s.alive && p && p.n_epochs ? make("progress", {max: 1, value: p.share, "aria-label": "share of the run that is done"}) : null,
    progress.length ? make("dl", {class: "facts"}, progress) : null, note,
    (s.hosts || []).map((text) => make("p", {class: "note"}, text)),
    quiet ? make("p", {class: "note bad", "data-stale": "1"}, `These values are ${age(now - s.written_s)} old.`) : null, reading);
};

// The trials of a sweep, the best first; a click on a name shows the run. shown: names; index: of a run's colour.
const trialsTable = (sweep, shown, index, choose) => {
  const metrics = sweep.metrics, counting = metrics.includes(sweep.metric) ? [sweep.metric, ...metrics.filter((m) => m !== sweep.metric)] : metrics;
  const titled = (m) => (m === "loss" ? "training loss" : plain(m));
  const n = (text) => make("td", {class: "n"}, text);
  // The metric that counts, with its epoch behind it.
  const value = (trial, m) => (known(trial.metrics[m]) ? number(trial.metrics[m]) + (m === sweep.metric && known(trial.spread) ? ` ± ${number(trial.spread, 2)}` : "") : "-");
  const cells = (trial, m) => [n(value(trial, m)), m === sweep.metric ? n(known(trial.epoch) ? whole(trial.epoch) : "-") : null];
  const rows = sweep.trials.map((trial, place) => {
    const is = shown.includes(trial.run), best = place === 0 && known(trial.metrics[sweep.metric]);
    const button = choose && make("button", {type: "button", class: "plain", "aria-pressed": String(is), title: is ? "hide the run" : "show the run", onclick: () => choose(trial.run)}, is ? keyLine(index(trial.run)) : null, " trial ", trial.number);
    return make("tr", {class: best ? "best" : "", "data-trial": trial.run}, make("td", {class: "name"}, button || `trial ${trial.number}`, best ? [" ", make("span", {class: "badge good"}, "best")] : null), trial.values.map((v) => n(rounded(v))),
      counting.map((m) => cells(trial, m)), n(known(trial.epochs) ? whole(trial.epochs) : "-"), n(lasted(trial.seconds)), make("td", {}, trial.state || "-"));
  });
  const done = sweep.trials.filter((t) => t.state === "done").length;
  const head = ["trial", ...sweep.keys, ...counting.flatMap((m) => (m === sweep.metric ? [titled(m) + (sweep.higher ? " ↑" : " ↓"), "epoch"] : [titled(m)])), "epochs", "time", "state"];
  const of = `${done} of ${sweep.trials.length} trials done${sweep.folds ? `, ${sweep.folds} folds each` : ""}${sweep.metric ? `; by ${titled(sweep.metric)}, the ${sweep.higher ? "greatest" : "least"} first` : ""}`;
  return make("section", {class: "card wide", id: "panel-trials", "aria-label": "Trials"}, make("div", {class: "card-top"}, make("h2", {}, "Sweep" + (sweep.job ? " of " + sweep.job : "")), make("span", {class: "unit"}, of)),
    make("div", {class: "scroll", tabindex: 0}, make("table", {}, make("tr", {}, head.map((text, i) => make("th", {class: i && i + 1 < head.length ? "n" : ""}, text))), rows)));
};
