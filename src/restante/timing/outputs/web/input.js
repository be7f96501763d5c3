// Keys, wheel, pointer and fingers; then everything starts.

function move(direction) {
  const from = chosen.entry ? chosen.entry.at : direction > 0 ? firstVisible() - 1 : entries.length;
  const at = Math.min(Math.max(from + direction, 0), entries.length - 1);
  if (entries[at]) choose(entries[at]);
}

/** Return the first entry that begins in view. */
function firstVisible() {
  const first = lowerBound(entries.length, (each) => entries[each].start, timeAt(0));
  return Math.min(first, Math.max(entries.length - 1, 0));
}

/** Choose the next entry of the other lane, or of a lane: left is the sender, right the receiver. */
function across(role) {
  const from = chosen.entry ? chosen.entry.at : -1;
  const next = entries.find((entry) => entry.at > from && entry.role === role);
  if (next) choose(next);
}

const KEYS = {
  ArrowDown: () => move(1),
  ArrowUp: () => move(-1),
  ArrowLeft: () => across("sender"),
  ArrowRight: () => across("receiver"),
  Home: () => entries.length && choose(entries[0]),
  End: () => entries.length && choose(entries.at(-1)),
  PageDown: () => pan(view.height * 0.8),
  PageUp: () => pan(-view.height * 0.8),
  Enter: () => chosen.entry && choose(chosen.entry, { near: true }),
};

const EVERYWHERE = {
  "+": () => zoom(1.5),
  "=": () => zoom(1.5),
  "-": () => zoom(1 / 1.5),
  0: showEverything,
  "/": () => query.focus(),
  w: () => byId("fold").hidden || toggleFolds(),
  n: () => step(1),
  N: () => step(-1),
  Escape: () => choose(null),
};

function toggleFolds() {
  const folded = byId("fold").getAttribute("aria-pressed") !== "true";
  byId("fold").setAttribute("aria-pressed", String(folded));
  choose(null);
  fold(folded);
}

function listenToKeys() {
  plot.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLInputElement) return;
    if (!Object.hasOwn(EVERYWHERE, event.key)) return;
    event.preventDefault();
    EVERYWHERE[event.key]();
  });
  byId("zoom-in").addEventListener("click", () => zoom(1.5));
  byId("zoom-out").addEventListener("click", () => zoom(1 / 1.5));
  byId("reset").addEventListener("click", showEverything);
  byId("fold").addEventListener("click", toggleFolds);
}

function listenToWheel() {
  plot.addEventListener("wheel", (event) => {
    const pixels = event.deltaY * (event.deltaMode === 1 ? 20 : event.deltaMode === 2 ? view.height : 1);
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      zoom(Math.exp(-Math.max(-120, Math.min(120, pixels)) * 0.006), event.clientY - plot.getBoundingClientRect().top);
    } else if (pan(pixels) !== pixels) {
      event.preventDefault(); // at the end the page scrolls
    }
    if (!chosen.entry) hideTooltip();
  }, { passive: false });
}

