// What the theme leaves to do for assistive technology and the keyboard.
window.addEventListener("load", async () => {
  // Names that hide what the reader sees: "Toggle hidden content" for "Show code cell source".
  for (const named of document.querySelectorAll("summary[aria-label], .search-button-field[aria-label]")) {
    named.removeAttribute("aria-label");
  }
  // Docutils calls the bibliography a list, and its entries something that is not of a list.
  for (const list of document.querySelectorAll(".citation-list[role]")) list.removeAttribute("role");
  // The theme's button has the name of one mode on it, whichever is on, so its own name lists them all.
  for (const button of document.querySelectorAll(".theme-switch-button")) {
    button.setAttribute("aria-label", "Color mode: Light, Dark or System Settings");
  }

  // What scrolls sideways must be reachable by keyboard: wide formulas, code and tables.
  await window.MathJax?.startup?.promise;
  const article = document.querySelector(".bd-article");
  if (!article) return;
  const reach = () => {
    for (const part of article.querySelectorAll("div, pre, mjx-container[display]")) {
      const scrolls = part.scrollWidth > part.clientWidth && /auto|scroll/.test(getComputedStyle(part).overflowX);
      if (scrolls && !part.hasAttribute("tabindex")) {
        part.tabIndex = 0;
        if (part.querySelector(":scope > table")) {
          part.setAttribute("role", "region");
          part.setAttribute("aria-label", "Table, scrolls sideways");
        }
      }
    }
  };
  new ResizeObserver(reach).observe(article);
});
