"use strict";
// The panels: each takes what the page holds of the runs, and returns a card, or null if the run directory has no such numbers.
// A run is {name, index, state, curve: {columns, rows, tests}, history: {heads, checkpoints, rows}, config}.

const ACTIVITIES = ["compute", "wait", "push", "pull", "snapshot"];
const MOST_COLUMNS = 140; // of strips and heat maps
const MOST_CURVES = 8; // of ranks in one chart

const card = (id, title, unit, size, ...children) => make("section", {class: "card " + size, id: "panel-" + id, "aria-label": title},
  make("div", {class: "card-top"}, make("h3", {}, title), unit ? make("span", {class: "unit"}, unit) : null), ...children);

const column = (run, name) => (run.curve ? run.curve.columns.indexOf(name) : -1);
const beginOf = (run) => (run.state && run.state.created_s) || 0;
const sum = (list) => list.reduce((a, b) => a + b, 0);

// Points of one column over the axis that is chosen.
const pointsOf = (run, name, axis) => {
  if (!run.curve) return [];
  const y = column(run, name), time = column(run, "time_s"), x = column(run, axis === "time" ? "time_s" : axis), begin = beginOf(run);
  const attempt = column(run, "generation"), found = [];
  run.curve.rows.forEach((row, i) => {
    const at = axis === "time" ? row[time] - begin : row[x];
    // Attempts are not joined by a line.
    if (i && row[attempt] !== run.curve.rows[i - 1][attempt]) found.push([at, null]);
    found.push([at, row[y]]);
  });
  return found;
};

const legendOf = (series, y) => make("div", {class: "legend"}, series.map((s) => {
  const last = s.points.filter((p) => p[1] !== null && p[1] !== undefined).pop();
  const mark = s.colour ? swatch(s.colour) : keyLine(s.index);
  return make("span", {"data-series": s.name}, mark, " ", s.name, " ", make("b", {}, last ? y(last[1]) : "-"));
}));

const curvePanel = (id, title, unit, name, runs, view, options) => {
  const series = runs.map((run) => ({name: run.name, index: run.index, points: pointsOf(run, name, view.axis)})).filter((s) => s.points.some((p) => p[1] !== null && p[1] !== undefined));
  if (!series.length) return null;
  const full = {x: view.axis, label: title, width: view.width(options.size), smooth: view.smooth, ...options};
  return card(id, title, unit, options.size, legendOf(series, options.y), lineChart(series, full));
};

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

const testPanels = (runs, view) => {
  const names = [...new Set(runs.flatMap((run) => (run.curve ? run.curve.tests.flatMap((t) => Object.keys(t[3])) : [])))].slice(0, 12);
  const n = names.length, size = n === 1 ? "wide" : n === 2 || n === 4 ? "" : "third";
  return names.map((name) => {
    const series = runs.filter((run) => run.curve).map((run) => ({
      name: run.name, index: run.index,
      points: run.curve.tests.filter((t) => name in t[3]).map((t) => [view.axis === "time" ? t[0] - beginOf(run) : view.axis === "step" ? t[1] : samplesAt(run, t[1]), t[3][name]]).filter(([x]) => x !== null),
    })).filter((s) => s.points.length);
    const data = name.startsWith("validation ") ? "validation" : "test";
    const title = name.slice(data === "validation" ? data.length + 1 : 0).replaceAll("_", " ");
    return card("test-" + name.replaceAll(" ", "-"), title, data + " data", size, legendOf(series, number),
      lineChart(series, {x: view.axis, label: (data === "test" ? "Test " : "Validation ") + title, y: number, width: view.width(size), height: 170}));
  });
};

// --- Counts of ranks over time ---------------------------------------------------------------------------------------

const headOf = (run, generation) => run.history.heads.find((h) => h.generation === generation);
const lastCounts = (run) => run.history.rows[run.history.rows.length - 1];
const lastHead = (run) => { const row = run.history && lastCounts(run); return row ? headOf(run, row.generation) : undefined; };
const ranksWith = (head, role) => head.roles.map((text, rank) => {
  const part = text.split(" + ").find((p) => p === role || p.startsWith(role + " "));
  return part ? {rank, label: part} : null;
}).filter(Boolean);

