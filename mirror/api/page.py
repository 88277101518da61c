"""The status page: one file, nothing fetched from elsewhere, readable at three in the morning.

It reads ``/status`` every few seconds and writes texts only (``textContent``), so
nothing in a status can become markup; the policy below lets no other script run.
It changes nothing: what to do is shown as commands.
"""

from __future__ import annotations

import base64
import hashlib

_STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --line: #d9dde3; --text: #16191d;
  --dim: #5b6470; --good: #14713a; --good-back: #e2f4e8; --warn: #8a5300; --warn-back: #fdf0d5;
  --bad: #a8161b; --bad-back: #fde5e4; --calm: #24508f; --calm-back: #e4edfa; }
@media (prefers-color-scheme: dark) { :root { --back: #101316; --card: #191d22; --line: #323840;
  --text: #e8eaed; --dim: #9aa4b0; --good: #6fd893; --good-back: #12301d; --warn: #f2bd5c;
  --warn-back: #382a0d; --bad: #ff9088; --bad-back: #431918; --calm: #92bdf7; --calm-back: #16283f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 16px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.25rem; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: .25rem 1rem; margin-bottom: 1rem; }
h1 { font-size: 1.35rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 1.75rem 0 .6rem; }
.dim { color: var(--dim); font-size: .9rem; }
@media (min-width: 60rem) { .push { margin-left: auto; } }
.banner { border: 1px solid; border-left-width: .5rem; border-radius: .5rem; padding: .8rem 1rem;
  font-size: 1.2rem; font-weight: 600; }
.banner p { margin: .15rem 0 0; font-size: .95rem; font-weight: 400; color: var(--text); }
.good { color: var(--good); background: var(--good-back); }
.warn { color: var(--warn); background: var(--warn-back); }
.bad { color: var(--bad); background: var(--bad-back); }
.calm { color: var(--calm); background: var(--calm-back); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .75rem;
  margin-top: .75rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem; }
.figures b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; font-weight: 600; }
.trouble { margin-bottom: .75rem; }
.trouble p { margin: .45rem 0; }
.trouble ul { margin: .4rem 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
.tag { display: inline-block; border-radius: .3rem; padding: .05rem .45rem; font-size: .82rem;
  font-weight: 600; white-space: nowrap; }
code { font: .85rem/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
code.command { display: block; background: var(--back); border: 1px solid var(--line); border-radius: .35rem;
  padding: .4rem .6rem; user-select: all; }
code.command + code.command { margin-top: .3rem; }
.wide { overflow-x: auto; padding: 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { text-align: left; padding: .4rem .8rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--dim); font-weight: 600; font-size: .82rem; }
td.name { white-space: normal; overflow-wrap: anywhere; min-width: 14rem; }
tr:last-child td { border-bottom: 0; }
tr.part td { background: var(--back); font-size: .88rem; }
tr.part td.name { padding-left: 2.2rem; }
.right { text-align: right; }
.stale :is(#figures, #troubles, #list) { opacity: .45; }
button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
  text-align: left; overflow-wrap: anywhere; }
button::before { content: "\\25b8"; display: inline-block; width: 1.1rem; color: var(--dim); }
button[aria-expanded="true"]::before { content: "\\25be"; }
.row { display: flex; flex-wrap: wrap; align-items: baseline; gap: 1rem; }
input { font: inherit; padding: .25rem .5rem; border: 1px solid var(--line); border-radius: .35rem;
  background: var(--card); color: inherit; width: 16rem; max-width: 100%; }
"""

_SCRIPT = r"""
"use strict";
const EVERY_MS = 3000, SHOWN_AT_MOST = 5;
const NO_ANSWER = "The mirror does not answer";
const OPERATOR = ["FENCED", "DIVERGED", "TOPIC_RECREATED", "DATA_LOSS"];
const ORDER = [...OPERATOR, "BLOCKED", "PAUSED", "UNKNOWN", "STANDBY", "LAGGING", "ACTIVE"];
const TONE = { ACTIVE: "good", LAGGING: "calm", BLOCKED: "warn", PAUSED: "warn", UNKNOWN: "calm",
  STANDBY: "calm" };
const tone = (state) => TONE[state] || "bad";
const open = new Set();
let last = null, lastAt = 0, rates = null, asking = false;

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}
const put = (id, ...children) => document.getElementById(id).replaceChildren(...children);
const many = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;
const whole = (n) => n === null ? "unknown" : Math.round(n).toLocaleString("en");

function duration(seconds) {
  if (seconds === null) return "unknown";
  if (seconds === 0) return "0 s";
  if (seconds < 1) return "under 1 s";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min`;
  return `${Math.floor(seconds / 86400)} days`;
}
function bytes(count) {
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (count < 1000) return `${count < 10 && unit !== "B" ? count.toFixed(1) : Math.round(count)} ${unit}`;
    count /= 1000;
  }
  return `${Math.round(count)} PB`;
}
const worst = (parts) => ORDER.find((state) => parts.some((p) => p.state === state)) || "UNKNOWN";
const maxOf = (parts, field) => parts.reduce((most, p) =>
  p[field] !== null && (most === null || p[field] > most) ? p[field] : most, null);
const sumOf = (parts, field) => parts.reduce((sum, p) => sum + (p[field] || 0), 0);
const unknownOf = (parts, field) => parts.filter((p) => p[field] === null && !p.topic_gone).length;
const behindOf = (parts) =>
  parts.some((p) => p.lag_records !== null) ? sumOf(parts, "lag_records") : null;
const nothingThere = (parts) => parts.length && parts.every((p) => p.topic_gone);
const lagOf = (parts) => nothingThere(parts) ? "none" : duration(maxOf(parts, "lag_seconds"));
const missingOf = (parts) => nothingThere(parts) ? "none" : whole(behindOf(parts));
const plain = (reason) => reason.replaceAll("_", " ");
const stateTag = (state, text) => h("span", { class: `tag ${tone(state)}` }, text || state);

function perTopic(parts) {
  const counts = new Map();
  for (const p of parts) counts.set(p.topic, (counts.get(p.topic) || 0) + 1);
  return counts;
}
function commands(parts, action) {
  const every = perTopic(last.partitions), own = perTopic(parts), paths = new Set();
  for (const { topic, partition, lost_from, lost_to } of parts.filter((p) => /^[\w.-]+$/.test(p.topic))) {
    const all = own.get(topic) > 1 && own.get(topic) === every.get(topic) && action !== "accept-loss";
    const body = action === "accept-loss" ? ` -d '{"lost_from":${lost_from},"lost_to":${lost_to}}'` : "";
    paths.add(all ? `topics/${topic}/${action}` : `partitions/${topic}/${partition}/${action}${body}`);
  }
  const shown = [...paths].slice(0, SHOWN_AT_MOST).map((path) => h("code", { class: "command" },
    "curl -X POST -H 'X-Twinsite-Control: yes' -H 'Content-Type: application/json' " +
    `${location.origin}/${path}`));
  const rest = paths.size - shown.length;
  return rest ? [...shown, h("p", { class: "dim" }, `and ${many(rest, "other")} in the same way`)] : shown;
}
function actions(state, parts) {
  const ways = { DATA_LOSS: ["To give up what is lost and continue:", "accept-loss"],
    PAUSED: ["To resume:", "resume"], BLOCKED: ["To check again now:", "resume"] };
  if (!(state in ways)) return [];
  const [words, action] = ways[state], shown = commands(parts, action);
  return shown.length ? [h("p", {}, words), ...shown] : [];
}
function trouble(group) {
  const { state, reason, hint, parts } = group;
  const items = parts.slice(0, SHOWN_AT_MOST).map((p) => h("li", {}, h("b", {}, `${p.topic}-${p.partition}`),
    p.detail ? `: ${p.detail}` : ""));
  const rest = parts.length - SHOWN_AT_MOST;
  if (rest > 0) items.push(h("li", {}, `and ${many(rest, "other")}`));
  return h("div", { class: "card trouble" },
    h("div", { class: "row" }, stateTag(state), h("b", {}, plain(reason || "")),
      h("span", { class: "dim" }, many(parts.length, "partition"))),
    hint ? h("p", {}, h("b", {}, "What to do: "), hint) : null, ...actions(state, parts),
    h("p", { class: "dim" }, "Details:"), h("ul", {}, ...items));
}
function troubles(parts) {
  const groups = new Map();
  for (const p of parts) {
    if (["ACTIVE", "UNKNOWN", "STANDBY"].includes(p.state) || p.reason === "catching_up") continue;
    const key = `${p.state} ${p.reason}`;
    if (!groups.has(key)) groups.set(key, { state: p.state, reason: p.reason, hint: p.hint, parts: [] });
    groups.get(key).parts.push(p);
  }
  const sorted = [...groups.values()].sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state));
  put("troubles", ...(sorted.length ? [h("h2", {}, "What is wrong"), ...sorted.map(trouble)] : []));
}

const unsureOf = (topics) => topics.filter((topic) => topic.reason === "not_known");
function verdict(status) {
  const parts = status.partitions;
  if (status.waits_for) return ["warn", "Waiting",
    `Nothing is copied yet: the mirror waits for ${status.waits_for}.`];
  const count = (...states) => parts.filter((p) => states.includes(p.state)).length;
  const all = many(parts.length, "partition"), decide = count(...OPERATOR), blocked = count("BLOCKED");
  const paused = count("PAUSED"), behind = count("LAGGING"), unknown = count("UNKNOWN");
  const waiting = parts.filter((p) => p.state === "STANDBY");
  const going = parts.length - decide - blocked - paused - unknown - waiting.length;
  const others = `${whole(going)} of ${all} are being copied.`;
  const unsure = unsureOf(status.topics_left_out);
  if (!parts.length && !unsure.length) return ["warn", "No partition is mirrored",
    "No topic matches topics.include and topics.exclude, or none was found yet."];
  if (decide) return ["bad",
    `${many(decide, "partition")} ${decide === 1 ? "waits" : "wait"} for your decision`, others];
  if (blocked) return ["warn", `${many(blocked, "partition")} blocked`, `Retried automatically. ${others}`];
  if (paused) return ["warn", `${many(paused, "partition")} paused by an operator`, others];
  const near = parts.filter((p) => p.reason === "retention_near").length;
  if (near) return ["warn", `${many(near, "partition")} about to lose records`,
    "Retention at the source will remove them before they are copied, or not long after."];
  const missing = parts.filter((p) => p.reason === "compaction_near").length;
  if (missing) return ["warn", `${many(missing, "partition")} about to miss deletes`,
    "Compaction at the source may remove tombstones before they are copied, or not long after."];
  const held = parts.filter((p) => p.state === "LAGGING" && p.reason !== "catching_up");
  if (held.length) return ["warn", `${many(held.length, "partition")} behind: ` +
    [...new Set(held.map((p) => plain(p.reason)))].join(", "),
    `${held[0].topic}-${held[0].partition}: ${held[0].detail}.`];
  if (unsure.length) return ["warn", `${many(unsure.length, "topic")} not copied`,
    `${unsure[0].topic}: ${unsure[0].detail}.`];
  if (unknown) return ["calm", "Starting", `${many(unknown, "partition")} not checked yet.`];
  if (waiting.length) return ["calm", "Standing by",
    `${many(waiting.length, "partition")}: ${waiting[0].detail}.`];
  if (behind) return ["calm", `Catching up: ${many(behind, "partition")} behind`,
    parts.find((p) => p.state === "LAGGING").hint];
  const dark = unknownOf(parts, "lag_seconds");
  return ["good", "Up to date",
    all + (dark ? `; the lag of ${whole(dark)} is not known yet.` : ", all within the stated lag.")];
}
function banner(tone_, head, text) {
  document.querySelector("main").classList.toggle("stale", head === NO_ANSWER);
  const element = document.getElementById("banner");
  element.className = `banner ${tone_}`;
  element.replaceChildren(head, h("p", {}, text));
}
const figure = (value, name) =>
  h("div", { class: "card" }, h("b", {}, value), h("span", { class: "dim" }, name));

const arrival = ({ outlook }) => outlook.catch_up === "never" ? "never caught up at this pace"
  : outlook.catch_up === "expected" ? `caught up in ${duration(outlook.catch_up_seconds)}` : "";
const forecast = (name, word, seconds, shown) =>
  shown ? [figure(word === "never" ? "never" : duration(seconds), name)] : [];

function figures(status) {
  const parts = status.partitions, lag = maxOf(parts, "lag_seconds");
  const behind = behindOf(parts);
  const named = (name, field, value) => {
    const unknown = value === null ? 0 : unknownOf(parts, field);
    return unknown ? `${name}; unknown for ${whole(unknown)}` : name;
  };
  const least = (key, name) => {
    const known = parts.map((p) => p[key] ?? null).filter((s) => s !== null);
    return known.length ? [figure(duration(Math.min(...known)), name)] : [];
  };
  const per = (value) => rates === null ? "\u2013" : value;
  put("figures",
    figure(lagOf(parts), named("worst lag", "lag_seconds", lag)),
    figure(missingOf(parts), named("records behind", "lag_records", behind)),
    figure(per(rates && `${bytes(rates.bytes)}/s`), "appended"),
    figure(per(rates && whole(rates.records)), "records per second"),
    ...forecast("caught up in, at this pace", status.outlook.catch_up, status.outlook.catch_up_seconds,
      parts.some((p) => p.state === "LAGGING")),
    ...forecast("until records are lost, at this pace", status.outlook.retention_loss,
      status.outlook.retention_loss_seconds, status.outlook.retention_loss === "expected"),
    ...least("retention_headroom_seconds", "until retention may overtake the copy"),
    ...least("tombstone_headroom_seconds", "until compaction may remove tombstones"),
    figure(bytes(status.resident_bytes), "memory"));
}
function why(reasons, parts) {
  if (reasons.length !== 1 || !reasons[0]) return "";
  if (reasons[0] !== "catching_up") return plain(reasons[0]);
  return parts.length === 1 ? arrival(parts[0]) : "";
}
function row(kind, name, parts, more) {
  const state = worst(parts);
  const reasons = [...new Set(parts.filter((p) => p.state === state).map((p) => p.reason))];
  return h("tr", { class: kind }, h("td", { class: "name" }, name),
    h("td", {}, stateTag(state), ` ${why(reasons, parts)}`),
    h("td", { class: "right" }, lagOf(parts)),
    h("td", { class: "right" }, missingOf(parts)),
    h("td", { class: "right" }, whole(sumOf(parts, "records"))),
    h("td", { class: "right" }, more),
    h("td", {}, [...new Set(parts.map((p) => p.offset_mode || "unknown"))].join(", ")));
}
function topicRows(topic, parts) {
  const renamed = parts[0].target_topic !== topic ? ` \u2192 ${parts[0].target_topic}` : "";
  const button = h("button", { type: "button", "aria-expanded": String(open.has(topic)) }, topic + renamed);
  button.addEventListener("click", () => { open.delete(topic) || open.add(topic); topics(last.partitions); });
  const rows = [row("topic", button, parts, whole(parts.length))];
  if (open.has(topic)) rows.push(...parts.map((p) => row("part", `partition ${p.partition}`, [p],
    `next ${whole(p.next_offset)} of ${whole(p.source_last_stable_offset)}`)));
  return rows;
}
function topics(parts) {
  const wanted = document.getElementById("filter").value.trim().toLowerCase(), by = new Map();
  for (const p of parts) {
    if (!p.topic.toLowerCase().includes(wanted)) continue;
    if (!by.has(p.topic)) by.set(p.topic, []);
    by.get(p.topic).push(p);
  }
  const focused = document.activeElement && document.activeElement.textContent;
  const rank = (members) => ORDER.indexOf(worst(members));
  const sorted = [...by].sort(([a, x], [b, y]) => rank(x) - rank(y) || (a < b ? -1 : 1));
  put("topics", ...sorted.flatMap(([topic, members]) => topicRows(topic, members)));
  for (const b of document.querySelectorAll("#topics button")) if (b.textContent === focused) b.focus();
}
function show(status, now) {
  if (last && last.started_at_ms === status.started_at_ms && now > lastAt) {
    const per = (now - lastAt) / 1000, records = (s) => sumOf(s.partitions, "records");
    rates = { bytes: Math.max(0, status.bytes_appended - last.bytes_appended) / per,
      records: Math.max(0, records(status) - records(last)) / per };
  } else rates = null;
  last = status; lastAt = now;
  document.title = `${verdict(status)[1]} \u00b7 ${status.flow}`;
  put("flow", status.flow);
  const source = status.source_cluster_id || "source not reached";
  const target = status.target_cluster_id || "target not reached";
  put("clusters", status.waits_for ? "" : `${source} \u2192 ${target}`);
  const owner = status.owner ? "" : ", not the owner of the flow";
  const unsure = unsureOf(status.topics_left_out).length, copies = status.topics_left_out.length - unsure;
  let left = copies ? `, ${many(copies, "topic")} left out as copies of what the target has` : "";
  left += unsure ? `, ${many(unsure, "topic")} left out as possible copies` : "";
  put("about", `twinsite ${status.version}, up ${duration(status.uptime_seconds)}${owner}${left}`);
  put("asof", `as of ${new Date().toISOString().slice(11, 19)} UTC`);
  banner(...verdict(status));
  figures(status); troubles(status.partitions); topics(status.partitions);
  document.getElementById("list").hidden = false;
}
async function ask() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const answer = await fetch("/status", { signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    show(await answer.json(), performance.now());
  } catch (error) {
    document.title = NO_ANSWER;
    const ago = duration((performance.now() - lastAt) / 1000);
    banner("bad", NO_ANSWER, `${error.message}. Check that the process runs, and its log.` +
      (last ? ` Below is its status from ${ago} ago.` : ""));
  }
  asking = false;
}
document.getElementById("filter").addEventListener("input", () => last && topics(last.partitions));
document.addEventListener("visibilitychange", ask);
setInterval(ask, EVERY_MS);
ask();
"""

_BODY = """
<main>
<header><h1 id="flow">twinsite</h1><span class="dim" id="clusters"></span>
<span class="dim push" id="about"></span><span class="dim" id="asof"></span></header>
<div id="banner" class="banner calm" role="status" aria-live="polite">Asking the mirror</div>
<noscript><p>This page needs JavaScript. The same as JSON: <a href="/status">/status</a>.</p></noscript>
<div id="figures" class="figures"></div>
<section id="troubles"></section>
<section id="list" hidden>
<div class="row"><h2>Topics</h2>
<input id="filter" type="search" placeholder="filter" aria-label="Filter topics"></div>
<div class="card wide"><table>
<thead><tr><th>Topic</th><th>State</th><th class="right">Lag</th><th class="right">Records behind</th>
<th class="right">Copied since start</th><th class="right">Partitions</th><th>Offsets</th></tr></thead>
<tbody id="topics"></tbody></table></div>
</section>
<p class="dim">Also here: <a href="/status">/status</a>, <a href="/metrics">/metrics</a>,
<a href="/livez?verbose">/livez</a>, <a href="/readyz?verbose">/readyz</a></p>
</main>
"""


def _digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; connect-src 'self'; img-src data:; style-src {_digest(_STYLE)}; "
    f"script-src {_digest(_SCRIPT)}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

PAGE = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>twinsite</title>\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">\n'
    f"<style>{_STYLE}</style></head><body>{_BODY}<script>{_SCRIPT}</script></body></html>\n"
)
