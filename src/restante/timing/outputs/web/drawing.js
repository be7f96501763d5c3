// Draws what is visible on the canvas, and its labels. A frame costs as much as what differs on the screen.

const base = byId("base");
const marks = byId("marks");

let pending = false;
let frames = 0;

/** Draw in the next frame. */
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    if (view.lanes) draw();
  });
}

let geometryFor = null;

/** Return the lines of an entry; they are made once for each width. */
function geometry(entry) {
  if (geometryFor !== view.lanes) {
    geometryFor = view.lanes;
    for (const each of entries) each.lines = each.bars = null;
    slots.clear();
  }
  if (!entry.lines) {
    entry.lines = linesOf(entry);
    entry.bars = barsOf(entry);
  }
  return entry;
}

function draw() {
  const pen = base.getContext("2d");
  const { width, height, ratio } = view;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = palette.paper;
  pen.fillRect(0, 0, width, height);
  drawLanes(pen);
  for (const role of clients.keys()) drawElapsed(pen, role);
  drawFolds(pen);
  const [first, last] = entriesIn(timeAt(0), timeAt(height));
  drawWedges(pen, first, last);
  drawMessages(pen, first, last);
  drawBars(pen, first, last);
  drawSpans(pen, first, last);
  drawLabels(first, last);
  drawMarks();
  const zoomed = view.scale > view.least * 1.001;
  plot.classList.toggle("zoomed", zoomed);
  byId("zoom-out").disabled = byId("reset").disabled = !zoomed;
  placeThumb();
  plot.dataset.frames = String(++frames);
}

/** Fill a column with bars, [cause, top, bottom]. Of those that share a row of pixels, the longest is drawn. */
function drawColumn(pen, left, width, bars) {
  const rows = Math.ceil(view.height);
  const longest = new Float32Array(rows);
  const causes = new Array(rows).fill(null);
  const large = [];
  for (const bar of bars) {
    const tall = bar[2] - bar[1];
    if (tall >= 1.5) {
      large.push(bar);
      continue;
    }
    const row = Math.floor((bar[1] + bar[2]) / 2);
    if (row >= 0 && row < rows && (causes[row] === null || tall > longest[row])) {
      longest[row] = tall;
      causes[row] = bar[0];
    }
  }
  pen.lineWidth = 1;
  for (let row = 0; row < rows; row++) {
    if (causes[row] === null) continue;
    let next = row + 1;
    while (next < rows && causes[next] === causes[row]) next++;
    drawBar(pen, left, width, causes[row], row, next);
    row = next - 1;
  }
  for (const [cause, top, bottom] of large) drawBar(pen, left, width, cause, top, bottom);
}

function drawBar(pen, left, width, cause, from, to) {
  const top = Math.max(from, -10);
  const height = Math.min(to, view.height + 10) - top;
  const { colour, pattern } = fillOf(cause);
  pen.fillStyle = height < 3 ? colour : pattern;
  pen.fillRect(left, top, width, height);
  if (height >= 5) {
    pen.strokeStyle = colour;
    pen.strokeRect(left + 0.5, top + 0.5, width - 1, height - 1);
  }
}

function drawLanes(pen) {
  const { lanes, height } = view;
  pen.fillStyle = palette.lane;
  for (const role of clients.keys()) pen.fillRect(lanes[role].from, 0, lanes[role].to - lanes[role].from, height);
  pen.fillRect(lanes.server.from, 0, lanes.server.to - lanes.server.from, height);
  pen.strokeStyle = palette.rule;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const { at } of ticks()) {
    pen.moveTo(lanes.axis - 5, Math.round(at) + 0.5);
    pen.lineTo(view.width - 18, Math.round(at) + 0.5);
  }
  pen.stroke();
  pen.strokeStyle = palette.line;
  pen.beginPath();
  for (const x of [lanes.server.from, lanes.server.to]) {
    pen.moveTo(x, 0);
    pen.lineTo(x, height);
  }
  for (const role of clients.keys()) {
    pen.moveTo(lanes[role].edge, 0);
    pen.lineTo(lanes[role].edge, height);
  }
  pen.stroke();
}

