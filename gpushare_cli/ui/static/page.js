"use strict";
// Fetches this page again when the server says that something changed, and replaces what is live in it.
const live = document.getElementById("live");
const lost = document.getElementById("lost");
const LEAST = 1000; // milliseconds between two fetches; a page that takes long is fetched more seldom
let due = 0;
let again = false;
let next = 0;

function soon() {
  again = Boolean(due);
  due ||= setTimeout(refresh, Math.max(0, next - Date.now()));
}

function focused() {
  const at = document.activeElement;
  return live.contains(at) ? [...live.querySelectorAll("a, [tabindex]")].indexOf(at) : -1;
}

async function refresh() {
  again = false;
  const began = Date.now();
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
    if (found && found.innerHTML !== live.innerHTML) {
      const at = focused();
      live.replaceChildren(...found.childNodes);
      if (at >= 0) [...live.querySelectorAll("a, [tabindex]")][at]?.focus({ preventScroll: true });
    }
  } catch {
    // the stream says that the server is gone
  }
  next = began + Math.max(LEAST, 5 * (Date.now() - began));
  due = 0;
  if (again) soon();
}

const news = new EventSource("events");
news.onopen = () => { lost.textContent = ""; };
news.onmessage = soon;
news.onerror = () => { lost.textContent = "Not current: gpu-share ui does not answer any more. Start it again."; };
