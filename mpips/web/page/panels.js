"use strict";
// The panels of one run: what its machine did. Each takes what the page holds of the run, and returns a card, or null if the
// run directory has no such numbers or they contain no information, such as a staleness of 0 or bytes without compression.

const ACTIVITIES = ["compute", "wait", "push", "pull", "snapshot"];
const MOST_COLUMNS = 400; // of charts of counts
const MOST_CURVES = 8; // of ranks in one chart

const tableOf = (kind, head, rows) => make("div", {class: "scroll", tabindex: 0}, make("table", {class: kind}, make("tr", {}, head.map(([text, side]) => make("th", {class: side || ""}, text))), rows));
const cell = (...content) => make("td", {}, ...content);
const numberCell = (text) => make("td", {class: "n"}, text);
const barOf = (share) => { const bar = make("div", {class: "bar"}); bar.style.width = 100 * Math.min(Math.max(share || 0, 0), 1) + "%"; return bar; };
const stackOf = (shares) => make("div", {class: "stack"}, shares.map((share, i) => { const part = make("div"); part.style.width = 100 * share + "%"; part.style.background = `var(--${ACTIVITIES[i]})`; return part; }));
const allEqual = (values) => values.every((v) => v === values[0]);

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

const timePanel = (run) => {
  const head = lastHead(run), last = lastCounts(run);
  if (!head || !last.elapsed || !last.elapsed.length) return null;
  const workers = ranksWith(head, "worker"), spans = intervals(run).filter((s) => s.to.generation === head.generation);
  const totals = workers.map((w) => shares(null, last, w.rank)), there = totals.filter(Boolean);
  if (!spans.length || !there.length) return null;
  const mean = (list) => ACTIVITIES.map((_, i) => sum(list.map((t) => t[i])) / list.length);
  const all = mean(there), colour = (name) => `var(--${name})`;
  const legend = make("div", {class: "legend"}, ACTIVITIES.map((name, i) => make("span", {"data-activity": name}, swatch(colour(name)), name, " ", make("b", {}, percent(all[i])))));
  const rows = workers.map((w, i) => (totals[i] ? make("tr", {"data-worker": w.label}, cell(w.label), ACTIVITIES.map((_, k) => numberCell(percent(totals[i][k]))), make("td", {class: "wide-bar"}, stackOf(totals[i]))) : null)).filter(Boolean);
  const over = spans.map((s) => { const each = workers.map((w) => shares(s.from, s.to, w.rank)).filter(Boolean); return [s.end, each.length ? mean(each) : null]; });
  const chart = over.length < 2 ? null : stackChart("time", ACTIVITIES.map((name) => ({name, colour: colour(name)})), over, {x: "time", label: "Time of workers", height: 180});
  return card("time", "Time of each worker", `attempt ${head.generation}` + (over.length > 1 ? "; in the chart the mean of all workers" : ""), "wide", legend, make("div", {class: "halves"}, tableOf("barred", [["worker"], ...ACTIVITIES.map((name) => [name, "n"]), [""]], rows), chart));
};

const stalenessPanel = (run) => {
  const head = lastHead(run), last = lastCounts(run);
  if (!head) return null;
  const workers = ranksWith(head, "worker"), spans = intervals(run);
  const of = (w) => spans.map((s) => {
    const judged = grown(s, "judged", w.rank), stale = grown(s, "staleness", w.rank);
    return [s.end, judged > 0 ? stale / judged : null];
  });
  const each = workers.map((w, i) => ({name: w.label, index: i, points: of(w), mean: last.judged[w.rank] ? last.staleness[w.rank] / last.judged[w.rank] : null}));
  const reduced = (name, index, pick) => ({name, index, points: spans.map((s, i) => { const values = each.map((e) => e.points[i][1]).filter(isNumber); return [s.end, values.length ? pick(values) : null]; })});
  const series = each.length <= MOST_CURVES ? each : [reduced("mean", 0, (v) => sum(v) / v.length), reduced("greatest", 1, (v) => Math.max(...v)), reduced("least", 2, (v) => Math.min(...v))];
  for (const s of series) if (isNumber(s.mean)) s.bestText = "mean " + number(s.mean, 3);
  const made = chartCard("staleness", "Staleness of updates", `updates of the table behind, of ${each.length <= MOST_CURVES ? "each worker" : `${each.length} workers`}`, series, {x: "time", y: (v, digits = 3) => number(v, digits), zero: true, several: true, size: ""});
  const bound = run.state ? run.state.ssp_bound : null;
  if (made && isNumber(bound)) made.append(make("p", {class: "note", "data-ssp-bound": String(bound)}, `The bound of SSP("auto") is ${bound}.`));
  const backup = run.state ? run.state.backup : null;
  if (made && isNumber(backup)) made.append(make("p", {class: "note", "data-backup": String(backup)}, `Backup workers of BSP: ${backup}.`));
  const switched = run.state ? run.state.switched : null;
  if (made && typeof switched === "boolean") made.append(make("p", {class: "note", "data-switched": String(switched)}, switched ? "Tables are under ASP, after the switch." : "Tables are under BSP, before the switch."));
  return made;
};