// Pairs of neighbouring lines of one attempt, of which the difference is known; at most MOST_COLUMNS, by leaving out lines.
const intervals = (run) => {
  const rows = run.history.rows, begin = beginOf(run), every = Math.max(1, Math.ceil(rows.length / MOST_COLUMNS)), found = [];
  let before = null, skipped = 0;
  for (let i = 0; i < rows.length; i++) {
    const row = rows[i], same = before !== null && before.generation === row.generation;
    const ends = i + 1 === rows.length || rows[i + 1].generation !== row.generation;
    if (!same) { before = row; skipped = 0; continue; }
    if (++skipped < every && !ends) continue;
    if (row.time_s > before.time_s) found.push({from: before, to: row, begin: before.time_s - begin, end: row.time_s - begin});
    before = row; skipped = 0;
  }
  return found;
};

const grown = (interval, name, rank) => {
  const a = interval.from[name] && interval.from[name][rank], b = interval.to[name] && interval.to[name][rank];
  return a === undefined || b === undefined ? null : b - a;
};
const shares = (from, to, rank) => {
  const of = (name) => Math.max((to[name][rank] ?? 0) - (from ? from[name][rank] ?? 0 : 0), 0);
  const all = of("elapsed");
  if (!(all > 0)) return null;
  const parts = [0, of("wait"), of("push"), of("pull"), of("snapshot")];
  parts[0] = Math.max(all - sum(parts), 0);
  const total = sum(parts);
  return parts.map((p) => p / total);
};

const timePanel = (run, view) => {
  const head = lastHead(run), last = lastCounts(run);
  if (!head || !last.elapsed || !last.elapsed.length) return null;
  const workers = ranksWith(head, "worker"), spans = intervals(run).filter((s) => s.to.generation === head.generation);
  const totals = workers.map((w) => shares(null, last, w.rank));
  if (!spans.length || totals.every((t) => t === null)) return null;
  const rows = workers.map((w, i) => ({
    label: w.label, side: totals[i] ? "compute " + percent(totals[i][0]) : "",
    cells: spans.map((s) => shares(s.from, s.to, w.rank)),
  }));
  const colours = ACTIVITIES.map((name) => css("--" + name));
  const paint = (context, cell, x, y, w, h) => {
    let at = y;
    cell.forEach((share, i) => { context.fillStyle = colours[i]; context.fillRect(x, at, w, share * h); at += share * h; });
  };
  const known = totals.filter(Boolean), mean = ACTIVITIES.map((_, i) => sum(known.map((t) => t[i])) / known.length);
  const legend = make("div", {class: "legend"}, ACTIVITIES.map((name, i) => make("span", {"data-activity": name}, swatch(`var(--${name})`), name, " ", make("b", {}, percent(mean[i])))));
  const say = (cell) => ACTIVITIES.map((name, i) => `${name} ${percent(cell[i])}`).join("   ");
  return card("time", "Time of each worker", `attempt ${head.generation}; mean of all workers, and over time`, "wide", legend,
    rowsChart(rows, spans.map((s) => [s.begin, s.end]), {paint, say, label: "Time of each worker", width: view.width("rows")}));
};

