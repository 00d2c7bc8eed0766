"use strict";
// The page: receives the parts of runs, by events of the server or embedded in a report, and draws the panels.

const page = (() => {
  const element = (id) => document.getElementById(id);
  const embedded = element("data") ? JSON.parse(element("data").textContent) : null;
  const runs = new Map(); // by name, in the order of their colours
  let list = [], shown = [], focus = null, source = null, lastEvent = 0, lost = false, drawing = 0;
  const MOST_SHOWN = 8;
  const stored = (name) => { try { return localStorage.getItem("mpips-" + name); } catch { return null; } };
  const store = (name, value) => { try { localStorage.setItem("mpips-" + name, value); } catch { /* private mode */ } };

  const view = {
    axis: "samples", smooth: 0, log: false, onlyDifferent: true,
    logs: {run: null, attempt: null, list: [], rank: null, text: null},
    width: (size) => {
      const all = Math.max(element("panels").clientWidth, 300), narrow = window.innerWidth <= 1000;
      const card = size === "wide" || size === "rows" || narrow ? all : size === "third" ? (all - 20) / 3 : size === "half" ? (all - 20) / 2 : (all - 10) / 2;
      return Math.max(Math.floor(card - 26 - (size === "rows" ? 190 : 0)), 180);
    },
    redraw: () => schedule(),
    openLogs: (run, attempt) => {
      view.logs = {run, attempt, list: [], rank: null, text: null};
      if (embedded) { view.logs.list = (embedded.logs[run] || {})[attempt] || []; schedule(); return; }
      fetch(`logs?run=${encodeURIComponent(run)}&attempt=${attempt}`).then((r) => (r.ok ? r.json() : [])).then((found) => {
        if (view.logs.run === run && view.logs.attempt === attempt) { view.logs.list = found; schedule(); }
      }).catch(() => {});
    },
    openLog: (rank) => {
      const logs = view.logs, {run, attempt} = logs;
      logs.rank = rank;
      const fill = (log) => {
        if (view.logs !== logs || logs.rank !== rank) return;
        const left = log.left_out ? `... ${whole(log.left_out)} bytes before this are left out\n` : "";
        logs.text = log.lines.length ? left + log.lines.join("\n") : "(empty)";
        schedule();
      };
      if (embedded) { fill(logs.list.find((log) => log.rank === rank)); return; }
      fetch(`log?run=${encodeURIComponent(run)}&attempt=${attempt}&rank=${rank}`).then((r) => (r.ok ? r.json() : Promise.reject(new Error(String(r.status))))).then(fill)
        .catch(() => fill({lines: ["This log cannot be read now."], left_out: 0}));
    },
  };

  // --- Data --------------------------------------------------------------------------------------------------------

  const runOf = (name) => {
    if (!runs.has(name)) {
      const used = new Set([...runs.values()].map((r) => r.index));
      let index = 0;
      while (used.has(index)) index++;
      runs.set(name, {name, index, state: null, curve: null, history: null, config: null});
    }
    return runs.get(name);
  };

  const take = (part) => {
    const run = runOf(part.run);
    if (part.state) run.state = part.state;
    if (part.config) { run.config = part.config; if (view.logs.run === run.name && !part.config.attempts.includes(view.logs.attempt)) view.logs.run = null; }
    if (part.curve) {
      const c = part.curve, old = run.curve || {rows: [], tests: []};
      run.curve = {columns: c.columns, n_lines: c.n_lines, rows: old.rows.slice(0, c.from).concat(c.rows), tests: old.tests.slice(0, c.tests_from).concat(c.tests)};
    }
    if (part.history) {
      const h = part.history, old = run.history || {heads: [], checkpoints: [], marks: [], rows: []};
      const marks = old.marks.slice(0, h.marks_from).concat(h.marks);
      run.history = {marks, heads: marks.filter((m) => m.type === "head"), checkpoints: marks.filter((m) => m.type === "checkpoint"), rows: old.rows.slice(0, h.from).concat(h.rows)};
      for (const row of run.history.rows) row.updates = row.updates || {};
    }
  };

  const connect = () => {
    if (source) source.close();
    const query = shown.map((name) => "run=" + encodeURIComponent(name)).join("&");
    source = new EventSource("events?" + query);
    const alive = () => { lastEvent = Date.now(); if (lost) { lost = false; schedule(); } };
    source.addEventListener("hello", (event) => { alive(); const hello = JSON.parse(event.data); element("where").textContent = hello.where; document.title = hello.where + " - mpips"; });
    source.addEventListener("list", (event) => { alive(); list = JSON.parse(event.data); choose(); schedule(); });
    source.addEventListener("run", (event) => { alive(); take(JSON.parse(event.data)); schedule(); });
    source.onerror = () => { lost = true; schedule(); };
  };

  // Drop runs that were deleted or renamed. If none is left, and at the first list, show the newest run.
  const choose = () => {
    const still = shown.filter((name) => list.some((row) => row.name === name));
    if (!still.length && list.length) show([list[0].name]);
    else if (still.length < shown.length) show(still);
  };

  const show = (names) => {
    shown = names.slice(0, MOST_SHOWN);
    for (const name of [...runs.keys()]) if (!shown.includes(name)) runs.delete(name);
    shown.forEach(runOf);
    if (!shown.includes(focus)) focus = shown[0] || null;
    if (!embedded) connect();
    schedule();
  };

  // --- Drawing -----------------------------------------------------------------------------------------------------

  const schedule = () => {
    if (drawing) return;
    // A hidden page draws when it is shown again.
    drawing = requestAnimationFrame(() => { drawing = 0; redraw(); });
  };

  const fact = (name, value) => make("div", {"data-fact": name}, make("dt", {}, name), make("dd", {}, value));

  const headOfRun = (run, several) => {
    const s = run.state;
    if (!s) return make("section", {class: "head"}, make("div", {class: "head-top"}, keyLine(run.index), make("span", {class: "head-name"}, run.name), make("span", {class: "badge"}, "… loading")));
    const p = s.progress, facts = [];
    if (p) {
      if (p.n_epochs) facts.push(fact("epoch", `${Math.min(p.epoch + 1, p.n_epochs)} / ${p.n_epochs}`));
      facts.push(fact("step", whole(p.step)));
      if (p.loss !== null && p.loss !== undefined) facts.push(fact("loss", number(p.loss)));
      if (p.samples_per_s) facts.push(fact("samples/s", short(p.samples_per_s)));
      if (p.staleness !== null && p.staleness !== undefined) facts.push(fact("staleness", number(p.staleness, 3)));
      if (p.push_bytes_per_s !== null && p.push_bytes_per_s !== undefined) facts.push(fact("push", bytesPerS(p.push_bytes_per_s)), fact("pull", bytesPerS(p.pull_bytes_per_s)));
      if (s.alive && p.left_s !== null && p.left_s !== undefined) facts.push(fact("left", duration(p.left_s)));
      facts.push(fact("attempt", whole(s.generation)));
      const failures = s.events.filter((e) => e.event === "failed").length;
      if (failures) facts.push(fact("failures", whole(failures)));
      if (s.checkpoint) facts.push(fact("checkpoint", s.checkpoint));
    }
    const bad = ["failed", "stalled", "dead", "damaged"].includes(s.state);
    const written = s.written_s ? `begun ${date(s.created_s)}, last written ${date(s.written_s)}` : `made ${date(s.created_s || 0)}`;
    const loading = s.loading === null || s.loading === undefined ? null : make("p", {class: "note", "data-loading": "1"}, `Reading a long file: ${percent(s.loading)}. The curves show a sample of it until then.`);
    const now = Date.now() / 1000, quiet = !embedded && s.alive && s.written_s && now - s.written_s > 30;
    return make("section", {class: "head" + (several ? " compact" : ""), "data-run": run.name}, make("div", {class: "head-top"}, keyLine(run.index), make("span", {class: "head-name"}, run.name), badge(s.state), make("span", {class: "unit"}, written)),
      p && p.n_epochs ? make("progress", {max: 1, value: p.share, "aria-label": "share of the run that is done"}) : null,
      facts.length ? make("dl", {class: "facts"}, facts) : null,
      s.note ? make("p", {class: "note" + (bad ? " bad" : "")}, s.note) : null,
      quiet ? make("p", {class: "note bad", "data-stale": "1"}, `These values are ${age(now - s.written_s)} old.`) : null, loading);
  };

  const sidebar = () => {
    const nav = element("runs");
    nav.hidden = list.length < 2;
    if (nav.hidden) return;
    const items = list.map((row) => {
      const checked = shown.includes(row.name), run = runs.get(row.name), label = make("label", {"data-listed": row.name});
      const box = make("input", {type: "checkbox", checked, disabled: !checked && shown.length >= MOST_SHOWN, onchange: () => show(checked ? shown.filter((n) => n !== row.name) : [...shown, row.name])});
      const detail = [row.step ? "step " + whole(row.step) : "", row.loss !== null && row.loss !== undefined ? "loss " + number(row.loss) : ""].filter(Boolean).join("  ");
      label.append(box, make("span", {class: "run-name"}, run ? keyLine(run.index) : null, run ? " " : null, row.name), make("span", {class: "run-line"}, badge(row.state)));
      if (detail) label.append(make("span", {class: "run-line"}, detail));
      return make("li", {}, label);
    });
    replace(element("run-list"), items);
  };

  // Put children in place of those before, and keep focus and positions of scroll.
  const replace = (parent, children) => {
    const places = [...parent.querySelectorAll(".scroll, .log, .event-text")].map((e) => [pathTo(e, parent), e.scrollTop, e.scrollHeight - e.scrollTop - e.clientHeight < 4]);
    const active = parent.contains(document.activeElement) ? pathTo(document.activeElement, parent) : null;
    parent.replaceChildren(...children.filter(Boolean));
    for (const [path, top, end] of places) {
      const e = follow(path, parent);
      if (e) e.scrollTop = end && e.classList.contains("log") ? e.scrollHeight : top;
    }
    if (active) follow(active, parent)?.focus({preventScroll: true});
  };
  const pathTo = (e, parent) => {
    const card = e.closest("section[id]"), path = [];
    for (let at = e; at !== (card && parent.contains(card) ? card : parent); at = at.parentElement) path.unshift([...at.parentElement.children].indexOf(at));
    return [card && parent.contains(card) ? card.id : "", path];
  };
  const follow = ([id, path], parent) => path.reduce((at, i) => at && at.children[i], id ? document.getElementById(id) : parent);

  const panels = () => {
    const all = shown.map((name) => runs.get(name)).filter((run) => run && run.state);
    if (!all.length) return [];
    const several = all.length > 1, run = runs.get(focus) && runs.get(focus).state ? runs.get(focus) : all[0];
    const common = [[
      curvePanel("loss", "Training loss", view.axis === "time" ? "over time since the begin" : "over " + view.axis, "loss", all, view, {y: number, log: view.log, size: ""}),
      curvePanel("throughput", "Throughput", "samples/s of all workers", "samples_per_s", all, view, {y: short, zero: true, size: ""}),
    ], testPanels(all, view), [
      curvePanel("push", "Pushed", "bytes/s of all workers", "push", all, view, {y: bytesPerS, zero: true, size: "third", height: 150}),
      curvePanel("pull", "Pulled", "bytes/s of all workers", "pull", all, view, {y: bytesPerS, zero: true, size: "third", height: 150}),
      curvePanel("mean-staleness", "Mean staleness", "updates of the table", "staleness", all, view, {y: (v) => number(v, 3), zero: true, size: "third", height: 150}),
      several ? configPanel(all, view) : null,
    ]];
    const has = run.history && run.history.rows.length;
    const own = [
      eventsPanel(run, view),
      ...(has ? [
        timePanel(run, view), stalenessPanel(run, view),
        serverCurve("load", "Server load", "records/s", run, view, (s, rank, one) => (one ? null : grown(s, "records", rank) / (s.to.time_s - s.from.time_s)), short),
        serverCurve("queue", "Queue depth", "records", run, view, (s, rank, one) => s.to.queue[rank], whole),
        serverCurve("server-memory", "Memory of servers", "tables and rings", run, view, (s, rank, one) => s.to.memory[rank], bytes),
        tablesPanel(run), rowsPanel(run), trafficPanel(run), linksPanel(run), placementPanel(run), memoryPanel(run, view),
      ] : []),
      ranksPanel(run), several ? null : configPanel(all, view), logsPanel(run, view), summaryPanel(run),
    ].filter(Boolean);
    // The last one of an odd number of half cards would leave a gap beside it.
    const halves = own.filter((e) => e.className.trim() === "card");
    if (halves.length % 2) halves[halves.length - 1].classList.add("wide");
    const tabs = several ? make("div", {class: "tabs", role: "tablist"}, make("h2", {}, "Details of"), all.map((r) => make("button", {type: "button", role: "tab", "aria-selected": String(r === run), "data-tab": r.name, onclick: () => { focus = r.name; schedule(); }}, r.name))) : null;
    const missing = !has && run.state.progress ? make("p", {class: "missing", id: "no-history"}, "This run directory has no history.jsonl, so there are no numbers of single ranks over time: a version of mpips before it wrote the run, or the run has just begun.") : null;
    return [...common.map((cards, i) => make("div", {class: "grid", id: "common-" + i}, cards)), several ? tabs : make("div", {class: "tabs"}), make("div", {class: "grid", id: "own"}, own), missing];
  };

  const redraw = () => {
    const link = element("link"), notice = element("notice");
    link.className = lost ? "lost" : "";
    link.textContent = embedded ? "report of " + date(embedded.made_s) : lost ? `no connection to mpips web since ${lastEvent ? date(lastEvent / 1000) : "the start"}: values are old` : "live";
    const states = shown.map((name) => runs.get(name)).filter((run) => run && run.state);
    const none = !embedded && lastEvent && !list.length;
    notice.hidden = states.length > 0;
    notice.textContent = none ? "No run here yet. The page shows the first one as soon as it begins." : lost && !lastEvent ? "No connection to mpips web." : list.length && !shown.length ? "Choose a run." : "Loading ...";
    replace(element("heads"), shown.map((name) => runs.get(name)).filter(Boolean).map((run, i, all) => headOfRun(run, all.length > 1)));
    // A chart under the pointer or the cursor stays as it is.
    if (!element("panels").querySelector("svg.chart:hover, canvas:hover, svg.chart:focus-visible, canvas:focus-visible, select:focus")) replace(element("panels"), panels());
    else setTimeout(schedule, 1000);
    sidebar();
    document.body.dataset.ready = states.length && states.every((run) => run.config) ? "1" : "";
  };

  // --- Controls ----------------------------------------------------------------------------------------------------

  const setTheme = (name) => {
    if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
    schedule();
  };
  element("theme").value = stored("theme") || "";
  setTheme(element("theme").value);
  element("theme").addEventListener("change", (event) => { store("theme", event.target.value); setTheme(event.target.value); });
  element("axis").addEventListener("change", (event) => { view.axis = event.target.value; schedule(); });
  element("log").addEventListener("change", (event) => { view.log = event.target.checked; schedule(); });
  element("smooth").addEventListener("input", (event) => { view.smooth = Number(event.target.value) / 100; element("smooth-value").textContent = view.smooth ? view.smooth.toFixed(2) : "off"; schedule(); });
  window.addEventListener("resize", schedule);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", schedule);

  if (embedded) {
    embedded.runs.forEach(take);
    list = embedded.runs.map((r) => ({name: r.run, state: r.state.state, step: r.state.progress && r.state.progress.step, loss: r.state.progress && r.state.progress.loss}));
    show(embedded.runs.map((r) => r.run));
    element("where").textContent = shown.join(", ");
    document.title = shown.join(", ") + " - mpips";
  } else {
    setInterval(() => { if (!lost && lastEvent && Date.now() - lastEvent > 45000) { lost = true; } schedule(); }, 5000);
    connect();
  }
  return {runs, view, show};
})();
