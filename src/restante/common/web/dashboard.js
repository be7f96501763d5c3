"use strict";
// Shows what the server sends in the elements that name it: data-value, data-rows, data-grid, data-series, data-href, data-if.
// Texts of the server are set as text, never as HTML.

const RETRY_MS = 2000;
const SILENCE_MS = 10000; // events come every two seconds
const GAP_SECONDS = 35; // samples come every ten seconds, but not from a server that does not respond
const TOKEN = "restante-token";
const state = document.getElementById("state");
const entrance = document.getElementById("entrance");
const content = document.getElementById("content");
const settings = document.getElementById("settings");
let samples = [];
let shown = false; // whether figures were shown since the page was opened

class Replaced extends Error {} // the server shows newer pages instead of this one
class Refused extends Error {} // the server answers, and shows this page no figures
const edited = new Set(); // names of the settings that were edited and not applied

const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const FORMS = {
  text: (value) => String(value),
  count: (value) => count.format(value),
  number: (value) => short.format(value),
  bits: (value) => (value ? `${count.format(value)} ${value === 1 ? "bit" : "bits"}` : "none"),
  percent: (value) => `${count.format(100 * value)}\u00a0%`,
  bytes(value) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
    return `${short.format(value)}\u00a0${units[at]}`;
  },
  seconds(value) {
    if (value < 1) return `${short.format(1000 * value)}\u00a0ms`;
    const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    const largest = units.findIndex(([size]) => value >= size);
    if (largest === 3) return `${short.format(value)}\u00a0s`;
    const [[size, unit], [part, smaller]] = units.slice(largest, largest + 2);
    const rest = Math.floor((value % size) / part);
    return `${count.format(Math.floor(value / size))}\u00a0${unit}${rest ? ` ${rest}\u00a0${smaller}` : ""}`;
  },
  day: (value) => new Date(1000 * value).toISOString().slice(0, 10),
  clock: (value) => `${new Date(1000 * value).toISOString().slice(11, 16)} UTC`,
  time: (value) => `${new Date(1000 * value).toISOString().slice(0, 19).replace("T", " ")} UTC`,
};

function at(object, path) {
  return path.split(".").reduce((found, key) => (found === null || found === undefined ? undefined : found[key]), object);
}

function form(value, as) {
  return value === null || value === undefined ? "–" : FORMS[as || "text"](value);
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function showState(text, kind) {
  setText(state, text);
  state.className = `state ${kind}`;
}

function showValues(now) {
  for (const element of document.querySelectorAll("[data-value]")) {
    const value = at(now, element.dataset.value);
    setText(element, value === null && element.dataset.none ? element.dataset.none : form(value, element.dataset.as));
  }
}

// What is shown only if the server says so.
function showParts(now) {
  for (const each of document.querySelectorAll("[data-if]")) each.hidden = !at(now, each.dataset.if);
}

function fill(body, rows) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, number) => {
    const row = body.rows[number] || body.insertRow();
    cells.forEach((cell, column) => {
      let element = row.cells[column];
      if (!element) {
        element = document.createElement(cell.header ? "th" : "td");
        if (cell.header) element.scope = "row";
        element.className = cell.kind || "";
        element.append(document.createElement("span"));
        if (cell.more !== undefined) element.append(document.createElement("small"));
        row.append(element);
      }
      setText(element.firstChild, cell.text);
      if (cell.more !== undefined) setText(element.lastChild, cell.more);
    });
  });
}

function showRows(now) {
  for (const table of document.querySelectorAll("[data-rows]")) {
    const rows = at(now, table.dataset.rows) || [];
    const heads = [...table.tHead.rows[0].cells];
    fill(table.tBodies[0], rows.map((row) => heads.map((head) => ({
      text: form(at(row, head.dataset.key), head.dataset.as),
      more: head.dataset.more && at(row, head.dataset.more),
      kind: head.className,
    }))));
    table.closest(".rows").hidden = rows.length === 0;
    const none = document.getElementById(table.dataset.none);
    if (none) none.hidden = rows.length > 0;
  }
}

// A table whose columns are the keys of an object, and whose rows are the keys of its values, with their share.
function showGrids(now) {
  for (const table of document.querySelectorAll("[data-grid]")) {
    const columns = [...table.tHead.rows[0].cells].slice(1).map((head) => at(now, table.dataset.grid)?.[head.dataset.key] || {});
    const totals = columns.map((column) => Object.values(column).reduce((sum, each) => sum + each, 0));
    const names = Object.keys(columns[0]);
    fill(table.tBodies[0], names.map((name) => [{ text: name, header: true, more: at(now, table.dataset.meanings)?.[name] }, ...columns.map((column, number) => ({
      text: totals[number] ? `${count.format(column[name])} (${FORMS.percent(column[name] / totals[number])})` : "0",
      kind: "number",
    }))]));
  }
}

