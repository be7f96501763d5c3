// Where things are on the screen: the lanes across, the time down; and the colours.

const byId = (id) => document.getElementById(id);
const plot = byId("plot");
const EDGE = 14; // pixels above the first moment and below the last

const view = {
  width: 0, height: 0, ratio: 1,
  folds: [], // waits that are shortened
  top: 0, // the time at the upper edge, in microseconds less what is shortened above it
  scale: 1, // pixels per microsecond
  least: 1, // the scale that shows everything
  lanes: null,
};
const MAX_SCALE = 40;

const y = (us) => ((view.folds.length ? shown(us) : us) - view.top) * view.scale;
const timeAt = (pixel) => unfolded(view.top + pixel / view.scale);

/** Return the lanes for a width. `edge` is where a lane's messages begin and end. */
function lanesFor(width) {
  const small = width < 600;
  const axis = small ? 42 : 62;
  const right = width - 18;
  const strip = small ? 15 : 24;
  const column = small ? 7 : 10;
  const columns = small ? 2 : 3;
  const words = small ? 0 : Math.min(150, Math.max(0, (width - 370) * 0.34));
  const client = strip + column * columns + 3 + words;
  const server = small ? 54 : Math.min(130, 28 + width * 0.08);
  const both = clients.has("sender") && clients.has("receiver");
  const lanes = { axis, strip, column, columns, words, small };
  const make = (role, from, to, edge, inward) => {
    lanes[role] = {
      role, from, to, edge, inward,
      strip: inward > 0 ? edge - strip : edge, // left side of the strip of causes
      spans: (at) => (inward > 0 ? edge - strip - 3 - (at + 1) * column : edge + strip + 3 + at * column),
      words: inward > 0 ? from : to - words,
    };
  };
  if (clients.has("sender")) make("sender", axis, axis + client, axis + client, 1);
  if (clients.has("receiver")) make("receiver", right - client, right, right - client, -1);
  const [start, stop] = [axis + (lanes.sender ? client : 0), right - (lanes.receiver ? client : 0)];
  const middle = both ? (start + stop) / 2 : lanes.sender ? stop - server / 2 : start + server / 2;
  lanes.server = { from: middle - server / 2, to: middle + server / 2, middle };
  lanes.serverEdge = { sender: lanes.server.from, receiver: lanes.server.to };
  return lanes;
}

/** Adapt to the size of the window. Keeps the time that is shown. */
function resize() {
  const { clientWidth: width, clientHeight: height } = plot;
  if (!width || !height) return false;
  const everything = view.scale <= view.least * 1.0001;
  Object.assign(view, { width, height, ratio: Math.min(3, window.devicePixelRatio || 1), lanes: lanesFor(width) });
  view.least = (height - 2 * EDGE) / (shown(extent.last) - shown(extent.first));
  for (const canvas of [base, marks]) {
    canvas.width = Math.round(width * view.ratio);
    canvas.height = Math.round(height * view.ratio);
  }
  if (everything || view.scale < view.least) view.scale = view.least;
  clamp();
  return true;
}

/** Keep the view within what there is. */
function clamp() {
  view.scale = Math.min(Math.max(view.scale, view.least), Math.max(MAX_SCALE, view.least));
  const highest = shown(extent.first) - EDGE / view.scale;
  const lowest = shown(extent.last) + EDGE / view.scale - view.height / view.scale;
  view.top = Math.max(highest, Math.min(view.top, lowest));
  if (view.scale <= view.least * 1.0001) view.top = highest;
}

/** Move by pixels. Returns the pixels that are left over at the end. */
function pan(pixels) {
  const before = view.top;
  view.top += pixels / view.scale;
  clamp();
  redraw();
  const rest = pixels - (view.top - before) * view.scale;
  return Math.abs(rest) < 0.5 ? 0 : rest;
}

/** Zoom by a factor; what is at a pixel stays there. */
function zoom(factor, pixel = view.height / 2) {
  const place = view.top + pixel / view.scale;
  view.scale *= factor;
  clamp();
  view.top = place - pixel / view.scale;
  clamp();
  redraw();
}

function showEverything() {
  view.scale = view.least;
  clamp();
  redraw();
}

/** Show an entry: in the middle if it is out of view; with `near`, its round trip fills a third of the height. */
function reveal(entry, near = false) {
  const size = Math.max((entry.command?.answer_received_us ?? entry.end) - entry.start, 1);
  if (near) view.scale = Math.max(view.least, view.height / 3 / size);
  clamp();
  const [from, to] = [y(entry.start), y(entry.end)];
  if (near || from < 24 || Math.min(to, from + view.height / 2) > view.height - 24) {
    view.top = shown(entry.start) + Math.min(size / 2, view.height / 3 / view.scale) - view.height / 2 / view.scale;
  }
  clamp();
  redraw();
}

// Colours are those of the style sheet, patterns those of the page's SVG: the tables and the canvas look alike.

let palette = {};
let fills = new Map();

