// Keeps the fleet's table live by server-sent events, and filters and sorts it. The table is whole without this file.
// The server sends finished rows, so that there is one place where a guest's text is escaped.
"use strict";
(() => {
  const table = document.getElementById("fleet");
  const summary = document.getElementById("summary");
  const pulse = document.getElementById("pulse");
  const filter = document.getElementById("filter");
  const sort = document.getElementById("sort");
  const found = document.getElementById("found");
  const guests = new Map([...table.tBodies].map((body) => [body.dataset.guest, body]));
  const parser = new DOMParser();
  let source = null;
  let reached = Date.now();
  let arranging = 0;

  const say = (lost) => {
    const clock = new Date(reached).toLocaleTimeString();
    pulse.hidden = false;
    pulse.classList.toggle("lost", lost);
    pulse.textContent = lost ? `no answer since ${clock}` : `live, ${clock}`;
  };

  // Ages go on between two answers.
  const born = new WeakMap();
  const age = (seconds) => {
    if (seconds < 600) return `${seconds.toFixed(1)} s`;
    const parts = [[Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"], [Math.floor(seconds / 60) % 60, "m"]];
    while (!parts[0][0]) parts.shift();
    return parts.map(([count, unit]) => `${count}${unit}`).join(" ");
  };
  const tick = () => {
    if (document.hidden) return;
    const now = performance.now();
    for (const body of guests.values()) {
      if (body.hidden) continue;
      const shown = body.querySelector("span[data-age]");
      if (!shown) continue;
      if (!born.has(shown)) born.set(shown, now);
      const words = age(Number(shown.dataset.age) + (now - born.get(shown)) / 1000);
      if (shown.textContent !== words) shown.textContent = words;
    }
  };

  const byId = (a, b) => (a.dataset.guest < b.dataset.guest ? -1 : 1);
  const number = (text) => (text === "" ? -Infinity : Number(text));
  const order = () => {
    const key = sort.value;
    if (key === "id") return byId;
    const sign = key === "state" ? 1 : -1;
    return (a, b) => sign * (number(a.dataset[key]) - number(b.dataset[key])) || byId(a, b);
  };

  const arrange = () => {
    arranging = 0;
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const body of guests.values()) {
      body.hidden = !words.every((word) => body.dataset.search.includes(word));
      shown += body.hidden ? 0 : 1;
    }
    found.textContent = words.length ? `${shown} of ${guests.size}` : "";
    const wanted = [...guests.values()].sort(order());
    // Only what is out of place moves, so that a selection and the scroll position stay.
    let at = table.tBodies[0] ?? null;
    for (const body of wanted) {
      if (body === at) at = at.nextElementSibling;
      else table.insertBefore(body, at);
    }
  };
  const arrangeSoon = () => {
    if (!arranging) arranging = setTimeout(arrange, 100);
  };

  const place = (html) => {
    const body = parser.parseFromString(`<table>${html}</table>`, "text/html").querySelector("tbody");
    if (!body) return;
    const old = guests.get(body.dataset.guest);
    guests.set(body.dataset.guest, body);
    if (old) {
      body.hidden = old.hidden;
      old.replaceWith(body);
    } else {
      table.append(body);
    }
    arrangeSoon();
  };
  const remove = (id) => {
    guests.get(id)?.remove();
    guests.delete(id);
    arrangeSoon();
  };

  const on = (name, take) =>
    source.addEventListener(name, (event) => {
      take(JSON.parse(event.data));
      reached = Date.now();
      say(false);
    });
  const open = () => {
    source?.close();
    source = new EventSource(table.dataset.source);
    on("guests", (ids) => {
      const known = new Set(ids);
      for (const id of [...guests.keys()]) if (!known.has(id)) remove(id);
    });
    on("rows", (rows) => rows.forEach(place));
    on("gone", (ids) => ids.forEach(remove));
    on("summary", (html) => summary.replaceChildren(...parser.parseFromString(html, "text/html").body.children));
    on("pulse", () => {});
    source.addEventListener("error", () => {
      say(true);
      // The browser itself tries again after a lost connection; after a refusal it does not.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => document.hidden || open(), 3000);
    });
  };

  document.getElementById("tools").hidden = false;
  document.getElementById("tools").addEventListener("submit", (event) => event.preventDefault());
  filter.addEventListener("input", arrange);
  sort.addEventListener("change", arrange);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source?.close();
    else open();
  });
  addEventListener("pagehide", () => source?.close());
  setInterval(tick, 1000);
  say(false);
  arrange();
  open();
})();
