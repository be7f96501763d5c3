// The words on the diagram: elements that are used again for each frame.

const labels = byId("labels");
const spares = []; // nodes without words
let pool = new Map(); // nodes by what they name, so that a scrolled label only moves
let before = pool;

/** Put words at a place, left of it if the kind says so. `width` is what there is room for. */
function label(key, kind, words, x, top, width = 0) {
  let node = before.get(key);
  if (node) before.delete(key);
  else node = spares.pop();
  if (!node) {
    node = { element: document.createElement("span"), kind: "", words: "", width: 0, place: "" };
    labels.append(node.element);
  }
  pool.set(key, node);
  if (node.kind !== kind) node.element.className = node.kind = kind;
  if (node.words !== words) node.element.textContent = node.words = words;
  if (node.width !== width) {
    node.width = width;
    node.element.style.maxWidth = width ? `${width}px` : "";
  }
  const shift = kind.endsWith("right") ? " translateX(-100%)" : "";
  const place = `translate(${Math.round(x)}px,${Math.round(top)}px)${shift}`;
  if (node.place !== place) node.element.style.transform = node.place = place;
  if (node.element.hidden) node.element.hidden = false;
}

function drawLabels(first, last) {
  [before, pool] = [pool, new Map()];
  const { lanes } = view;
  for (const { at, time, step } of ticks()) {
    if (at > 8 && at < view.height - 8) label(`at ${time}`, "tick right", moment(time, step), lanes.axis - 7, at - 7);
  }
  for (const { start, stop } of view.folds) {
    const [top, bottom] = [y(start), y(stop)];
    if (bottom < 0 || top > view.height) continue;
    label(`fold ${start}`, "fold right", duration(Math.round(stop - start)), lanes.axis - 7, (top + bottom) / 2 - 7);
  }
  drawMessageLabels(first, last);
  if (lanes.words >= 60) {
    for (const role of clients.keys()) drawLaneLabels(role, first, last);
  }
  for (const node of before.values()) {
    node.element.hidden = true;
    spares.push(node);
  }
}

/** Name messages where they leave or reach a client. Of those that share a line of text, one is named. */
function drawMessageLabels(first, last) {
  const { lanes } = view;
  const line = lanes.small ? 13 : 15;
  const scrolled = Math.round(view.top * view.scale) % line; // rows of text move with the lines
  const rows = { sender: [], receiver: [] };
  const take = (role, time, entry, above) => {
    const at = y(time);
    if (at < 2 || at > view.height - 2) return;
    const top = above ? at - line + 1 : at; // beside the line, which comes from above or goes down
    const row = Math.round((top + scrolled) / line) + 2;
    const there = rows[role][row];
    if (!there) rows[role][row] = { top, entry, more: 0 };
    else {
      there.more++;
      if (entry.strong && !there.entry.strong) Object.assign(there, { entry, top });
    }
  };
  for (let at = first; at < last; at++) {
    const entry = entries[at];
    if (entry.command) take(entry.role, entry.start, entry, true);
    for (const frame of entry.frames) {
      if (!entry.command || frame.role !== entry.role) take(frame.role, frame.received_us, entry, false);
    }
  }
  for (const role of clients.keys()) {
    let bottom = -Infinity;
    const lane = lanes[role];
    const room = Math.floor(Math.abs(lanes.serverEdge[role] - lane.edge)) - 14;
    for (const each of rows[role]) {
      if (!each || each.top < bottom - 1) continue;
      bottom = each.top + line;
      const { entry, more } = each;
      const words = more && !(lanes.small && entry.label.length > 5) ? `${entry.label} +${more}` : entry.label;
      const kind = entry.strong ? "message" : "command";
      if (lane.inward > 0) label(`${role} ${entry.at}`, kind, words, lane.edge + 7, each.top, room);
      else label(`${role} ${entry.at}`, `${kind} right`, words, lane.edge - 7, each.top, room);
    }
  }
}

/** Name the causes and steps of a client beside its bars. */
function drawLaneLabels(role, first, last) {
  const { lanes } = view;
  const lane = lanes[role];
  const width = Math.floor(lanes.words) - 8;
  const x = lane.inward > 0 ? lane.words + lanes.words - 6 : lane.words + 6;
  const kind = lane.inward > 0 ? " right" : "";
  const taken = [];
  const free = (top, tall) => taken.every(([from, to]) => top + tall <= from || top >= to);
  for (const each of stretchesIn(role, timeAt(0), timeAt(view.height))) {
    const from = Math.max(y(each.start_us), 0);
    const to = Math.min(y(each.stop_us), view.height);
    const long = duration(each.stop_us - each.start_us).replaceAll(" ", "\u00a0");
    const lines = 1 + Math.ceil((each.cause.length * 7) / width); // the longest that this can become
    const tall = 14 * lines;
    if (to - from < tall) continue;
    const top = (from + to - tall) / 2;
    taken.push([top, top + tall]);
    label(`${role} from ${each.start_us}`, `stretch${kind}`, `${each.cause} ${long}`, x, top, width);
  }
  for (let at = first; at < last; at++) {
    const entry = entries[at];
    if (!entry.span || entry.role !== role) continue;
    const top = Math.min(Math.max(y(entry.start) - 3, 2), Math.max(y(entry.end) - 12, y(entry.start) - 3));
    if (top < -14 || top > view.height || !free(top, 14)) continue;
    taken.push([top, top + 14]);
    label(`${role} step ${entry.at}`, `step${kind}`, entry.label, x, top, width);
  }
}

/** Write the names of the lanes above the diagram. */
function nameLanes() {
  const { lanes } = view;
  const place = (name, about, from, to) => {
    const node = document.createElement("div");
    node.append(Object.assign(document.createElement("b"), { textContent: name }));
    if (about) node.append(Object.assign(document.createElement("small"), { textContent: about }));
    node.style.left = `${(from + to) / 2}px`;
    node.style.transform = "translateX(-50%)";
    byId("lanes").append(node);
  };
  byId("lanes").replaceChildren();
  for (const [role, client] of clients) {
    const about = client.offset_us === null ? "clock not compared" : `clock ± ${duration(client.error_us)}`;
    const lane = lanes[role];
    const half = lanes.small ? 44 : 0; // the words stay within the page
    place(role === "sender" ? "Sender" : "Receiver", about,
      Math.max(lane.from, half * 2 - lane.to), Math.min(lane.to, 2 * (view.width - half) - lane.from));
  }
  place("Server", data.traced ? "" : "no trace", lanes.server.from, lanes.server.to);
}
