// Search by phase or type.

const query = byId("query");
const search = { words: [], found: [], matches: [] };

function matches(entry) {
  const words = `${entry.type ?? ""} ${entry.phase ?? ""} ${entry.role} ${entry.kind}`.toLowerCase();
  return search.words.every((word) => words.includes(word));
}

function find() {
  search.words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
  search.matches = search.words.length ? entries.filter(matches) : [];
  search.found = [];
  for (const entry of search.matches) search.found[entry.at] = true;
  for (const name of ["previous", "next"]) byId(name).disabled = search.matches.length === 0;
  count();
  redraw();
  fillRows();
}

/** Say how many entries match, and which of them is chosen. */
function count() {
  const all = search.matches.length;
  const place = chosen.entry && search.found[chosen.entry.at] ? search.matches.indexOf(chosen.entry) + 1 : 0;
  let words = "";
  if (search.words.length) words = all === 1 ? "1 match" : `${number(all)} matches`;
  if (place) words = `${number(place)} of ${number(all)}`;
  if (byId("matches").textContent !== words) byId("matches").textContent = words;
}

/** Choose the next match, or the previous one; after the last comes the first. */
function step(direction) {
  const { matches } = search;
  if (!matches.length) return;
  const from = chosen.entry ? chosen.entry.at : direction > 0 ? -1 : entries.length;
  const at = direction > 0
    ? matches.find((entry) => entry.at > from) ?? matches[0]
    : matches.findLast((entry) => entry.at < from) ?? matches.at(-1);
  choose(at);
  count();
}

function listenToSearch() {
  query.addEventListener("input", find);
  byId("search").addEventListener("submit", (event) => event.preventDefault());
  query.addEventListener("keydown", (event) => {
    if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") {
      query.value = "";
      find();
      plot.focus();
    } else return;
    event.preventDefault();
  });
  byId("next").addEventListener("click", () => step(1));
  byId("previous").addEventListener("click", () => step(-1));
  find();
}
