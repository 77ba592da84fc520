// The dashboard's own script: live updates, theme, keyboard and copying. Every page can be read without it.
"use strict";
(() => {
  const find = (selector) => document.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // --- changing a part of the page in place, so that focus, selection and open details stay
  function morph(now, next) {
    if (now.nodeType !== next.nodeType || now.nodeName !== next.nodeName || keyOf(now) !== keyOf(next)) {
      now.replaceWith(next);
      return;
    }
    if (now.nodeType !== Node.ELEMENT_NODE) {
      if (now.nodeValue !== next.nodeValue) now.nodeValue = next.nodeValue;
      return;
    }
    const keeps = now.nodeName === "DETAILS" ? ["open"] : ["class"].filter(() => now.classList.contains("chosen"));
    for (const { name } of [...now.attributes])
      if (!next.hasAttribute(name) && !keeps.includes(name)) now.removeAttribute(name);
    for (const { name, value } of [...next.attributes])
      if (now.getAttribute(name) !== value && !keeps.includes(name)) now.setAttribute(name, value);
    if (now.nodeName === "INPUT" || now.nodeName === "TEXTAREA" || now.nodeName === "SELECT") return;
    children(now, next);
  }
  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") || node.id : "");
  function children(now, next) {
    const wanted = [...next.childNodes];
    wanted.forEach((node, place) => {
      let here = now.childNodes[place];
      const key = keyOf(node);
      if (here && key && keyOf(here) !== key) {
        const moved = [...now.childNodes].slice(place).find((one) => keyOf(one) === key);
        if (moved) { now.insertBefore(moved, here); here = moved; }
        else { now.insertBefore(node, here); return; }
      }
      if (here) morph(here, node);
      else now.append(node);
    });
    while (now.childNodes.length > wanted.length) now.lastChild.remove();
  }
  function put(block, html) {
    const next = document.createElement("template");
    next.innerHTML = html;
    const selection = getSelection();
    if (selection && !selection.isCollapsed && block.contains(selection.anchorNode)) return; // someone is copying
    children(block, next.content);
  }

  // --- live updates
  let source = null, heardMs = Date.now(), waitMs = 2000, again = 0, why = "";
  const isLive = () => all("[data-live]").some((block) => block.id !== "verdict");
  function connect() {
    disconnect();
    if (document.hidden || !isLive()) return;
    source = new EventSource(`/ui/events?page=${encodeURIComponent(location.pathname + location.search)}`);
    const heard = () => { heardMs = Date.now(); waitMs = 2000; why = ""; stale(); };
    source.addEventListener("update", (event) => {
      heard();
      for (const [name, html] of Object.entries(JSON.parse(event.data))) {
        const block = find(`[data-live="${name}"]`);
        if (block) put(block, html);
      }
      const needed = find("#verdict .mark.warning, #verdict .mark.critical") ? "▲ " : "";
      document.title = needed + document.title.replace(/^▲ /, "");
      document.dispatchEvent(new Event("baton:update"));
    });
    source.addEventListener("beat", heard);
    source.addEventListener("problem", (event) => { heardMs = Date.now(); why = JSON.parse(event.data).detail; stale(); });
    source.addEventListener("over", () => location.reload());
    source.onerror = () => {
      disconnect();
      again = setTimeout(connect, waitMs);
      waitMs = Math.min(10000, waitMs * 1.5);
    };
  }
  function disconnect() {
    clearTimeout(again);
    if (source) source.close();
    source = null;
  }
  function stale() {
    const said = find("#stale");
    if (!said) return;
    const silentS = Math.round((Date.now() - heardMs) / 1000);
    const lost = isLive() && !document.hidden && silentS >= 7;
    const text = why || (lost ? `Live updates lost ${silentS} s ago, retrying` : "");
    if (said.textContent !== text) said.textContent = text;
    said.hidden = !text;
    document.body.classList.toggle("is-stale", Boolean(text));
  }
  setInterval(stale, 1000);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) disconnect();
    else { heardMs = Date.now(); connect(); }
  });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", (event) => { if (event.persisted) connect(); });

  // --- theme
  const themed = find("#theme");
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  function label() { if (themed) { themed.hidden = false; themed.textContent = dark() ? "Light" : "Dark"; themed.title = `Use the ${dark() ? "light" : "dark"} theme`; } }
  if (themed) themed.addEventListener("click", () => {
    const chosen = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    try { localStorage.setItem("baton-theme", chosen); } catch { /* storage is off */ }
    label();
    window.batonPlots.redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { label(); window.batonPlots.redraw(); });

  // --- copying
  async function copy(text) {
    try { await navigator.clipboard.writeText(text); return; } catch { /* plain HTTP from another machine */ }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = button.dataset.copy || button.closest(".command").querySelector("code").textContent;
    await copy(text);
    const before = button.dataset.label || button.innerHTML;
    button.dataset.label = before;
    button.textContent = "Copied";
    setTimeout(() => { button.innerHTML = before; }, 1200);
  });

  // --- select all rows of a table
  document.addEventListener("change", (event) => {
    const box = event.target.closest("[data-select-all]");
    if (box) all(`input[type=checkbox][name="${box.dataset.selectAll}"]`, box.closest("form") || document)
      .forEach((one) => { one.checked = box.checked; });
  });

  // --- forms that submit when a choice is made
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-auto]");
    if (form && event.target.matches("select")) form.requestSubmit();
  });

  // --- keyboard
  const GOES = { o: "/ui", q: "/ui/queues", t: "/ui/topics", s: "/ui/schedules", j: "/ui/jobs", w: "/ui/workers", c: "/ui/cluster", a: "/ui/alarms", k: "/ui/keys", r: "/ui/reports" };
  let going = 0;
  const rows = () => all("tr[data-key]").filter((row) => row.querySelector("a[href]"));
  function move(step) {
    const list = rows();
    if (!list.length) return;
    const at = list.findIndex((row) => row.classList.contains("chosen"));
    const next = list[Math.max(0, Math.min(list.length - 1, at < 0 ? (step > 0 ? 0 : list.length - 1) : at + step))];
    list.forEach((row) => row.classList.toggle("chosen", row === next));
    const link = next.querySelector("a[href]");
    link.focus();
    next.scrollIntoView({ block: "nearest" });
  }
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && typing) { event.target.blur(); return; }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (Date.now() - going < 1200 && GOES[event.key]) { event.preventDefault(); location.href = GOES[event.key]; return; }
    going = event.key === "g" ? Date.now() : 0;
    if (event.key === "/") {
      const search = find("input[type=search]");
      event.preventDefault();
      if (search) { search.focus(); search.select(); } else location.href = "/ui/queues?focus=search";
    } else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "?") { const keys = find("#keys"); if (keys && !keys.open) keys.showModal(); }
  });
  const keysButton = find("#keys-button");
  if (keysButton) { keysButton.hidden = false; keysButton.addEventListener("click", () => find("#keys").showModal()); }

  // --- bars of tabs that are wider than a phone
  function showCurrentTabs() {
    for (const current of all(".pages [aria-current], .tabs [aria-current]")) {
      const bar = current.parentElement, inside = bar.getBoundingClientRect(), place = current.getBoundingClientRect();
      bar.scrollLeft += place.left - inside.left - (inside.width - place.width) / 2;
    }
  }

  function start() { showCurrentTabs(); window.batonPlots.start(document); }
  document.addEventListener("htmx:afterSettle", () => { start(); connect(); });
  if (new URLSearchParams(location.search).get("focus") === "search") { const search = find("input[type=search]"); if (search) search.focus(); }
  const here = find(".pages [aria-current]"); // on a phone the navigation is wider than the page
  if (here) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 16;
  label();
  start();
  connect();
})();
