// Waits that are shown shorter than they were.

const MIN_FOLD_SHARE = 0.06; // of the duration, from which on a time without any event is a wait
const FOLDED_SHARE = 0.06; // of the rest, which a shortened wait takes
const MARGIN_SHARE = 0.02; // of the rest, before and after an event, which is not shortened

/** Return the times without any event that are long: where they are, and how long they are shown. */
function waits() {
  const times = [extent.first, extent.last];
  for (const { start, command, frames, span } of entries) {
    times.push(start);
    if (span && span.stop_us !== null) times.push(span.stop_us);
    if (command) {
      times.push(...[command.received_us, command.commit_us, command.answered_us, command.answer_received_us]
        .filter((each) => each !== null));
    }
    for (const frame of frames) times.push(frame.received_us, frame.sent_us ?? frame.received_us);
  }
  const sorted = Float64Array.from(times).sort();
  const whole = extent.last - extent.first;
  const long = [];
  let rest = whole;
  for (let at = 1; at < sorted.length; at++) {
    const size = sorted[at] - sorted[at - 1];
    if (size < MIN_FOLD_SHARE * whole) continue;
    long.push([sorted[at - 1], sorted[at]]);
    rest -= size;
  }
  rest = Math.max(rest, whole / 1000);
  const found = [];
  let cut = 0; // what is cut off before
  for (const [from, to] of long) {
    const margin = Math.min(MARGIN_SHARE * rest, (to - from) / 4);
    const [start, stop, kept] = [from + margin, to - margin, FOLDED_SHARE * rest];
    if (kept >= stop - start) continue;
    found.push({ start, stop, cut, kept });
    cut += stop - start - kept;
  }
  return found;
}

/** Return where a time is shown: in microseconds, less what is cut off before. */
function shown(us) {
  let place = us;
  for (const { start, stop, cut, kept } of view.folds) {
    if (us <= start) break;
    place = us >= stop ? us - cut - (stop - start - kept) : start - cut + ((us - start) / (stop - start)) * kept;
  }
  return place;
}

/** Return the time that is shown at a place. */
function unfolded(place) {
  let us = place;
  for (const { start, stop, cut, kept } of view.folds) {
    if (place <= start - cut) break;
    const inside = place - (start - cut);
    us = inside >= kept ? place + cut + (stop - start - kept) : start + (inside / kept) * (stop - start);
  }
  return us;
}

/** Shorten the waits, or show them as long as they were. */
function fold(folded) {
  view.folds = folded ? waits() : [];
  view.least = (view.height - 2 * EDGE) / (shown(extent.last) - shown(extent.first));
  showEverything();
}