const serverCurve = (id, title, unit, run, value, y) => {
  const head = lastHead(run);
  if (!head) return null;
  const servers = ranksWith(head, "server"), spans = intervals(run).filter((s) => s.to.generation === head.generation);
  if (!servers.length || !spans.length) return null;
  const one = head.roles.length === 1;
  const series = servers.slice(0, MOST_CURVES).map((s, i) => ({name: s.label, index: i, points: spans.map((span) => [span.end, value(span, s.rank, one)])}));
  const made = chartCard(id, title, unit, series, {x: "time", y, zero: true, several: true, size: "third", height: 180});
  if (made && servers.length > MOST_CURVES) made.append(make("p", {class: "note"}, `The first ${MOST_CURVES} of ${servers.length} servers.`));
  return made;
};

const tablesPanel = (run) => {
  const head = lastHead(run), last = lastCounts(run);
  if (!head || !head.tables.length) return null;
  const of = Object.entries(last.updates || {}).map(([table, n]) => [Number(table), n]).filter(([table]) => table < head.tables.length);
  // Under BSP all tables have as many updates.
  if (of.length < 2 || allEqual(of.map(([, n]) => n))) return null;
  const spans = intervals(run).filter((s) => s.to.generation === head.generation), span = spans[spans.length - 1];
  const rate = (table) => (span && span.from.updates[table] !== undefined && span.to.updates[table] !== undefined ? (span.to.updates[table] - span.from.updates[table]) / (span.to.time_s - span.from.time_s) : null);
  of.sort((a, b) => b[1] - a[1]);
  const rows = of.slice(0, 12).map(([table, n]) => make("tr", {"data-table": head.tables[table]}, cell(head.tables[table]), numberCell(whole(n)), numberCell(rate(table) === null ? "-" : short(rate(table))), cell(barOf(n / (of[0][1] || 1)))));
  return card("tables", "Hottest tables", "updates of all servers", "", tableOf("barred", [["table"], ["updates", "n"], ["per s, lately", "n"], [""]], rows));
};

const rowsPanel = (run) => {
  const found = (run.state && run.state.hot_rows) || [];
  if (!found.length) return null;
  const most = Math.max(...found.map((r) => r.share), 1e-9), bars = !allEqual(found.map((r) => r.share));
  const rows = found.map((r) => make("tr", {"data-row": `${r.table} ${r.key}`}, cell(r.table), numberCell(r.key), numberCell(short(r.pulls_per_s)), numberCell(short(r.pushes_per_s)), numberCell(percent(r.share)), bars ? cell(barOf(r.share / most)) : null));
  return card("rows", "Hottest rows", "of embedding tables, over about a minute; from a sample", "", tableOf(bars ? "barred" : "", [["table"], ["key", "n"], ["pulls/s", "n"], ["pushes/s", "n"], ["of table", "n"], ...(bars ? [[""]] : [])], rows));
};

// --- Traffic ---------------------------------------------------------------------------------------------------------