// The points of a series: a gauge, the rate of a counter, or the ratio of what two counters grew by, and the highest
// second. The value is null where there is none: nothing was counted, or the server was restarted.
function series(figure) {
  const { series: name, of: other, kind } = figure.dataset;
  const point = (sample, value) => ({ time: sample.time, value, peak: value === null ? null : Math.max(value, sample.peaks?.[name] ?? value) });
  if (kind === "gauge") return samples.map((sample) => point(sample, sample[name]));
  return samples.slice(1).map((sample, number) => {
    const before = samples[number];
    const grown = sample[name] - before[name];
    const by = kind === "rate" ? sample.time - before.time : sample[other] - before[other];
    return point(sample, grown >= 0 && by > 0 ? grown / by : null);
  });
}

function element(name, attributes, ...children) {
  const made = name === "svg" || name === "path" ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function makeCharts() {
  for (const figure of document.querySelectorAll("[data-series]")) {
    const paths = ["peaks", "line", "dots"].map((name) => element("path", { class: name }));
    const drawn = element("svg", { viewBox: "0 0 300 64", preserveAspectRatio: "none", role: "img" }, ...paths);
    const scale = element("div", { class: "scale soft", "aria-hidden": "true" }, element("span", { "data-top": "" }), element("span", { "data-bottom": "" }));
    const axis = element("div", { class: "axis soft", "aria-hidden": "true" }, ...["from", "span", "to"].map((each) => element("span", { [`data-${each}`]: "" })));
    figure.append(element("div", { class: "plot" }, scale, drawn), axis, element("figcaption", { class: "soft" }, element("span", { "data-said": "" })));
  }
}

// The least round number that is not below a value, for the top of a chart.
function round(value, as) {
  if (value <= 0) return 0;
  if (as === "bytes" && value >= 1024) return 1024 * round(value / 1024, as); // of a larger unit
  if (as === "bytes" && value > 800) return 1024;
  const size = 10 ** Math.floor(Math.log10(value));
  return size * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * size >= value * (1 - 1e-9));
}

// What the paths of a chart draw: the line, dots of points without a neighbour, and lines up to the highest second.
function paths(points, begin, end, top) {
  const drawn = { peaks: "", line: "", dots: "" };
  const y = (value) => (60 - (top ? (56 * value) / top : 0)).toFixed(1);
  const joined = (one, other) => one && other && one.value !== null && other.value !== null && other.time - one.time <= GAP_SECONDS;
  points.forEach((point, number) => {
    if (point.value === null) return;
    const x = (end > begin ? (292 * (point.time - begin)) / (end - begin) + 4 : 296).toFixed(1);
    const from = joined(points[number - 1], point);
    const lone = !from && !joined(point, points[number + 1]);
    drawn[lone ? "dots" : "line"] += lone ? `M${x},${y(point.value)}h0` : `${from ? "L" : "M"}${x},${y(point.value)}`;
    if (point.peak > point.value) drawn.peaks += `M${x},${y(point.value)}V${y(point.peak)}`;
  });
  return drawn;
}

function showSeries() {
  const [begin, end] = samples.length ? [samples[0].time, samples.at(-1).time] : [0, 0];
  const clock = (time) => new Date(1000 * time).toISOString().slice(11, end - begin < 120 ? 19 : 16);
  for (const figure of document.querySelectorAll("[data-series]")) {
    const points = series(figure);
    const highest = Math.max(...points.map((point) => point.peak), 0);
    const top = round(highest, figure.dataset.as);
    const svg = figure.querySelector("svg");
    for (const [name, d] of Object.entries(paths(points, begin, end, top))) svg.querySelector(`.${name}`).setAttribute("d", d);
    setText(figure.querySelector("[data-top]"), top > 0 ? form(top, figure.dataset.as) : "");
    setText(figure.querySelector("[data-bottom]"), points.length ? "0" : "");
    const said = points.length
      ? `latest ${form(points.at(-1).value, figure.dataset.as)}, highest ${form(highest, figure.dataset.as)}`
      : "no figures yet";
    setText(figure.querySelector("[data-said]"), said);
    const title = figure.querySelector("h3").textContent;
    const span = form(end - begin, "seconds");
    const spans = points.length > 0 && end > begin;
    const times = spans ? `, from ${clock(begin)} to ${clock(end)} UTC (${span})` : "";
    svg.setAttribute("aria-label", `${title}: ${said}${times}`);
    setText(figure.querySelector("[data-from]"), spans ? clock(begin) : "");
    setText(figure.querySelector("[data-span]"), spans ? span : "");
    setText(figure.querySelector("[data-to]"), spans ? `${clock(end)} UTC` : "");
  }
}