function readColours() {
  const style = getComputedStyle(document.documentElement);
  palette = Object.fromEntries(["paper", "lane", "ink", "soft", "rule", "line", "accent", "mark", "network", "program"]
    .map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  fills = new Map();
}

/** Return the colour and the pattern of a cause. */
function fillOf(cause) {
  let fill = fills.get(cause);
  if (!fill) {
    const source = byId(`fill-${cause.replaceAll(" ", "-")}`);
    const colour = source ? getComputedStyle(source).color : palette.program;
    fill = { colour, pattern: colour, wash: colour };
    if (source) fill.pattern = tile(source, colour);
    fills.set(cause, fill);
  }
  return fill;
}

function tile(source, colour) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = Math.round(8 * view.ratio);
  const pen = canvas.getContext("2d");
  pen.scale(canvas.width / 8, canvas.height / 8);
  pen.fillStyle = palette.paper;
  pen.fillRect(0, 0, 8, 8);
  pen.globalAlpha = 0.22;
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 8, 8);
  pen.globalAlpha = 1;
  pen.strokeStyle = colour;
  for (const path of source.querySelectorAll("path")) {
    pen.lineWidth = Number(path.getAttribute("stroke-width"));
    pen.stroke(new Path2D(path.getAttribute("d")));
  }
  const pattern = base.getContext("2d").createPattern(canvas, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / view.ratio));
  return pattern;
}

// The lines of an entry, in times: [x, time, x, time], and how each is drawn. They do not depend on the view's time.

const STRONG = 0; // a message from client to client
const THIN = 1; // a command, an answer, a response of the server
const CROSSING = 2; // a message inside the server
const BROKEN = 3; // the times between are not known

const slots = new Map();

/** Number the places across that lines have, in each style. */
function slotOf(x0, x1, style) {
  const key = `${x0} ${x1} ${style}`;
  if (!slots.has(key)) slots.set(key, slots.size);
  return slots.get(key);
}

/** Return the lines of an entry, for the lanes as they are. */
function linesOf(entry) {
  const { lanes } = view;
  const found = [];
  const line = (x0, t0, x1, t1, style, arrow = true) => {
    found.push({ x0, t0, x1, t1, style, arrow, slot: slotOf(x0, x1, style) });
  };
  const { command, role } = entry;
  const own = lanes[role];
  const rim = lanes.serverEdge[role];
  const comparable = aligned(role);
  if (command) {
    const style = entry.strong ? STRONG : THIN;
    const rx = comparable ? command.received_us : null;
    const tx = comparable ? command.answered_us : null;
    const t3 = command.answer_received_us;
    const half = (own.edge + rim) / 2;
    if (rx !== null) line(own.edge, command.sent_us, rim, rx, style);
    else if (tx !== null) line(own.edge, command.sent_us, rim, tx, BROKEN);
    else if (t3 !== null) {
      line(own.edge, command.sent_us, half, (command.sent_us + t3) / 2, BROKEN, false);
      line(half, (command.sent_us + t3) / 2, own.edge, t3, BROKEN);
    } else line(own.edge, command.sent_us, half, command.sent_us, BROKEN);
    if (tx !== null && t3 !== null) line(rim, tx, own.edge, t3, rx === null ? BROKEN : THIN);
  }
  for (const frame of entry.frames) {
    const target = lanes[frame.role];
    const leaves = lanes.serverEdge[frame.role];
    const sent = aligned(frame.role) ? frame.sent_us : null;
    if (sent === null) {
      line((target.edge + leaves) / 2, frame.received_us, target.edge, frame.received_us, BROKEN);
      continue;
    }
    const stored = command && comparable ? command.commit_us ?? command.received_us : null;
    if (command && frame.role !== role && stored !== null) line(rim, stored, leaves, sent, CROSSING, false);
    const echo = command && frame.role === role;
    const style = entry.strong && !echo ? STRONG : THIN;
    if (frame.author === "peer" && !command) line(lanes.server.middle, sent, leaves, sent, CROSSING, false);
    line(leaves, sent, target.edge, frame.received_us, style);
  }
  return found;
}

/** Return the bars of a command inside the server: cause, start, stop. */
function barsOf(entry) {
  const { command } = entry;
  if (!command || command.received_us === null || !aligned(entry.role)) return [];
  const { received_us: rx, commit_began_us: began, commit_us: commit, answered_us: tx } = command;
  const bars = [];
  if (commit === null) {
    if (tx !== null) bars.push(["server", rx, tx]);
    return bars;
  }
  if (began === null) bars.push(["queue and commit", rx, commit]);
  else bars.push(["queue", rx, began], ["commit", began, commit]);
  if (tx !== null) bars.push(["answer", commit, tx]);
  return bars;
}

/** Put spans side by side: the column of each. */
const spanColumn = (() => {
  const columns = new Map();
  for (const role of clients.keys()) {
    const free = [];
    for (const entry of entries) {
      if (!entry.span || entry.role !== role) continue;
      let column = free.findIndex((end) => end <= entry.start);
      if (column < 0) column = free.length;
      free[column] = entry.end;
      columns.set(entry, column);
    }
  }
  return columns;
})();