const trafficPanel = (run) => {
  const head = lastHead(run), last = lastCounts(run);
  if (!head || !last.pushed) return null;
  const workers = ranksWith(head, "worker").map((w) => w.rank);
  const total = (name) => sum(workers.map((rank) => (last[name] && last[name][rank]) || 0));
  const row = (what, sent, saved) => {
    const before = sent + saved;
    return make("tr", {"data-traffic": what}, cell(what), numberCell(bytes(before)), numberCell(bytes(sent)), numberCell(saved && sent > 0 ? Number((before / sent).toPrecision(3)) + "x" : "-"), cell(make("div", {class: "stack"}, barOf(before > 0 ? sent / before : 0))));
  };
  // Without a codec nothing is saved.
  const saved = total("push_saved") + total("pull_saved") > 0, transports = transportRows(run, head);
  const table = saved ? tableOf("barred", [[""], ["before", "n"], ["after", "n"], ["ratio", "n"], [""]], [row("pushed", total("pushed"), total("push_saved")), row("pulled", total("pulled"), total("pull_saved"))]) : null;
  if (!table && !transports) return null;
  return card("traffic", table ? "Bytes before and after compression" : "Bytes by transport", `attempt ${head.generation}, all workers`, "", table, transports);
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
  // With one transport they are the sums that the curves of pushes and pulls show.
  if (names.length < 2) return null;
  return tableOf("", [["transport"], ["links", "n"], ["pushed", "n"], ["pulled", "n"]], names.map((name) => make("tr", {"data-transport": name}, cell(name), numberCell(whole(byName[name][0])), numberCell(bytes(byName[name][1])), numberCell(bytes(byName[name][2])))));
};

const linksPanel = (run) => {
  const head = lastHead(run);
  if (!head) return null;
  const rows = linksOf(run, head);
  if (!rows.length) return null;
  const n = Math.max(...rows.map((r) => r.links.length)), most = Math.max(...rows.flatMap((r) => r.links.map(([a, b]) => a + b)), 1);
  // One link has what the curves of pushes and pulls show.
  if (rows.length * n < 2) return null;
  const linkCell = ([pushed, pulled], name) => {
    const share = (pushed + pulled) / most, td = make("td", {class: "n cell", title: name || ""}, `${bytes(pushed)} / ${bytes(pulled)}`);
    td.style.background = `color-mix(in srgb, var(--s0) ${Math.round(38 * share)}%, var(--card))`;
    return td;
  };
  return card("links", "Bytes of each link", `pushed / pulled, attempt ${head.generation}`, n > 3 ? "wide" : "", make("div", {class: "scroll"}, make("table", {class: "matrix"}, make("tr", {}, make("th", {}, ""), Array.from({length: n}, (_, i) => make("th", {class: "n"}, "server " + i))),
    rows.map((w) => make("tr", {"data-link": w.label}, make("td", {}, w.label), w.links.map((pair, server) => linkCell(pair, (head.transports[Number(w.label.split(" ")[1])] || [])[server])))))));
};

// --- Memory and placement --------------------------------------------------------------------------------------------