const stalenessPanel = (run, view) => {
  const head = lastHead(run);
  if (!head) return null;
  const workers = ranksWith(head, "worker"), spans = intervals(run);
  const cells = (w) => spans.map((s) => {
    const judged = grown(s, "judged", w.rank), stale = grown(s, "staleness", w.rank);
    return judged > 0 ? stale / judged : null;
  });
  const last = lastCounts(run);
  const rows = workers.map((w) => ({label: w.label, cells: cells(w), side: last.judged[w.rank] ? "mean " + number(last.staleness[w.rank] / last.judged[w.rank], 3) : ""}));
  const values = rows.flatMap((r) => r.cells).filter((v) => v !== null);
  if (!values.length) return null;
  const most = values.reduce((a, b) => Math.max(a, b), 0);
  const paint = (context, cell, x, y, w, h) => { context.fillStyle = heat(most > 0 ? cell / most : 0); context.fillRect(x, y, w, h); };
  const [bar, context] = canvasOf(120, 9);
  for (let i = 0; i < 120; i++) { context.fillStyle = heat(i / 119); context.fillRect(i, 0, 1.5, 9); }
  bar.removeAttribute("tabindex"); bar.setAttribute("aria-hidden", "true");
  return card("staleness", "Staleness of updates", "updates of the table behind, mean of each interval", "wide",
    rowsChart(rows, spans.map((s) => [s.begin, s.end]), {paint, say: (v) => "staleness " + number(v, 3), label: "Staleness by worker", width: view.width("rows")}),
    make("div", {class: "scale"}, "0", bar, number(most, 3)));
};

const serverCurve = (id, title, unit, run, view, value, y, options = {}) => {
  const head = lastHead(run);
  if (!head) return null;
  const servers = ranksWith(head, "server"), spans = intervals(run).filter((s) => s.to.generation === head.generation);
  if (!servers.length || !spans.length) return null;
  const one = head.roles.length === 1;
  const series = servers.slice(0, MOST_CURVES).map((s, i) => ({name: s.label, index: i, points: spans.map((span) => [span.end, value(span, s.rank, one)])}));
  const more = servers.length > MOST_CURVES ? make("p", {class: "note"}, `The first ${MOST_CURVES} of ${servers.length} servers.`) : null;
  return card(id, title, unit, options.size || "third", legendOf(series, y), lineChart(series, {x: "time", label: title, y, zero: true, width: view.width(options.size || "third"), height: 150}), more);
};

const tablesPanel = (run) => {
  const head = lastHead(run), last = lastCounts(run);
  if (!head || !head.tables.length) return null;
  const of = Object.entries(last.updates || {}).map(([table, n]) => [Number(table), n]).filter(([table]) => table < head.tables.length);
  if (!of.length) return null;
  const spans = intervals(run).filter((s) => s.to.generation === head.generation), span = spans[spans.length - 1];
  const rate = (table) => (span && span.from.updates[table] !== undefined && span.to.updates[table] !== undefined ? (span.to.updates[table] - span.from.updates[table]) / (span.to.time_s - span.from.time_s) : null);
  of.sort((a, b) => b[1] - a[1]);
  const most = of[0][1] || 1;
  const rows = of.slice(0, 12).map(([table, n]) => {
    const bar = make("div", {class: "bar"});
    bar.style.width = 100 * n / most + "%";
    return make("tr", {"data-table": head.tables[table]}, make("td", {}, head.tables[table]), make("td", {class: "n"}, whole(n)), make("td", {class: "n"}, rate(table) === null ? "-" : short(rate(table))), make("td", {}, bar));
  });
  return card("tables", "Hottest tables", "updates of all servers", "", make("div", {class: "scroll"}, make("table", {class: "barred"}, make("tr", {}, make("th", {}, "table"), make("th", {class: "n"}, "updates"), make("th", {class: "n"}, "per s, lately"), make("th", {})), rows)));
};

const rowsPanel = (run) => {
  const found = (run.state && run.state.hot_rows) || [];
  if (!found.length) return null;
  const most = Math.max(...found.map((r) => r.share), 1e-9);
  const rows = found.map((r) => {
    const bar = make("div", {class: "bar"});
    bar.style.width = 100 * r.share / most + "%";
    return make("tr", {"data-row": `${r.table} ${r.key}`}, make("td", {}, r.table), make("td", {class: "n"}, r.key), make("td", {class: "n"}, short(r.pulls_per_s)), make("td", {class: "n"}, short(r.pushes_per_s)), make("td", {class: "n"}, percent(r.share)), make("td", {}, bar));
  });
  return card("rows", "Hottest rows", "of embedding tables, over about a minute; from a sample", "", make("div", {class: "scroll", tabindex: 0}, make("table", {class: "barred"}, make("tr", {}, make("th", {}, "table"), make("th", {class: "n"}, "key"), make("th", {class: "n"}, "pulls/s"), make("th", {class: "n"}, "pushes/s"), make("th", {class: "n"}, "of table"), make("th", {})), rows)));
};

