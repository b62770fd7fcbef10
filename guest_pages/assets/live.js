// Keeps the page fresh by fetching its changing part again. The page is whole without this file.
// A section that did not change is left alone, so that a selection or a scroll position stays.
"use strict";
(() => {
  const EVERY_MS = 5000; // The agent takes no sample more often than this.
  const GIVE_UP_MS = 10000;
  const live = document.getElementById("live");
  const pulse = document.getElementById("pulse");
  let timer = 0;
  let reached = Date.now();

  const say = (lost) => {
    const clock = new Date(reached).toLocaleTimeString();
    pulse.hidden = false;
    pulse.classList.toggle("lost", lost);
    pulse.textContent = lost ? `no answer since ${clock}` : `live, ${clock}`;
  };

  const place = (html) => {
    const fresh = [...new DOMParser().parseFromString(html, "text/html").body.children];
    const same = fresh.length === live.children.length && fresh.every((section, at) => section.id === live.children[at].id);
    if (!same) {
      live.replaceChildren(...fresh);
      return;
    }
    fresh.forEach((section, at) => {
      const shown = live.children[at];
      // What somebody opened is no change, and stays open.
      for (const opened of shown.querySelectorAll("details[open]")) {
        const same = section.querySelector(`details[id="${opened.id}"]`);
        if (same) same.open = true;
      }
      if (section.innerHTML !== shown.innerHTML) shown.replaceWith(section);
    });
  };

  const refresh = async () => {
    clearTimeout(timer);
    try {
      const answer = await fetch(live.dataset.source, { cache: "no-store", signal: AbortSignal.timeout(GIVE_UP_MS) });
      if (!answer.ok) throw new Error(String(answer.status));
      place(await answer.text());
      reached = Date.now();
      say(false);
    } catch {
      say(true);
    }
    if (!document.hidden) timer = setTimeout(refresh, EVERY_MS);
  };

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else refresh();
  });
  say(false);
  timer = setTimeout(refresh, EVERY_MS);
})();
