// What is chosen and what is under the pointer, and their numbers in words.

const tooltip = byId("tooltip");
const announcer = byId("announcer");
const chosen = { entry: null, hovered: null, pinned: false };

/** Return what is at a pixel: an entry, or a stretch of a client's time. */
function at(x, pixel) {
  const { lanes } = view;
  for (const role of clients.keys()) {
    const lane = lanes[role];
    if (x >= lane.strip && x <= lane.strip + lanes.strip) {
      const time = timeAt(pixel);
      const [stretch] = stretchesIn(role, time, time);
      if (stretch) return { stretch };
    }
  }
  const [first, last] = entriesIn(timeAt(pixel - 8), timeAt(pixel + 8));
  let best = null;
  let nearest = 7;
  for (let index = first; index < last; index++) {
    const away = distance(entries[index], x, pixel);
    if (away < nearest || (away === nearest && best && entries[index].strong && !best.strong)) {
      nearest = away;
      best = entries[index];
    }
  }
  return best ? { entry: best } : null;
}

function distance(entry, x, pixel) {
  if (entry.span) {
    const [left, top, size, tall] = spanBox(entry);
    const beside = Math.max(left - x, x - left - size, 0);
    return Math.hypot(beside, Math.max(top - pixel, pixel - top - tall, 0)) + (beside ? 2 : 0);
  }
  let least = Infinity;
  for (const line of geometry(entry).lines) {
    const [x0, y0, x1, y1] = inPixels(line);
    const [dx, dy] = [x1 - x0, y1 - y0];
    const part = Math.min(1, Math.max(0, ((x - x0) * dx + (pixel - y0) * dy) / (dx * dx + dy * dy || 1)));
    least = Math.min(least, Math.hypot(x - x0 - part * dx, pixel - y0 - part * dy));
  }
  if (entry.bars.length) {
    const [left, size] = barPlace(entry.role);
    if (x >= left && x <= left + size) {
      for (const [, start, stop] of entry.bars) {
        least = Math.min(least, Math.max(y(start) - pixel, pixel - y(stop), 0));
      }
    }
  }
  return least;
}

function element(name, words = "", kind = "") {
  const node = document.createElement(name);
  if (words) node.textContent = words;
  if (kind) node.className = kind;
  return node;
}

/** Return a table of durations: names, words, and whether each is a sum. */
function figures(rows) {
  const table = element("table");
  for (const { name, words, sum } of rows) {
    const row = table.insertRow();
    if (sum) row.className = "sum";
    row.append(element("th", name), element("td", words, "number"));
  }
  return table;
}

function aboutEntry(entry) {
  const nodes = [element("b", entry.title)];
  const rows = parts(entry).map((row) => ({ name: row.name, words: written(row), sum: row.sum }));
  nodes.push(figures([{ name: "at", words: moment(entry.start), sum: false }, ...rows]));
  const say = (words) => nodes.push(element("p", words));
  if (entry.kind !== "step" && !aligned(entry.role)) say("This clock could not be compared with the server's.");
  if (entry.command && entry.command.answer_received_us === null) say("No answer to this command is known.");
  if (entry.span && entry.span.stop_us === null) say("A moment, or a step that did not end.");
  return nodes;
}

const swatchOf = (cause) => {
  const source = document.querySelector(`.swatch[data-cause="${cause}"]`);
  return source ? source.cloneNode(true) : element("span");
};

function aboutStretch(stretch) {
  const head = element("b");
  head.append(swatchOf(stretch.cause), `${stretch.role}: ${stretch.cause}`);
  const rows = [
    { name: "from", words: moment(stretch.start_us) }, { name: "to", words: moment(stretch.stop_us) },
    { name: "duration", words: duration(stretch.stop_us - stretch.start_us), sum: true },
  ];
  const nodes = [head, figures(rows)];
  const other = meanwhile(stretch);
  if (other.length) {
    nodes.push(element("p", `Meanwhile the ${opposite[stretch.role]}:`));
    nodes.push(figures(other.map(([name, us]) => ({ name, words: duration(us) }))));
  }
  return nodes;
}

/** Show the tooltip near a pixel of the diagram. */
function showTooltip(found, x, pixel, pinned) {
  tooltip.replaceChildren(...(found.entry ? aboutEntry(found.entry) : aboutStretch(found.stretch)));
  tooltip.classList.toggle("pinned", pinned);
  tooltip.hidden = false;
  const frame = plot.getBoundingClientRect();
  const size = tooltip.getBoundingClientRect();
  const [left, top] = [frame.left + x, frame.top + pixel];
  const beside = left + 18 + size.width < window.innerWidth - 8 ? left + 18 : Math.max(8, left - 18 - size.width);
  const below = top + 18 + size.height < window.innerHeight - 8 ? top + 18 : Math.max(8, top - 18 - size.height);
  tooltip.style.transform = `translate(${Math.round(beside)}px,${Math.round(below)}px)`;
  chosen.pinned = pinned;
}

function hideTooltip() {
  tooltip.hidden = true;
  chosen.pinned = false;
  if (chosen.hovered) {
    chosen.hovered = null;
    drawMarks();
  }
}

/** Choose an entry: draw it, show its numbers, say them, and mark its row. */
function choose(entry, { near = false, place = null, say = true } = {}) {
  chosen.entry = entry;
  chosen.hovered = null;
  if (!entry) {
    hideTooltip();
    announcer.textContent = "";
    redraw();
    markRow();
    return;
  }
  if (!place || near) reveal(entry, near);
  else redraw();
  if (say) announcer.textContent = spoken(entry);
  const x = place ? place[0] : anchor(entry);
  showTooltip({ entry }, x, place ? place[1] : Math.min(Math.max(y(entry.start), 0), view.height), true);
  markRow();
}

/** Return where the tooltip of an entry stands that was not chosen with a pointer. */
function anchor(entry) {
  const { lanes } = view;
  if (entry.span) return entry.role === "sender" ? lanes.sender.edge : lanes.receiver.from;
  return entry.role === "sender" ? lanes.server.to : lanes.server.from - 20;
}