// --- Traffic ---------------------------------------------------------------------------------------------------------

const trafficPanel = (run) => {
  const head = lastHead(run), last = lastCounts(run);
  if (!head || !last.pushed) return null;
  const workers = ranksWith(head, "worker").map((w) => w.rank);
  const total = (name) => sum(workers.map((rank) => (last[name] && last[name][rank]) || 0));
  const row = (what, sent, saved) => {
    const plain = sent + saved, bar = make("div", {class: "bar"});
    bar.style.width = (plain > 0 ? Math.min(100 * sent / plain, 100) : 0) + "%";
    return make("tr", {"data-traffic": what}, make("td", {}, what), make("td", {class: "n"}, bytes(plain)), make("td", {class: "n"}, bytes(sent)), make("td", {class: "n"}, saved && sent > 0 ? Number((plain / sent).toPrecision(3)) + "x" : "-"), make("td", {}, make("div", {class: "stack"}, bar)));
  };
  return card("traffic", "Bytes before and after compression", `attempt ${head.generation}, all workers`, "", make("table", {class: "barred"}, make("tr", {}, make("th", {}, ""), make("th", {class: "n"}, "before"), make("th", {class: "n"}, "after"), make("th", {class: "n"}, "ratio"), make("th", {})),
    row("pushed", total("pushed"), total("push_saved")), row("pulled", total("pulled"), total("pull_saved"))), transportRows(run, head));
};

const linksOf = (run, head) => {
  const ranks = (run.state && run.state.ranks) || [];
  if (run.state.generation !== head.generation) return [];
  return ranksWith(head, "worker").map((w) => ({...w, links: (ranks.find((r) => r.rank === w.rank) || {}).links || []})).filter((w) => w.links.length);
};

const transportRows = (run, head) => {
  const byName = {};
  for (const w of linksOf(run, head)) w.links.forEach(([pushed, pulled], server) => {
    const index = Number(w.label.split(" ")[1]) || 0, name = (head.transports[index] || [])[server];
    if (!name) return;
    byName[name] = byName[name] || [0, 0, 0];
    byName[name][0]++; byName[name][1] += pushed; byName[name][2] += pulled;
  });
  const names = Object.keys(byName);
  if (!names.length) return null;
  return make("table", {}, make("tr", {}, make("th", {}, "transport"), make("th", {class: "n"}, "links"), make("th", {class: "n"}, "pushed"), make("th", {class: "n"}, "pulled")),
    names.map((name) => make("tr", {"data-transport": name}, make("td", {}, name), make("td", {class: "n"}, whole(byName[name][0])), make("td", {class: "n"}, bytes(byName[name][1])), make("td", {class: "n"}, bytes(byName[name][2])))));
};

const linksPanel = (run) => {
  const head = lastHead(run);
  if (!head) return null;
  const rows = linksOf(run, head);
  if (!rows.length) return null;
  const n = Math.max(...rows.map((r) => r.links.length)), most = Math.max(...rows.flatMap((r) => r.links.map(([a, b]) => a + b)), 1);
  const cell = ([pushed, pulled], name) => {
    const share = (pushed + pulled) / most, td = make("td", {class: "n cell", title: name || ""}, `${bytes(pushed)} / ${bytes(pulled)}`);
    td.style.background = `color-mix(in srgb, var(--s0) ${Math.round(38 * share)}%, var(--card))`;
    return td;
  };
  return card("links", "Bytes of each link", `pushed / pulled, attempt ${head.generation}`, n > 3 ? "wide" : "", make("div", {class: "scroll"}, make("table", {class: "matrix"}, make("tr", {}, make("th", {}, ""), Array.from({length: n}, (_, i) => make("th", {class: "n"}, "server " + i))),
    rows.map((w) => make("tr", {"data-link": w.label}, make("td", {}, w.label), w.links.map((pair, server) => cell(pair, (head.transports[Number(w.label.split(" ")[1])] || [])[server])))))));
};

