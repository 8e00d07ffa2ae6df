// A term of the glossary shows its meaning while the pointer or the keyboard is on it; Escape closes it.
(() => {
  const meanings = window.termMeanings;
  if (!meanings) return;
  let bubble = null;
  let leaving = 0;

  const close = () => {
    clearTimeout(leaving);
    bubble?.link.removeAttribute("aria-describedby");
    bubble?.box.remove();
    bubble = null;
  };
  const closeSoon = () => (leaving = setTimeout(close, 150)); // time to move the pointer onto the bubble

  const open = (link, meaning) => {
    clearTimeout(leaving);
    if (bubble?.link === link) return;
    close();
    const box = document.createElement("div");
    box.id = "term-bubble";
    box.setAttribute("role", "tooltip");
    box.innerHTML = meaning;
    for (const inner of box.querySelectorAll("a")) inner.tabIndex = -1;
    box.addEventListener("mouseenter", () => clearTimeout(leaving));
    box.addEventListener("mouseleave", closeSoon);
    document.body.append(box);
    bubble = { link, box };
    link.setAttribute("aria-describedby", box.id);
    const place = () => {
      const first = link.getClientRects()[0];
      const all = link.getBoundingClientRect(); // of both parts, if the term is broken between lines
      const width = document.documentElement.clientWidth;
      const left = Math.max(8, Math.min(first.left, width - box.offsetWidth - 8));
      const above = all.bottom + box.offsetHeight + 8 > window.innerHeight && all.top > box.offsetHeight + 8;
      box.style.left = `${left + window.scrollX}px`;
      box.style.top = `${(above ? all.top - box.offsetHeight - 4 : all.bottom + 4) + window.scrollY}px`;
    };
    place();
    window.MathJax?.typesetPromise?.([box]).then(() => bubble?.box === box && place());
  };

  for (const link of document.querySelectorAll('.bd-article a[href*="#term-"]')) {
    const meaning = meanings[link.hash.slice(1)];
    if (!meaning || link.classList.contains("headerlink")) continue;
    link.classList.add("term");
    for (const event of ["mouseenter", "focus"]) link.addEventListener(event, () => open(link, meaning));
    link.addEventListener("mouseleave", closeSoon);
    link.addEventListener("blur", close);
  }
  document.addEventListener("keydown", (event) => event.key === "Escape" && close());
})();