function showLinks(now) {
  for (const link of document.querySelectorAll("[data-href]")) {
    const url = at(now, link.dataset.href);
    link.parentElement.hidden = !url;
    if (url) link.href = url;
  }
}

function showSettings(now) {
  if (!settings || !now.settings) return;
  for (const [name, value] of Object.entries(now.settings)) {
    if (!edited.has(name)) settings.elements[name].value = value ?? "";
  }
}

function show(now) {
  shown = true;
  if (now.unready || now.problem) showState(`Not ready: ${now.unready || now.problem}`, "bad");
  else showState("Ready", "good");
  document.title = `${now.unready || now.problem ? "Not ready" : "Ready"} – ${document.querySelector("h1").textContent}`;
  // The history may be newer than a reading of the server that viewers share.
  if (now.last_sample && !samples.some((each) => each.time === now.last_sample.time)) {
    samples.push(now.last_sample);
    samples = samples.slice(-360);
    showSeries();
  }
  if (now.problem) return;
  showParts(now);
  showValues(now);
  showRows(now);
  showGrids(now);
  showSettings(now);
  showLinks(now);
}

const EVENTS = {
  history(data) { samples = data; showSeries(); },
  now: show,
  replaced(reason) { throw new Replaced(reason); },
};

function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function read() {
  const ending = new AbortController();
  let timer;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => ending.abort(new Error(`no news for ${SILENCE_MS / 1000} s`)), SILENCE_MS);
  };
  wait();
  try {
    return await readUntil(ending.signal, wait);
  } finally {
    clearTimeout(timer);
  }
}

// Show events until the connection ends. Return false if a token is needed.
async function readUntil(signal, heard) {
  const response = await fetch("/events", { headers: headers(), cache: "no-store", signal });
  entrance.hidden = response.status !== 401;
  content.hidden = response.status === 401;
  // A browser sends no token for a link.
  for (const each of document.querySelectorAll(".pages")) each.hidden = sessionStorage.getItem(TOKEN) !== null || content.hidden;
  if (response.status === 401) {
    if (sessionStorage.getItem(TOKEN)) showState("The token is wrong", "bad");
    else showState("A token is needed", "");
    return false;
  }
  if (response.status === 429) throw new Refused(`${(await response.text()).trim()} Then this page shows the figures.`);
  if (!response.ok) throw new Error((await response.text()).trim());
  const lines = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await lines.read();
    if (done) throw new Error("the server closed the connection");
    heard();
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const each of events) {
      const [name, data] = each.split("\ndata: ");
      EVENTS[name.replace("event: ", "")](JSON.parse(data));
    }
  }
}

async function follow() {
  try {
    while (await read());
  } catch (error) {
    const reason = error instanceof Refused || error instanceof Replaced ? error.message : `No connection: ${error.message}.`;
    showState(shown ? `${reason} The figures below are old.` : reason, "bad");
    content.hidden = !shown;
    if (!(error instanceof Replaced)) setTimeout(follow, RETRY_MS);
  }
}

entrance.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, entrance.elements.token.value.trim());
  follow();
});

if (settings) {
  const answer = document.getElementById("answer");
  settings.addEventListener("input", (event) => {
    edited.add(event.target.name);
    setText(answer, "Not applied yet.");
  });
  settings.addEventListener("submit", async (event) => {
    event.preventDefault();
    const wanted = {};
    for (const name of edited) {
      const field = settings.elements[name];
      wanted[name] = field.type === "number" ? Number(field.value) : field.value;
    }
    setText(answer, "Applying.");
    try {
      const response = await fetch("/settings", {
        method: "POST",
        headers: { ...headers(), "Content-Type": "application/json" },
        body: JSON.stringify(wanted),
        signal: AbortSignal.timeout(SILENCE_MS),
      });
      if (!response.ok) throw new Error((await response.text()).trim());
      edited.clear();
      setText(answer, "Applied, until the server starts again or gets SIGHUP.");
    } catch (error) {
      setText(answer, `Not applied, as far as is known: ${error.message}`);
    }
  });
}

makeCharts();
follow();