// --- Memory and placement --------------------------------------------------------------------------------------------

const memoryPanel = (run, view) => {
  const head = lastHead(run);
  if (!head) return null;
  const spans = intervals(run).filter((s) => s.to.generation === head.generation), last = lastCounts(run), rows = [];
  const line = (what, used, of, detail) => {
    const bar = make("div", {class: "bar"});
    bar.style.width = of > 0 ? Math.min(100 * used / of, 100) + "%" : "0";
    rows.push(make("tr", {"data-memory": what}, make("td", {}, what), make("td", {class: "n"}, bytes(used)), make("td", {class: "n"}, of > 0 ? bytes(of) : ""), make("td", {}, of > 0 ? make("div", {class: "stack"}, bar) : detail || "")));
  };
  for (const [host, used] of Object.entries(last.shm_used || {})) line(`/dev/shm of ${host}`, used, last.shm_total[host]);
  if (last.disk_total > 0) line("disk of the run directory", last.disk_total - last.disk_free, last.disk_total);
  const heap = (role) => sum(ranksWith(head, role).map((r) => (last.heap && last.heap[r.rank]) || 0));
  const one = head.roles.length === 1;
  if (last.memory && last.memory.length) line("tables and rings of servers", sum(last.memory), 0);
  if (heap("worker")) line(one ? "heap of the process" : "heap of workers", heap("worker"), 0);
  if (!one && heap("server")) line("heap of servers", heap("server"), 0);
  if (!rows.length) return null;
  const curve = (name, role, pick) => ({name, index: role, points: spans.map((s) => [s.end, pick(s.to)])});
  const series = [curve("tables and rings", 0, (row) => sum(row.memory || [])), curve("heaps", 1, (row) => sum(row.heap || []))];
  return card("memory", "Memory", "all ranks", "wide", make("div", {class: "halves"}, make("table", {class: "barred"}, make("tr", {}, make("th", {}, ""), make("th", {class: "n"}, "in use"), make("th", {class: "n"}, "of"), make("th", {})), rows), spans.length ? make("div", {}, legendOf(series, bytes), lineChart(series, {x: "time", label: "Memory", y: bytes, zero: true, width: view.width("half"), height: 150})) : null));
};

const placementPanel = (run) => {
  const head = lastHead(run);
  if (!head || !head.placement.length) return null;
  const n = Math.max(...head.placement.map((row) => row.length)), most = Math.max(...head.placement.flat(), 1);
  const rows = head.placement.slice(0, 40).map((row, table) => {
    const hashed = row.some((b) => b < 0), empty = !row.some((b) => b !== 0);
    const cells = hashed ? [make("td", {class: "n", colspan: n}, "rows by key on all servers")] : empty ? [make("td", {class: "n", colspan: n}, "on every worker")] : row.map((b) => {
      const td = make("td", {class: "n cell"}, b ? bytes(b) : "-");
      td.style.background = `color-mix(in srgb, var(--s2) ${Math.round(38 * b / most)}%, var(--card))`;
      return td;
    });
    return make("tr", {"data-placed": head.tables[table]}, make("td", {}, head.tables[table]), cells);
  });
  const reasons = ((run.config && run.config.reasons) || []).map((text) => make("p", {class: "note"}, text));
  const more = head.placement.length > 40 ? make("p", {class: "note"}, `The first 40 of ${head.placement.length} tables.`) : null;
  return card("placement", "Tables on servers", "bytes of values", n > 3 ? "wide" : "", make("div", {class: "scroll"}, make("table", {class: "matrix"}, make("tr", {}, make("th", {}, "table"), Array.from({length: n}, (_, i) => make("th", {class: "n"}, "server " + i))), rows)), more, reasons);
};

// --- Events, configuration, logs -------------------------------------------------------------------------------------

