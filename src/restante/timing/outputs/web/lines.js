// The lines of messages: with the error of the clocks, and over them what is chosen or found.

const MAX_WEDGES = 300; // visible entries up to which each has its error drawn
const MAX_ARROWS = 300; // and its arrowheads and dashes

let marked = false; // whether anything is drawn over the rest

/** Return a line in pixels, without what is far out of view: a canvas has coordinates of 32 bits. */
function inPixels(line) {
  let [x0, y0, x1, y1] = [line.x0, y(line.t0), line.x1, y(line.t1)];
  const [from, to] = [-200, view.height + 200];
  const at = (limit) => x0 + ((x1 - x0) * (limit - y0)) / (y1 - y0);
  if (y0 < from && y1 > from) [x0, y0] = [at(from), from];
  else if (y0 > to && y1 < to) [x0, y0] = [at(to), to];
  if (y1 > to && y0 < to) [x1, y1] = [at(to), to];
  else if (y1 < from && y0 > from) [x1, y1] = [at(from), from];
  return [x0, y0, x1, y1];
}

/** Remember which rows of pixels have a line of a kind. `seen(…)` is whether one like this was there. */
function rowsSeen() {
  const drawn = new Set();
  return (slot, y0, y1) => {
    const key = ((y0 & 8191) * 8192 + (y1 & 8191)) * 64 + slot;
    if (drawn.has(key)) return true;
    drawn.add(key);
    return false;
  };
}

/** Draw how far the clocks may be wrong: a client's end of a line may be anywhere in its wedge. */
function drawWedges(pen, first, last) {
  if (last - first > MAX_WEDGES) return;
  pen.fillStyle = palette.network;
  pen.strokeStyle = palette.network;
  pen.lineWidth = 1;
  const { sender, receiver, serverEdge } = view.lanes;
  for (let at = first; at < last; at++) {
    for (const line of geometry(entries[at]).lines) {
      if (line.style > THIN) continue;
      for (const [lane, rim] of [[sender, serverEdge.sender], [receiver, serverEdge.receiver]]) {
        if (!lane || !(line.x0 === lane.edge || line.x1 === lane.edge)) continue;
        const size = (errorOf(lane.role) ?? 0) * view.scale;
        if (size < 1.2) continue;
        const [client, server] = line.x0 === lane.edge ? [y(line.t0), y(line.t1)] : [y(line.t1), y(line.t0)];
        pen.globalAlpha = 0.14;
        pen.beginPath();
        pen.moveTo(lane.edge, client - size);
        pen.lineTo(lane.edge, client + size);
        pen.lineTo(rim, server);
        pen.fill();
        pen.globalAlpha = 0.8;
        pen.beginPath();
        pen.moveTo(lane.edge, client - size);
        pen.lineTo(lane.edge, client + size);
        for (const end of [client - size, client + size]) {
          pen.moveTo(lane.edge - 4, end);
          pen.lineTo(lane.edge + 4, end);
        }
        pen.stroke();
      }
    }
  }
  pen.globalAlpha = 1;
}

const STYLES = [STRONG, THIN, CROSSING, BROKEN];
const DRAWN_IN_ORDER = [BROKEN, THIN, CROSSING, STRONG];

/** Draw the lines of messages. Lines that would cover the same rows of pixels are drawn once. */
function drawMessages(pen, first, last) {
  const dense = last - first > MAX_ARROWS;
  const paths = STYLES.map(() => new Path2D());
  const flat = new Map(); // lines within a row of pixels: how many each row has, by where they are
  const seen = rowsSeen();
  const heads = new Path2D();
  const { height } = view;
  for (let at = first; at < last; at++) {
    for (const line of geometry(entries[at]).lines) {
      const [y0, y1] = [y(line.t0), y(line.t1)];
      if ((y0 < -2 && y1 < -2) || (y0 > height + 2 && y1 > height + 2)) continue;
      if (dense && Math.abs(y1 - y0) < 2) {
        let rows = flat.get(line.slot);
        if (!rows) flat.set(line.slot, rows = { line, counts: new Uint16Array(Math.ceil(height) + 1) });
        rows.counts[Math.max(0, Math.min(Math.round((y0 + y1) / 2), Math.ceil(height)))]++;
        continue;
      }
      if (dense && seen(line.slot, Math.round(y0), Math.round(y1))) continue;
      const [x0, from, x1, to] = inPixels(line);
      paths[line.style].moveTo(x0, from);
      paths[line.style].lineTo(x1, to);
      if (!dense && line.arrow && x1 === line.x1) {
        arrowhead(heads, x0, from, x1, to, line.style === STRONG ? 6.5 : 5);
      }
    }
  }
  const looks = {
    [BROKEN]: [palette.line, 1.1, [4, 4]], [THIN]: [palette.line, 1, []],
    [CROSSING]: [palette.ink, 1.5, [2, 3]], [STRONG]: [palette.ink, dense ? 1 : 1.8, []],
  };
  for (const style of DRAWN_IN_ORDER) {
    const [colour, thickness, dash] = looks[style];
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = thickness;
    if (dense) pen.globalAlpha = style === STRONG ? 0.5 : 0.35;
    else pen.setLineDash(dash);
    pen.stroke(paths[style]);
    for (const { line, counts } of flat.values()) if (line.style === style) drawDensity(pen, line, counts);
    pen.globalAlpha = 1;
  }
  pen.setLineDash([]);
  pen.fillStyle = palette.ink;
  pen.fill(heads);
}