const memoryPanel = (run) => {
  const head = lastHead(run);
  if (!head) return null;
  const spans = intervals(run).filter((s) => s.to.generation === head.generation), last = lastCounts(run), rows = [];
  const line = (what, used, of) => {
    rows.push(make("tr", {"data-memory": what}, cell(what), numberCell(bytes(used)), numberCell(of > 0 ? bytes(of) : ""), cell(of > 0 ? make("div", {class: "stack"}, barOf(used / of)) : null)));
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
  return card("memory", "Memory", "all ranks", "wide", make("div", {class: "halves"}, tableOf("barred", [[""], ["in use", "n"], ["of", "n"], [""]], rows), spans.length > 1 ? make("div", {}, legendOf(series, bytes), lineChart("memory", series, {x: "time", label: "Memory", y: bytes, zero: true, height: 180})) : null));
};

const placementPanel = (run) => {
  const head = lastHead(run);
  if (!head || !head.placement.length) return null;
  const n = Math.max(...head.placement.map((row) => row.length)), most = Math.max(...head.placement.flat(), 1);
  const reasons = ((run.config && run.config.reasons) || []).map((text) => make("p", {class: "note"}, text));
  // With one server, and nothing that was decided, all tables lie there.
  if (n < 2 && !reasons.length) return null;
  const rows = head.placement.slice(0, 40).map((row, table) => {
    const hashed = row.some((b) => b < 0), empty = !row.some((b) => b !== 0);
    const cells = hashed ? [make("td", {class: "n", colspan: n}, "rows by key on all servers")] : empty ? [make("td", {class: "n", colspan: n}, "on every worker")] : row.map((b) => {
      const td = make("td", {class: "n cell"}, b ? bytes(b) : "-");
      td.style.background = `color-mix(in srgb, var(--s2) ${Math.round(38 * b / most)}%, var(--card))`;
      return td;
    });
    return make("tr", {"data-placed": head.tables[table]}, make("td", {}, head.tables[table]), cells);
  });
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

const EVENT_MARKS = {failed: "✕", began: "│", checkpoint: "◇", finished: "✓"};

const eventsPanel = (run) => {
  const events = eventsOf(run);
  if (!events.length) return null;
  const end = Math.max(events[events.length - 1].x, run.state.written_s ? run.state.written_s - beginOf(run) : 0, 1);
  const strip = make("div", {class: "strip", role: "img", "aria-label": "Time line of attempts, checkpoints and failures; the list below has the same"});
  const put = (name, text, from, to) => {
    const part = make("span", {class: name, title: text});
    part.style.left = 100 * Math.min(Math.max(from, 0) / end, 1) + "%";
    if (to !== undefined) part.style.width = 100 * Math.max(Math.min(to, end) - Math.max(from, 0), 0) / end + "%";
    strip.append(part);
    return part;
  };
  let begun = null;
  for (const e of events) {
    if (e.kind === "began") begun = e.x;
    if ((e.kind === "failed" || e.kind === "finished") && begun !== null) { put("span", "an attempt", begun, e.x); begun = null; }
  }
  if (begun !== null) put("span", "an attempt", begun, end);
  for (const e of events) {
    const kind = Object.hasOwn(EVENT_MARKS, e.kind) ? e.kind : "began", mark = put("mark " + kind, e.text, e.x);
    mark.textContent = EVENT_MARKS[kind];
    mark.dataset.event = kind;
  }
  const axis = make("div", {class: "strip-axis"}, make("span", {}, "0:00"), make("span", {}, AXIS_NAMES.time), make("span", {}, duration(end)));
  const count = (kind) => events.filter((e) => e.kind === kind).length;
  const list = make("ul", {class: "event-text", tabindex: 0, "aria-label": "Events"}, events.slice(-200).reverse().map((e) => make("li", {class: e.kind}, make("b", {}, duration(e.x)), "  ", e.text)));
  const legend = make("div", {class: "legend"}, [["began", "attempt"], ["checkpoint", "checkpoint"], ["failed", "failure"]].filter(([kind]) => count(kind)).map(([kind, text]) => make("span", {"data-count": kind, class: kind}, EVENT_MARKS[kind], ` ${text} `, make("b", {}, String(count(kind))))));
  return card("events", "Time line", "", "wide", legend, strip, axis, list);
};

// Results with 4 digits, unless values that differ would then be equal.
const shownValues = (values) => {
  const short = values.map(rounded);
  return new Set(short).size === new Set(values).size ? short : values;
};

const configPanel = (runs, view) => {
  const known = runs.filter((run) => run.config && Object.keys(run.config.config).length);
  if (!known.length) return null;
  const several = known.length > 1, only = several && view.onlyDifferent;
  const table = (part) => {
    const keys = [...new Set(known.flatMap((run) => Object.keys(run.config[part])))].sort();
    return keys.map((key) => {
      const values = known.map((run) => run.config[part][key] ?? "-"), differs = values.some((v) => v !== values[0]);
      return only && !differs ? null : make("tr", {class: several && differs ? "differs" : "", "data-key": key}, make("td", {}, key), (part === "result" ? shownValues(values) : values).map((v) => make("td", {}, v)));
    }).filter(Boolean);
  };
  const section = (title, rows) => (rows.length ? [make("tr", {}, make("th", {colspan: known.length + 1}, title)), rows] : []);
  const config = table("config"), result = table("result");
  const box = several ? make("label", {class: "unit"}, make("input", {type: "checkbox", id: "only-different", checked: only, onchange: (event) => { view.onlyDifferent = event.target.checked; view.redraw(); }}), " only what differs") : null;
  const body = config.length + result.length ? make("div", {class: "scroll", tabindex: 0}, make("table", {}, several ? make("tr", {}, make("th", {}, ""), known.map((run) => make("th", {}, run.name))) : null, section("result", result), section("configuration", config))) : make("p", {class: "missing"}, "No difference.");
  return card("config", several ? "Differences and configuration" : "Result and configuration", "", "wide", box, body);
};

const summaryPanel = (run) => (run.state.summary ? card("summary", "Summary", "", "wide", make("pre", {class: "summary"}, run.state.summary.trimEnd())) : null);

const ranksPanel = (run) => {
  const ranks = run.state.ranks || [];
  if (!ranks.length) return null;
  const written = run.state.written_s || 0;
  const rows = ranks.slice(0, 400).map((r) => make("tr", {"data-rank": r.rank}, make("td", {class: "n"}, r.rank), make("td", {}, r.role), make("td", {}, r.host), make("td", {}, r.state), make("td", {class: "n"}, r.role.includes("worker") ? whole(r.clock) : "-"),
    make("td", {class: "n"}, short(r.role.includes("worker") ? r.samples_per_s || r.clocks_per_s : r.records_per_s)), make("td", {class: "n"}, r.staleness === null || r.staleness === undefined ? "-" : `${number(r.staleness, 3)} / ${r.max_staleness}`), make("td", {class: "n"}, whole(r.queue)),
    make("td", {class: "n"}, r.heard_s ? age(written - r.heard_s) + (run.state.alive && written - r.heard_s > run.state.quiet_s ? " !" : "") : "never")));
  return card("ranks", "Ranks", (run.state.alive ? "" : "as of the last status; ") + "samples/s of a worker, records/s of a server; staleness: recent / greatest", "wide", make("div", {class: "scroll", tabindex: 0}, make("table", {}, make("tr", {}, ["rank", "role", "host", "state", "clock", "rate/s", "staleness", "queue", "heard"].map((t, i) => make("th", {class: [0, 4, 5, 6, 7, 8].includes(i) ? "n" : ""}, t))), rows)));
};

// The programs of [producers]. The log of a member is among the logs.
const producersPanel = (run) => {
  const {rows: members = [], count = 0} = run.state.producers || {};
  if (!members.length) return null;
  const some = (key) => members.some((m) => m[key]), head = [["member", "n"], ["state"], ["restarts", "n"], ["failures", "n"], ["samples", "n"]];
  if (some("values")) head.push(["parameters"]);
  if (some("cause")) head.push(["last failure"]);
  const rows = members.map((m) => make("tr", {"data-member": m.member}, numberCell(whole(m.member)), cell(m.state), numberCell(whole(m.restarts)), numberCell(whole(m.failures)), numberCell(whole(m.produced)), some("values") ? cell(m.values) : null, some("cause") ? cell(m.cause) : null));
  const more = count > members.length ? make("p", {class: "note"}, `The first ${members.length} of ${whole(count)} members.`) : null;
  return card("producers", "Producers", "programs beside the job" + (run.state.alive ? "" : ", as of their last state"), "wide", tableOf("", head, rows), more);
};

const logsPanel = (run, view) => {
  const attempts = (run.config && run.config.attempts) || [];
  if (!attempts.length) return null;
  const logs = view.logs, attempt = logs.run === run.name && attempts.includes(logs.attempt) ? logs.attempt : attempts[attempts.length - 1];
  if (logs.run !== run.name || logs.attempt !== attempt) view.openLogs(run.name, attempt);
  const choose = make("select", {"aria-label": "Attempt", id: "log-attempt", onchange: (event) => view.openLogs(run.name, Number(event.target.value))}, attempts.map((a) => make("option", {value: a, selected: a === attempt}, "attempt " + a)));
  const buttons = logs.list.map((log) => make("button", {type: "button", "data-log": log.rank, "aria-pressed": String(log.rank === logs.rank), onclick: () => view.openLog(log.rank)}, `${log.label} (${bytes(log.bytes)})`));
  const text = logs.text === null ? null : make("div", {class: "log", id: "log-text", tabindex: 0, role: "log"}, logs.text);
  return card("logs", "Logs", (run.state.producers || {}).rows ? "what each rank, mpirun and each program wrote" : "what each rank and mpirun wrote", "wide", choose, make("div", {class: "buttons"}, buttons.length ? buttons : "No log in this attempt."), text);
};