const eventsOf = (run) => {
  const begin = beginOf(run);
  const found = run.state.events.map((e) => ({
    x: e.time_s - begin, kind: e.event,
    text: e.event === "failed" ? `attempt ${e.generation} failed at step ${whole(e.step || 0)}: ${e.cause || "unknown cause"}` : `attempt ${e.generation} began at step ${whole(e.step || 0)}${e.source && e.source !== "nothing" ? " from " + e.source : ""}`,
  }));
  for (const c of (run.history ? run.history.checkpoints : [])) found.push({x: c.time_s - begin, kind: "checkpoint", text: `checkpoint ${c.name} (step ${whole(c.step)})`});
  if (run.state.finished_s) found.push({x: run.state.finished_s - begin, kind: "finished", text: "finished"});
  return found.sort((a, b) => a.x - b.x);
};

const EVENT_COLOURS = {failed: "var(--bad)", began: "var(--s0)", checkpoint: "var(--s2)", finished: "var(--good)"};

const eventsPanel = (run, view) => {
  const events = eventsOf(run);
  if (!events.length) return null;
  const width = view.width("wide"), height = 58, left = 12, right = 12;
  const end = Math.max(events[events.length - 1].x, run.state.written_s ? run.state.written_s - beginOf(run) : 0, 1);
  const px = (x) => left + Math.max(x, 0) / end * (width - left - right);
  const svg = draw("svg", {class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Time line of attempts, checkpoints and failures; the list below has the same"});
  let begun = null;
  const bar = (from, to) => { const r = draw("rect", {x: px(from), y: 18, width: Math.max(px(to) - px(from), 1), height: 8, rx: 2}); r.style.fill = "var(--s0)"; r.style.opacity = 0.35; svg.append(r); };
  for (const e of events) {
    if (e.kind === "began") begun = e.x;
    if ((e.kind === "failed" || e.kind === "finished") && begun !== null) { bar(begun, e.x); begun = null; }
  }
  if (begun !== null) bar(begun, end);
  for (const t of timeTicks(0, end, Math.floor(width / 130))) svg.append(draw("line", {class: "axis", x1: px(t), x2: px(t), y1: 34, y2: 38}), draw("text", {x: px(t), y: 51, "text-anchor": px(t) < 30 ? "start" : px(t) > width - 40 ? "end" : "middle"}, tickTime(t, end)));
  svg.append(draw("line", {class: "axis", x1: left, x2: width - right, y1: 34, y2: 34}));
  for (const e of events) {
    const x = px(e.x), shapes = {failed: `M${x - 5} 17l10 10m0 -10l-10 10`, began: `M${x} 12v20`, checkpoint: `M${x} 16l6 6l-6 6l-6 -6z`, finished: `M${x - 6} 22l4 5l8 -10`};
    const mark = draw("path", {d: shapes[e.kind] || shapes.began, "stroke-width": 2.2, fill: "none", "data-event": e.kind});
    mark.style.stroke = EVENT_COLOURS[e.kind] || "var(--soft)";
    if (e.kind === "checkpoint") mark.style.fill = "var(--card)";
    mark.append(draw("title", {}, e.text));
    svg.append(mark);
  }
  const count = (kind) => events.filter((e) => e.kind === kind).length;
  const list = make("ul", {class: "event-text", tabindex: 0, "aria-label": "Events"}, events.slice(-200).reverse().map((e) => make("li", {class: e.kind}, make("b", {}, duration(e.x)), "  ", e.text)));
  const legend = make("div", {class: "legend"}, [["began", "│ attempt"], ["checkpoint", "◇ checkpoint"], ["failed", "✕ failure"]].map(([kind, text]) => { const s = make("span", {"data-count": kind}, text, " ", make("b", {}, String(count(kind)))); s.style.color = EVENT_COLOURS[kind]; return s; }));
  return card("events", "Time line", "since the run was made", "wide", legend, svg, list);
};

const configPanel = (runs, view) => {
  const known = runs.filter((run) => run.config && Object.keys(run.config.config).length);
  if (!known.length) return null;
  const several = known.length > 1, only = several && view.onlyDifferent;
  const table = (part) => {
    const keys = [...new Set(known.flatMap((run) => Object.keys(run.config[part])))].sort();
    return keys.map((key) => {
      const values = known.map((run) => run.config[part][key] ?? "-"), differs = values.some((v) => v !== values[0]);
      return only && !differs ? null : make("tr", {class: several && differs ? "differs" : "", "data-key": key}, make("td", {}, key), values.map((v) => make("td", {}, v)));
    }).filter(Boolean);
  };
  const section = (title, rows) => (rows.length ? [make("tr", {}, make("th", {colspan: known.length + 1}, title)), rows] : []);
  const config = table("config"), result = table("result");
  const box = several ? make("label", {class: "unit"}, make("input", {type: "checkbox", id: "only-different", checked: only, onchange: (event) => { view.onlyDifferent = event.target.checked; view.redraw(); }}), " only what differs") : null;
  const body = config.length + result.length ? make("div", {class: "scroll", tabindex: 0}, make("table", {}, several ? make("tr", {}, make("th", {}, ""), known.map((run) => make("th", {}, run.name))) : null, section("configuration", config), section("result", result))) : make("p", {class: "missing"}, "No difference.");
  return card("config", several ? "Configuration and differences" : "Configuration and result", "", "wide", box, body);
};

const summaryPanel = (run) => (run.state.summary ? card("summary", "Summary", "", "wide", make("pre", {class: "summary"}, run.state.summary.trimEnd())) : null);

const ranksPanel = (run) => {
  const ranks = run.state.ranks || [];
  if (!ranks.length) return null;
  const written = run.state.written_s || 0;
  const rows = ranks.slice(0, 400).map((r) => make("tr", {"data-rank": r.rank}, make("td", {class: "n"}, r.rank), make("td", {}, r.role), make("td", {}, r.host), make("td", {}, r.state), make("td", {class: "n"}, r.role.includes("worker") ? whole(r.clock) : "-"),
    make("td", {class: "n"}, short(r.role.includes("worker") ? r.samples_per_s || r.clocks_per_s : r.records_per_s)), make("td", {class: "n"}, r.staleness === null || r.staleness === undefined ? "-" : `${number(r.staleness, 3)} / ${r.max_staleness}`), make("td", {class: "n"}, whole(r.queue)),
    make("td", {class: "n"}, r.heard_s ? age(written - r.heard_s) + (run.state.alive && written - r.heard_s > run.state.quiet_s ? " !" : "") : "never")));
  return card("ranks", "Ranks", "samples/s of a worker, records/s of a server; staleness: recent / greatest", "wide", make("div", {class: "scroll", tabindex: 0}, make("table", {}, make("tr", {}, ["rank", "role", "host", "state", "clock", "rate/s", "staleness", "queue", "heard"].map((t, i) => make("th", {class: [0, 4, 5, 6, 7, 8].includes(i) ? "n" : ""}, t))), rows)));
};

const logsPanel = (run, view) => {
  const attempts = (run.config && run.config.attempts) || [];
  if (!attempts.length) return null;
  const logs = view.logs, attempt = logs.run === run.name && attempts.includes(logs.attempt) ? logs.attempt : attempts[attempts.length - 1];
  if (logs.run !== run.name || logs.attempt !== attempt) view.openLogs(run.name, attempt);
  const choose = make("select", {"aria-label": "Attempt", id: "log-attempt", onchange: (event) => view.openLogs(run.name, Number(event.target.value))}, attempts.map((a) => make("option", {value: a, selected: a === attempt}, "attempt " + a)));
  const buttons = logs.list.map((log) => make("button", {type: "button", "data-log": log.rank, "aria-pressed": String(log.rank === logs.rank), onclick: () => view.openLog(log.rank)}, `${log.label} (${bytes(log.bytes)})`));
  const text = logs.text === null ? null : make("div", {class: "log", id: "log-text", tabindex: 0, role: "log"}, logs.text);
  return card("logs", "Logs", "what each rank and mpirun wrote", "wide", choose, make("div", {class: "buttons"}, buttons.length ? buttons : "No log in this attempt."), text);
};
