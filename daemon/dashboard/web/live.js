// Keeps the page up to date: each event has the live part, made and escaped by godwitd. Only sections that differ are
// replaced, so that a link keeps its focus.
"use strict";
(() => {
  const live = document.getElementById("live");
  if (!live) return;
  const away = document.getElementById("away");
  const link = document.getElementById("link");
  const silence = 10000; // ms without an event after which godwitd counts as away
  let last = Date.now();
  let source;

  function show(reached) {
    away.hidden = reached;
    live.classList.toggle("stale", !reached);
    const text = reached ? "live" : "no answer for " + Math.round((Date.now() - last) / 1000) + " s";
    if (link.textContent !== text) link.textContent = text;
  }

  function replace(html) {
    const next = document.createElement("template");
    next.innerHTML = html;
    for (const section of next.content.querySelectorAll("section")) {
      const old = document.getElementById(section.id);
      if (old && old.outerHTML !== section.outerHTML) old.replaceWith(section);
    }
  }

  function open() {
    source = new EventSource("events");
    source.addEventListener("live", (event) => {
      last = Date.now();
      replace(event.data);
      show(true);
    });
    source.onerror = () => {
      show(false);
      if (source.readyState === EventSource.CLOSED) setTimeout(open, 3000);
    };
  }

  setInterval(() => {
    if (!away.hidden || Date.now() - last > silence) show(false);
  }, 1000);
  open();
})();
