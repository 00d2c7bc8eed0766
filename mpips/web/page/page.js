"use strict";
// The page: receives the parts of runs, by events of the server or embedded in a report, and draws the panels.

const page = (() => {
  const element = (id) => document.getElementById(id);
  const embedded = element("data") ? JSON.parse(element("data").textContent) : null;
  const runs = new Map(); // by name, in the order of their colours
  let list = [], sweep = null, shown = [], focus = null, source = null, lastEvent = 0, lost = false, over = false, drawing = 0, timer = 0;
  const MOST_SHOWN = 8;
  const stored = (name) => { try { return localStorage.getItem("mpips-" + name); } catch { return null; } };
  const store = (name, value) => { try { localStorage.setItem("mpips-" + name, value); } catch { /* private mode */ } };

  const view = {
    axis: "samples", chosen: null, smooth: 0, log: false, onlyDifferent: true,
    logs: {run: null, attempt: null, list: [], rank: null, text: null},
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
    over = false;
    const query = shown.map((name) => "run=" + encodeURIComponent(name)).join("&");
    source = new EventSource("events?" + query);
    const alive = () => { lastEvent = Date.now(); if (lost) { lost = false; schedule(); } };
    source.addEventListener("hello", (event) => { alive(); const hello = JSON.parse(event.data); element("where").textContent = hello.where; document.title = hello.where + " - mpips"; });
    source.addEventListener("sweep", (event) => { alive(); sweep = JSON.parse(event.data); schedule(); });
    // The run is done and all of it is here, so the page asks for nothing more.
    source.addEventListener("end", () => { alive(); over = true; source.close(); clearInterval(timer); schedule(); });
    source.addEventListener("list", (event) => { alive(); list = JSON.parse(event.data); choose(); schedule(); });
    source.addEventListener("run", (event) => { alive(); take(JSON.parse(event.data)); schedule(); });
    source.onerror = () => { lost = true; schedule(); };
  };

  // The run that is shown first: the newest one; of a sweep, the trial at work, or else the best one.
  const firstRun = () => {
    const named = (name) => list.some((row) => row.name === name);
    const trials = sweep ? sweep.trials.map((trial) => trial.run).filter(named) : [];
    const alive = list.find((row) => row.alive && trials.includes(row.name));
    return alive ? alive.name : trials.length ? trials[0] : list[0].name;
  };

  // Drop runs that were deleted or renamed. If none is left, and at the first list, show one.
  const choose = () => {
    const still = shown.filter((name) => list.some((row) => row.name === name));
    if (!still.length && list.length) show([firstRun()]);
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

  // Show a run or hide it; one at least stays.
  const toggle = (name) => {
    if (!shown.includes(name)) show([...shown, name]);
    else if (shown.length > 1) show(shown.filter((n) => n !== name));
    else schedule();
  };

  const sidebar = () => {
    const nav = element("runs");
    // The table of a sweep lists its runs.
    nav.hidden = list.length < 2 || (sweep !== null && list.every((row) => sweep.trials.some((trial) => trial.run === row.name)));
    if (nav.hidden) return;
    const items = list.map((row) => {
      const checked = shown.includes(row.name), run = runs.get(row.name), label = make("label", {"data-listed": row.name});
      const box = make("input", {type: "checkbox", checked, disabled: !checked && shown.length >= MOST_SHOWN, onchange: () => toggle(row.name)});
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
    const curves = [[
      curvePanel("loss", "Training loss", "", "loss", all, view, {y: number, log: view.log, size: ""}),
      ...testPanels(all, view),
      curvePanel("learning-rate", "Learning rate", "of the first param group", "learning_rate", all, view, {y: (v, digits = 3) => number(v, digits), zero: true, several: true, size: "third", height: 180}),
    ], [
      curvePanel("throughput", "Throughput", "samples/s of all workers", "samples_per_s", all, view, {y: short, zero: true, several: true, size: "third", height: 180}),
      curvePanel("push", "Pushed", "bytes/s of all workers", "push", all, view, {y: bytesPerS, zero: true, several: true, size: "third", height: 180}),
      curvePanel("pull", "Pulled", "bytes/s of all workers", "pull", all, view, {y: bytesPerS, zero: true, several: true, size: "third", height: 180}),
      curvePanel("mean-staleness", "Mean staleness", "updates of the table", "staleness", all, view, {y: (v, digits = 3) => number(v, digits), zero: true, several: true, size: "third", height: 180}),
    ]];
    const has = run.history && run.history.rows.length;
    const machine = [
      eventsPanel(run),
      ...(has ? [
        timePanel(run), stalenessPanel(run),
        serverCurve("load", "Server load", "records/s", run, (s, rank, one) => (one ? null : grown(s, "records", rank) / (s.to.time_s - s.from.time_s)), short),
        serverCurve("queue", "Queue depth", "records", run, (s, rank) => s.to.queue[rank], short),
        serverCurve("server-memory", "Memory of servers", "tables and rings", run, (s, rank) => s.to.memory[rank], bytes),
        tablesPanel(run), rowsPanel(run), trafficPanel(run), linksPanel(run), placementPanel(run), memoryPanel(run),
      ] : []),
      ranksPanel(run),
      producersPanel(run),
    ];
    const tabs = several ? make("div", {class: "tabs", role: "tablist"}, make("h2", {}, "Machine of"), all.map((r) => make("button", {type: "button", role: "tab", "aria-selected": String(r === run), "data-tab": r.name, onclick: () => { focus = r.name; schedule(); }}, r.name))) : machine.some(Boolean) ? make("div", {class: "tabs"}, make("h2", {}, "Machine")) : null;
    const missing = !has && run.state.progress ? make("p", {class: "missing", id: "no-history"}, "This run directory has no history.jsonl, so there are no numbers of single ranks over time: a version of mpips before it wrote the run, or the run has just begun.") : null;
    const rest = [configPanel(all, view), logsPanel(run, view), summaryPanel(run)];
    const first = [several ? configPanel(all, view) : null];
    if (several) rest[0] = null;
    const grid = (id, cards) => make("div", {class: "grid", id}, filled(cards.filter(Boolean)));
    return [...curves.map((cards, i) => grid("curves-" + i, cards)), grid("differences", first), tabs, grid("machine", machine), missing, grid("rest", rest)];
  };

  // Widths of cards such that no row has a gap: thirds come in threes, halves in pairs.
  const filled = (cards) => {
    const kind = (e) => (e.classList.contains("wide") ? 12 : e.classList.contains("third") ? 4 : 6);
    for (let i = 0; i < cards.length;) {
      let end = i;
      while (end < cards.length && kind(cards[end]) === kind(cards[i])) end++;
      const per = 12 / kind(cards[i]), left = (end - i) % per;
      if (left && per > 1) cards.slice(end - left, end).forEach((e) => { e.classList.remove("third"); e.classList.add(left === 1 ? "wide" : "half"); });
      i = end;
    }
    return cards;
  };

  // The state of the connection. A page of a run that is done, and a report, have none.
  const linkText = () => {
    if (embedded) return "report of " + date(embedded.made_s);
    if (over) return "complete";
    if (lost) return `no connection to mpips web since ${lastEvent ? date(lastEvent / 1000) : "the start"}: values are old`;
    return list.length && !list.some((row) => row.alive) ? "no run is at work" : "live";
  };

  const redraw = () => {
    const link = element("link"), notice = element("notice");
    link.className = lost && !over ? "lost" : "";
    link.textContent = linkText();
    const states = shown.map((name) => runs.get(name)).filter((run) => run && run.state), epochs = states.length > 0 && states.every(hasEpochs);
    view.axis = view.chosen && (view.chosen !== "epoch" || epochs) ? view.chosen : epochs ? "epoch" : states.length && states.every(countsNone) ? "step" : "samples";
    element("axis").value = view.axis;
    element("axis").querySelector("[value=epoch]").disabled = !epochs;
    const none = !embedded && lastEvent && !list.length;
    notice.hidden = states.length > 0;
    notice.textContent = none ? "No run here yet. The page shows the first one as soon as it begins." : lost && !lastEvent ? "No connection to mpips web." : list.length && !shown.length ? "Choose a run." : "Reading the run directories.";
    const index = (name) => (runs.get(name) || {index: 0}).index;
    replace(element("trials"), [sweep && sweep.trials.length ? trialsTable(sweep, shown, index, embedded ? null : toggle) : null]);
    replace(element("heads"), shown.map((name) => runs.get(name)).filter(Boolean).map((run, i, all) => headOfRun(run, all.length > 1, !!embedded)));
    // A chart under the pointer or the cursor stays as it is.
    if (!element("panels").querySelector(".chart:hover, .uplot:focus-visible, select:focus")) {
      const before = new Set(charts.values());
      replace(element("panels"), panels());
      // Cards that are gone take their charts along; those that came have the widths of their cards.
      for (const [id, chart] of charts) if (before.has(chart)) { chart.destroy(); charts.delete(id); }
      fitCharts();
    }
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
  element("axis").addEventListener("change", (event) => { view.chosen = event.target.value; schedule(); });
  element("log").addEventListener("change", (event) => { view.log = event.target.checked; schedule(); });
  element("smooth").addEventListener("input", (event) => { view.smooth = Number(event.target.value) / 100; element("smooth-value").textContent = view.smooth ? view.smooth.toFixed(2) : "off"; schedule(); });
  let wide = window.innerWidth;
  window.addEventListener("resize", () => { if (wide !== window.innerWidth) { wide = window.innerWidth; schedule(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", schedule);

  if (embedded) {
    embedded.runs.forEach(take);
    sweep = embedded.sweep || null;
    list = embedded.runs.map((r) => ({name: r.run, state: r.state.state, step: r.state.progress && r.state.progress.step, loss: r.state.progress && r.state.progress.loss}));
    show(embedded.runs.map((r) => r.run));
    element("where").textContent = shown.join(", ");
    document.title = shown.join(", ") + " - mpips";
  } else {
    timer = setInterval(() => { if (!lost && lastEvent && Date.now() - lastEvent > 45000) { lost = true; } schedule(); }, 5000);
    connect();
  }
  return {runs, view, show, waits: () => !embedded && !over};
})();