/** Return the marks of the time axis: pixel, time and step. */
function ticks() {
  const least = 46 / view.scale;
  let step = 1;
  for (const factor of [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6,
    1e7, 1.5e7, 3e7, 6e7, 1.2e8, 3e8, 6e8, 9e8, 1.8e9, 3.6e9, 7.2e9, 2.16e10, 4.32e10, 8.64e10]) {
    step = factor;
    if (factor >= least) break;
  }
  while (step < least) step *= 2;
  const found = [];
  let time = Math.ceil(timeAt(0) / step) * step;
  while (y(time) <= view.height) {
    const fold = view.folds.find((each) => time > each.start && time < each.stop);
    if (fold) time = Math.ceil(fold.stop / step) * step;
    else {
      found.push({ at: y(time), time, step });
      time += step;
    }
  }
  return found;
}

/** Draw where waits are shortened: a torn band over all lanes. */
function drawFolds(pen) {
  const { axis } = view.lanes;
  for (const { start, stop } of view.folds) {
    const [top, bottom] = [y(start), y(stop)];
    if (bottom < 0 || top > view.height) continue;
    pen.fillStyle = palette.paper;
    pen.strokeStyle = palette.line;
    pen.lineWidth = 1;
    pen.beginPath();
    for (const edge of [top, bottom - 4]) {
      for (let x = axis, up = true; x <= view.width - 18; x += 6, up = !up) {
        if (x === axis) pen.moveTo(x, edge);
        else pen.lineTo(x, edge + (up ? 0 : 4));
      }
      pen.stroke();
    }
  }
}

/** Draw the causes of a client's time. */
function drawElapsed(pen, role) {
  const bars = stretchesIn(role, timeAt(0), timeAt(view.height))
    .map(({ cause, start_us: start, stop_us: stop }) => [cause, y(start), y(stop)]);
  drawColumn(pen, view.lanes[role].strip, view.lanes.strip, bars);
}

/** Return the left side and the width of a command's bars in the server's lane. */
function barPlace(role) {
  const { serverEdge, small } = view.lanes;
  const size = small ? 10 : 18;
  return [role === "sender" ? serverEdge.sender + 1 : serverEdge.receiver - 1 - size, size];
}

function drawBars(pen, first, last) {
  const bars = { sender: [], receiver: [] };
  for (let at = first; at < last; at++) {
    const entry = geometry(entries[at]);
    for (const [cause, start, stop] of entry.bars) {
      const top = y(start);
      const bottom = y(stop);
      if (bottom > -2 && top < view.height + 2) bars[entry.role].push([cause, top, Math.max(bottom, top + 1)]);
    }
  }
  for (const role of clients.keys()) drawColumn(pen, ...barPlace(role), bars[role]);
}

/** Return the rectangle of a step. */
function spanBox(entry) {
  const lane = view.lanes[entry.role];
  const column = Math.min(spanColumn.get(entry), view.lanes.columns - 1);
  const top = y(entry.start);
  return [lane.spans(column), top, view.lanes.column - 2, Math.max(y(entry.end) - top, 3)];
}

function drawSpans(pen, first, last) {
  const drawn = new Set();
  pen.lineWidth = 1;
  for (let at = first; at < last; at++) {
    const entry = entries[at];
    if (!entry.span) continue;
    const [left, top, size, tall] = spanBox(entry);
    if (top > view.height + 2 || top + tall < -2) continue;
    if (tall <= 3) {
      const key = `${left} ${Math.round(top)}`;
      if (drawn.has(key)) continue;
      drawn.add(key);
    }
    const [from, to] = [Math.max(top, -10), Math.min(top + tall, view.height + 10)];
    if (entry.phase === null) {
      pen.strokeStyle = palette.line;
      pen.fillStyle = palette.paper;
      pen.fillRect(left + 0.5, from + 0.5, size - 1, to - from - 1);
      pen.strokeRect(left + 0.5, from + 0.5, size - 1, to - from - 1);
    } else {
      const { colour, pattern } = fillOf(entry.phase);
      pen.fillStyle = tall < 4 ? colour : pattern;
      pen.fillRect(left, from, size, to - from);
      pen.strokeStyle = colour;
      pen.strokeRect(left + 0.5, from + 0.5, size - 1, to - from - 1);
    }
  }
}
