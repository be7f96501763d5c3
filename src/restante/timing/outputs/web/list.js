// The table of messages and steps. Only the rows that are visible exist; two empty rows have the height of the rest.

const ROW = 28; // pixels, as in the style sheet
const MAX_PRINTED = 2000; // rows
const rows = byId("rows");
const list = byId("list");
const spare = 6; // rows above and below the visible ones
let filled = [-1, -1];

function cell(row, words, kind = "") {
  const node = row.insertCell();
  node.textContent = words;
  if (kind) node.className = kind;
}

/** Return the duration of the parts with these names, as the table writes it. */
function sumOf(all, names) {
  const wanted = all.filter((row) => names.includes(row.name));
  if (!wanted.length) return "";
  if (wanted.some((row) => row.us === null)) return "?";
  return duration(wanted.reduce((sum, row) => sum + row.us, 0));
}

const IN_SERVER = ["server", "queue", "commit", "queue and commit", "answer"];

function rowOf(entry) {
  const row = document.createElement("tr");
  row.setAttribute("aria-rowindex", String(entry.at + 2));
  row.dataset.at = String(entry.at);
  const all = parts(entry);
  const sum = total(entry);
  cell(row, moment(entry.start), "number");
  cell(row, entry.title);
  cell(row, sum === null || sum.us === null ? "?" : duration(sum.us), "number");
  cell(row, sumOf(all, ["network out"]), "number");
  cell(row, sumOf(all, IN_SERVER), "number");
  cell(row, sumOf(all, ["network in"]), "number");
  mark(row);
  return row;
}

function mark(row) {
  const entry = entries[Number(row.dataset.at)];
  row.classList.toggle("chosen", entry === chosen.entry);
  row.classList.toggle("matched", Boolean(search.found[entry.at]));
  if (entry === chosen.entry) row.setAttribute("aria-current", "true");
  else row.removeAttribute("aria-current");
}

function spacer(count) {
  const row = document.createElement("tr");
  row.className = "space";
  row.setAttribute("aria-hidden", "true");
  const node = row.insertCell();
  node.colSpan = 6;
  node.style.height = `${count * ROW}px`;
  return row;
}

/** Make the rows that are visible. */
function fillRows(all = false) {
  const first = all ? 0 : Math.max(0, Math.floor(rows.scrollTop / ROW) - spare);
  const visible = Math.ceil(rows.clientHeight / ROW) + 2 * spare;
  const last = Math.min(entries.length, all ? MAX_PRINTED : first + visible);
  const body = list.tBodies[0];
  if (first === filled[0] && last === filled[1]) {
    for (const row of body.rows) if (row.dataset.at) mark(row);
    return;
  }
  filled = [first, last];
  const there = new Map();
  for (const row of body.rows) if (row.dataset.at) there.set(Number(row.dataset.at), row);
  const made = [];
  if (first) made.push(spacer(first));
  for (let index = first; index < last; index++) {
    const row = there.get(index);
    if (row) mark(row);
    made.push(row ?? rowOf(entries[index]));
  }
  if (last < entries.length && !all) made.push(spacer(entries.length - last));
  body.replaceChildren(...made);
}

/** Mark the row of the chosen entry, and scroll the table to it. */
function markRow() {
  if (chosen.entry) {
    const top = chosen.entry.at * ROW;
    if (top < rows.scrollTop || top > rows.scrollTop + rows.clientHeight - 3 * ROW) {
      rows.scrollTop = Math.max(0, top - rows.clientHeight / 2);
    }
  }
  fillRows();
  count();
}

function listenToRows() {
  list.setAttribute("aria-rowcount", String(entries.length + 1));
  const messages = entries.filter((entry) => !entry.span).length;
  const word = (amount, noun) => `${number(amount)} ${noun}${amount === 1 ? "" : "s"}`;
  const steps = entries.length - messages;
  byId("messages-about").textContent = `${word(messages, "message")} and ${word(steps, "step")}, in the order of time. `
    + "A ? means not known. Total: until the other client has the message, or until the answer.";
  let waiting = false;
  rows.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      fillRows();
    });
  }, { passive: true });
  list.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-at]");
    if (row && !String(getSelection())) choose(entries[Number(row.dataset.at)]);
  });
}
