// The timeline as entries (commands, frames and steps), and how numbers are written. Nothing here draws.

const data = JSON.parse(document.getElementById("timeline").textContent);
const clients = new Map(data.clients.map((client) => [client.role, client]));
const opposite = { sender: "receiver", receiver: "sender" };

/** Write a number with fixed decimals as Python does: of two that are as near, the even one. */
function fixed(value, decimals) {
  const scaled = value * 10 ** decimals;
  if (Number.isInteger(value * 8) && scaled % 1 === 0.5) {
    const below = Math.floor(scaled);
    return ((below % 2 ? below + 1 : below) / 10 ** decimals).toFixed(decimals);
  }
  return value.toFixed(decimals);
}

function threeDigits(value) {
  const decimals = [2, 1, 0].find((each) => each === 0 || Number(fixed(value, each)) < 10 ** (3 - each));
  const words = fixed(value, decimals);
  return decimals ? words.replace(/\.?0+$/, "") : words;
}

/** Write a duration as the tables do (restante.common.units). */
function duration(us) {
  const size = Math.abs(us);
  const sign = us < 0 ? "-" : "";
  if (size >= 59_950_000) { // 60.0 s, with three digits
    const seconds = Math.floor(size / 1e6 + 0.5);
    const [large, name, small, rest] = seconds >= 86400 ? [86400, "d", 3600, "h"]
      : seconds >= 3600 ? [3600, "h", 60, "min"] : [60, "min", 1, "s"];
    const second = Math.floor((seconds % large) / small);
    return `${sign}${number(Math.floor(seconds / large))} ${name}${second ? ` ${second} ${rest}` : ""}`;
  }
  if (size === 0) return "0 s";
  if (size < 1000) return `${sign}${size} µs`;
  const words = threeDigits(size / 1000);
  return Number(words) < 1000 ? `${sign}${words} ms` : `${sign}${threeDigits(size / 1e6)} s`;
}

/** Write a moment: seconds since the beginning, in digits that tell neighbours on the screen apart. */
function moment(us, stepUs = 1000) {
  const digits = stepUs >= 1_000_000 ? 0 : Math.min(6, Math.max(1, Math.ceil(6 - Math.log10(stepUs))));
  const sign = us < 0 ? "-" : "";
  const size = Math.abs(us);
  if (size < 60_000_000) return `${sign}${(size / 1e6).toFixed(digits)} s`;
  const minutes = Math.floor(size / 60_000_000);
  const rest = ((size - minutes * 60_000_000) / 1e6).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  if (minutes < 60) return `${sign}${minutes}:${rest}`;
  return `${sign}${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}`;
}

const number = (value) => value.toLocaleString("en");

/** Whether times of this client's log can be compared with those of the server. */
const aligned = (role) => clients.has(role) && clients.get(role).offset_us !== null;
const errorOf = (role) => (aligned(role) ? clients.get(role).error_us : null);

function named(type) {
  if (type === null) return "message without a type";
  return type === "" ? "message of an unknown type" : type;
}

function commandEntry(command) {
  const { type, phase, role } = command;
  return {
    kind: "command", role, type, phase, command, frames: [], strong: type === "add", start: command.sent_us,
    label: type === "add" && phase !== null ? phase : named(type),
    title: type === "add"
      ? `${role} → ${opposite[role]}: ${phase === null ? "message" : phase}` : `${role} → server: ${named(type)}`,
  };
}

function frameEntry(frame) {
  const { type, phase, role, author } = frame;
  const strong = type === "message";
  return {
    kind: "frame", role, type, phase, frames: [frame], strong,
    start: frame.sent_us !== null && aligned(role) ? frame.sent_us : frame.received_us,
    label: strong && phase !== null ? phase : named(type),
    title: `${author} → ${role}: ${strong && phase !== null ? phase : named(type)}`,
  };
}

function spanEntry(span) {
  return {
    kind: "step", role: span.role, type: span.name, phase: span.phase, span, frames: [], strong: false,
    start: span.start_us, label: span.name, title: `${span.role}: ${span.name}`,
  };
}

/** Return when an entry ends: the last of its times that is known. */
function endOf(entry) {
  const times = [entry.start];
  if (entry.span) times.push(entry.span.stop_us ?? entry.start);
  if (entry.command) {
    const { received_us: rx, commit_us: commit, answered_us: tx, answer_received_us: t3 } = entry.command;
    if (aligned(entry.role)) times.push(rx ?? entry.start, commit ?? entry.start, tx ?? entry.start);
    times.push(t3 ?? entry.start);
  }
  for (const frame of entry.frames) times.push(frame.received_us);
  return times.reduce((a, b) => Math.max(a, b));
}

const entries = (() => {
  const found = data.commands.map(commandEntry);
  for (const frame of data.frames) {
    if (frame.command !== null && found[frame.command]) found[frame.command].frames.push(frame);
    else found.push(frameEntry(frame));
  }
  found.push(...data.spans.map(spanEntry));
  for (const entry of found) {
    entry.end = endOf(entry);
  }
  found.sort((a, b) => a.start - b.start || a.end - b.end);
  return found;
})();

