// For pages with widgets, loaded before their own scripts.
(() => {
  // The sliders of ipywidgets have no name for assistive technology, announce places instead of values, and their
  // readouts can be typed in without effect. Put that right whenever one is drawn or moved.
  const set = (element, name, value) => {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  };
  const mend = () => {
    for (const handle of document.querySelectorAll(".assoc-explorer .noUi-handle")) {
      const slider = handle.closest(".widget-slider");
      const readout = slider.querySelector(".widget-readout");
      set(handle, "aria-label", slider.querySelector(".widget-label").textContent);
      set(handle, "aria-valuetext", readout.textContent);
      set(readout, "contenteditable", "false");
    }
  };
  const changes = { childList: true, subtree: true, attributeFilter: ["aria-valuetext", "contenteditable"] };
  new MutationObserver(mend).observe(document.documentElement, changes);

  // They typeset through the interface of MathJax 2, which version 3 no longer has.
  const Queue = ([, , element]) => MathJax.startup.promise.then(() => MathJax.typesetPromise([element]));
  window.addEventListener("load", () => {
    if (window.MathJax) MathJax.Hub = { Queue };
  });
})();
