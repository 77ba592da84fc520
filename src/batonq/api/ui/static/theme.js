// Runs before the page is painted: applies the theme that was chosen in this browser.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("baton-theme"); } catch { /* storage is off */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