/** Latest end of the entries up to each one: where to begin to look for those that are visible. */
function latestEnds(list, end) {
  const ends = new Float64Array(list.length);
  let latest = -Infinity;
  for (let at = 0; at < list.length; at++) ends[at] = latest = Math.max(latest, end(list[at]));
  return ends;
}
const entryEnds = latestEnds(entries, (entry) => entry.end);
entries.forEach((entry, at) => { entry.at = at; });

const elapsed = new Map([...clients.keys()].map((role) => [role, data.elapsed.filter((each) => each.role === role)]));

/** Return the first index whose value is at least `limit`, in ascending values. */
function lowerBound(length, value, limit) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (value(middle) < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the range [first, last) of entries that can touch a time. */
function entriesIn(start, stop) {
  const first = lowerBound(entries.length, (at) => entryEnds[at], start);
  return [first, Math.max(first, lowerBound(entries.length, (at) => entries[at].start, stop + 1))];
}

/** Return the stretches of a client that touch a time. */
function stretchesIn(role, start, stop) {
  const all = elapsed.get(role);
  const first = lowerBound(all.length, (at) => all[at].stop_us, start);
  return all.slice(first, Math.max(first, lowerBound(all.length, (at) => all[at].start_us, Math.floor(stop) + 1)));
}

/** Return the times between which everything is. */
const extent = (() => {
  let first = 0;
  let last = Math.max(data.duration_us, 1);
  for (const entry of entries) {
    first = Math.min(first, entry.start);
    last = Math.max(last, entry.end);
  }
  return { first, last };
})();

const less = (after, before) => (after === null || before === null ? null : after - before);

/** Return the parts of a command: name, duration, error, whether it is a sum. */
function parts(entry) {
  const rows = [];
  const { command, role, span } = entry;
  const error = errorOf(role);
  const between = (after, before) => (error === null ? null : less(after, before));
  if (span) {
    if (span.stop_us === null) return rows;
    return [{ name: span.phase ?? "duration", us: span.stop_us - span.start_us, error: null }];
  }
  if (command) {
    const { sent_us: t0, received_us: rx, commit_began_us: began, commit_us: commit, answered_us: tx } = command;
    rows.push({ name: "network out", us: between(rx, t0), error });
    if (commit !== null) {
      if (began === null) rows.push({ name: "queue and commit", us: less(commit, rx), error: null });
      else {
        rows.push({ name: "queue", us: less(began, rx), error: null });
        rows.push({ name: "commit", us: commit - began, error: null });
      }
      rows.push({ name: "answer", us: less(tx, commit), error: null });
    } else {
      rows.push({ name: "server", us: less(tx, rx), error: null });
    }
    rows.push({ name: "network in", us: between(command.answer_received_us, tx), error });
    rows.push({ name: "round trip", us: less(command.answer_received_us, t0), error: null, sum: true });
  }
  for (const frame of entry.frames) {
    const clock = errorOf(frame.role);
    const known = clock !== null;
    const who = command ? `to the ${frame.role}: ` : "";
    rows.push({ name: `${who}network in`, us: known ? less(frame.received_us, frame.sent_us) : null, error: clock });
    if (command && frame.role !== role) {
      const both = known && error !== null;
      rows.push({
        name: `sent until the ${frame.role} has it`, us: both ? frame.received_us - command.sent_us : null,
        error: both ? clock + error : null, sum: true,
      });
    }
  }
  return rows;
}

/** Return the total that the table has for an entry, as one of its parts. */
function total(entry) {
  const rows = parts(entry);
  return rows.filter((row) => row.sum).at(-1) ?? rows.at(-1) ?? null;
}

const written = (row) => (row === null || row.us === null ? "not known"
  : `${duration(row.us)}${row.error === null ? "" : ` ± ${duration(row.error)}`}`);

/** Return an entry in words, for the screen reader. */
function spoken(entry) {
  const all = parts(entry).map((row) => `${row.name} ${written(row)}`);
  const place = `${number(entry.at + 1)} of ${number(entries.length)}.`;
  const sentences = [`${entry.title.replace("→", "to")}, at ${moment(entry.start)}.`, place];
  if (all.length) sentences.splice(1, 0, `${all.join(", ")}.`);
  return sentences.join(" ");
}

/** Return what the other client did in a stretch: causes and durations, the longest first. */
function meanwhile(stretch) {
  const other = opposite[stretch.role];
  if (!clients.has(other) || stretch.cause !== "peer") return [];
  const sums = new Map();
  let covered = 0;
  for (const each of stretchesIn(other, stretch.start_us, stretch.stop_us)) {
    const part = Math.min(each.stop_us, stretch.stop_us) - Math.max(each.start_us, stretch.start_us);
    if (part > 0) sums.set(each.cause, (sums.get(each.cause) ?? 0) + part);
    covered += Math.max(part, 0);
  }
  const rest = stretch.stop_us - stretch.start_us - covered;
  if (rest > 0) sums.set("not running", rest);
  return [...sums].sort((a, b) => b[1] - a[1]);
}