/** Draw lines that are flat as rows: the more there are, the darker. Rows that are as dark are one rectangle. */
function drawDensity(pen, line, counts) {
  const left = Math.min(line.x0, line.x1);
  const width = Math.abs(line.x1 - line.x0);
  const most = counts.reduce((one, other) => Math.max(one, other));
  const level = (row) => Math.ceil((6 * counts[row]) / most);
  for (let row = 0; row < counts.length;) {
    let next = row + 1;
    while (next < counts.length && level(next) === level(row)) next++;
    if (counts[row]) {
      pen.globalAlpha = (line.style === STRONG ? 0.1 : 0.06) * level(row);
      pen.fillRect(left, row, width, next - row);
    }
    row = next;
  }
}

function arrowhead(path, x0, y0, x1, y1, size) {
  const angle = Math.atan2(y1 - y0, x1 - x0);
  for (const [turn, move] of [[0, "moveTo"], [2.7, "lineTo"], [-2.7, "lineTo"]]) {
    const reach = turn ? size : 0;
    path[move](x1 + reach * Math.cos(angle + turn), y1 + reach * Math.sin(angle + turn));
  }
  path.closePath();
}

/** Draw what is chosen, under the pointer or found, over the rest. */
function drawMarks() {
  const wanted = search.words.length > 0 || chosen.entry !== null || chosen.hovered !== null;
  if (!wanted && !marked) return;
  marked = wanted;
  const pen = marks.getContext("2d");
  pen.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
  pen.clearRect(0, 0, view.width, view.height);
  const [first, last] = entriesIn(timeAt(0), timeAt(view.height));
  if (search.words.length) {
    const seen = rowsSeen();
    pen.beginPath();
    for (let at = first; at < last; at++) if (search.found[at]) trace(pen, entries[at], seen);
    pen.strokeStyle = palette.mark;
    pen.lineWidth = 2.2;
    pen.stroke();
  }
  for (const entry of new Set([chosen.entry, chosen.hovered])) {
    if (!entry) continue;
    pen.beginPath();
    trace(pen, entry);
    pen.lineJoin = "round";
    pen.strokeStyle = palette.paper;
    pen.lineWidth = 7;
    pen.stroke();
    pen.strokeStyle = palette.accent;
    pen.lineWidth = 3.2;
    pen.stroke();
    const heads = new Path2D();
    for (const line of geometry(entry).lines) {
      const [x0, from, x1, to] = inPixels(line);
      if (line.arrow && x1 === line.x1) arrowhead(heads, x0, from, x1, to, 9);
    }
    pen.fillStyle = palette.accent;
    pen.fill(heads);
  }
}

/** Add an entry to the current path. */
function trace(pen, entry, seen = null) {
  const visible = (top, tall) => [Math.max(top, -20), Math.min(top + tall, view.height + 20) - Math.max(top, -20)];
  if (entry.span) {
    const [left, top, size, tall] = spanBox(entry);
    const [from, height] = visible(top, tall);
    pen.rect(left - 1, from - 1, size + 2, height + 2);
    return;
  }
  for (const line of geometry(entry).lines) {
    const [x0, from, x1, to] = inPixels(line);
    if (seen && seen(line.slot, Math.round(from), Math.round(to))) continue;
    pen.moveTo(x0, from);
    pen.lineTo(x1, to);
  }
  if (seen) return;
  const [left, size] = barPlace(entry.role);
  for (const [, start, stop] of entry.bars) {
    const [from, height] = visible(y(start), Math.max(y(stop) - y(start), 1));
    pen.rect(left, from, size, height);
  }
}