function listenToPointers() {
  const fingers = new Map();
  let moved = 0;
  let spread = 0;
  const place = (event) => {
    const frame = plot.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  plot.addEventListener("pointerdown", (event) => {
    if (event.target.closest(".scrollbar") || event.button > 0) return;
    fingers.set(event.pointerId, place(event));
    if (fingers.size === 1) moved = 0;
    spread = 0;
    if (event.pointerType === "mouse") plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    const [x, pixel] = place(event);
    const before = fingers.get(event.pointerId);
    if (!before) {
      if (event.pointerType !== "touch") hover(x, pixel);
      return;
    }
    fingers.set(event.pointerId, [x, pixel]);
    if (fingers.size === 2) {
      const [[, one], [, other]] = [...fingers.values()];
      const [[left], [right]] = [...fingers.values()];
      const now = Math.hypot(one - other, left - right);
      if (spread) zoom(now / spread, (one + other) / 2);
      spread = now;
      moved = Infinity;
      return;
    }
    moved += Math.abs(pixel - before[1]) + Math.abs(x - before[0]);
    if (moved > 4) {
      plot.classList.add("dragged");
      const rest = pan(before[1] - pixel);
      if (rest && event.pointerType === "touch") window.scrollBy(0, rest);
      if (!chosen.entry) hideTooltip();
    }
  });
  const leave = (event) => {
    const there = fingers.delete(event.pointerId);
    spread = 0;
    plot.classList.remove("dragged");
    if (!there || event.type === "pointercancel" || moved > 4 || fingers.size) return;
    const [x, pixel] = place(event);
    const found = at(x, pixel);
    if (found?.entry) {
      choose(found.entry, { place: [x, pixel] });
    } else {
      choose(null);
      if (found) showTooltip(found, x, pixel, true);
    }
  };
  plot.addEventListener("pointerup", leave);
  plot.addEventListener("pointercancel", leave);
  plot.addEventListener("pointerleave", () => {
    if (!chosen.pinned) hideTooltip();
  });
  // Two fingers on a diagram that shows everything: the browser must not zoom the page.
  plot.addEventListener("touchmove", (event) => {
    if (event.touches.length > 1) event.preventDefault();
  }, { passive: false });
}

let waitingHover = null;

/** Show what is under the pointer, in the next frame. */
function hover(x, pixel) {
  const scheduled = waitingHover !== null;
  waitingHover = [x, pixel];
  if (scheduled) return;
  requestAnimationFrame(() => {
    const [column, row] = waitingHover;
    waitingHover = null;
    const found = at(column, row);
    plot.classList.toggle("over", found !== null);
    if (chosen.hovered !== (found?.entry ?? null)) {
      chosen.hovered = found?.entry ?? null;
      drawMarks();
    }
    if (chosen.pinned) return;
    if (found) showTooltip(found, column, row, false);
    else hideTooltip();
  });
}

function placeThumb() {
  const first = shown(extent.first);
  const whole = shown(extent.last) - first + (2 * EDGE) / view.scale;
  const thumb = byId("thumb");
  const tall = Math.max(20, (view.height - 4) * Math.min(1, view.height / view.scale / whole));
  const range = whole - view.height / view.scale;
  const part = range > 0 ? (view.top - first + EDGE / view.scale) / range : 0;
  thumb.style.height = `${tall}px`;
  thumb.style.transform = `translateY(${(view.height - 4 - tall) * part}px)`;
}

function listenToScrollbar() {
  const bar = byId("scrollbar");
  const to = (event) => {
    const part = (event.clientY - bar.getBoundingClientRect().top) / view.height;
    const first = shown(extent.first);
    view.top = first + part * (shown(extent.last) - first) - view.height / view.scale / 2;
    clamp();
    redraw();
  };
  bar.addEventListener("pointerdown", (event) => {
    bar.setPointerCapture(event.pointerId);
    event.preventDefault();
    to(event);
  });
  bar.addEventListener("pointermove", (event) => {
    if (bar.hasPointerCapture(event.pointerId)) to(event);
  });
}

function adapt() {
  if (!resize()) return;
  readColours();
  nameLanes();
  draw();
  fillRows();
}

function print(printing) {
  document.documentElement.classList.toggle("printed", printing);
  if (printing) choose(null);
  adapt();
  if (printing) {
    showEverything();
    draw();
    fillRows(true);
  }
}

byId("diagram").hidden = byId("messages").hidden = false;
plot.setAttribute("aria-label",
  `Timeline of ${number(entries.length)} messages and steps in ${duration(data.duration_us)}`);
byId("fold").hidden = waits().length === 0;
listenToSearch();
listenToKeys();
listenToWheel();
listenToPointers();
listenToScrollbar();
listenToRows();
adapt();
new ResizeObserver(adapt).observe(plot);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", adapt);
matchMedia("print").addEventListener("change", (event) => print(event.matches));
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
