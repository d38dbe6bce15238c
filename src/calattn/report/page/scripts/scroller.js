/* The scroller: a box for what may be too tall or too wide, whose edges show where there is more. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h } = C;

  /** The box around `content`. The style says how tall it may be; it then ends in the middle of one of the `rows`,
      since a box that ends between two looks complete. */
  function scroller(content, { label, rows = "tbody tr" }) {
    const box = h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": label }, content);
    const frame = h("div", { class: "scroll-frame" }, box);
    const edges = () => markEdges(frame, box);
    let waiting = false;
    const changed = () => {
      if (waiting) return;
      waiting = true;
      // In a frame of its own: an observer that changes the size it observes is an error.
      window.requestAnimationFrame(() => {
        waiting = false;
        cutThroughRow(box, content.querySelectorAll(rows));
        edges();
      });
    };
    const observer = new ResizeObserver(changed);
    for (const one of [box, content]) observer.observe(one);
    box.addEventListener("scroll", edges, { passive: true });
    return frame;
  }

  function cutThroughRow(box, rows) {
    box.style.maxHeight = "";
    const limit = parseFloat(getComputedStyle(box).maxHeight);
    if (!(box.scrollHeight > limit + 1)) return; // also where there is no limit
    const top = box.getBoundingClientRect().top - box.scrollTop;
    for (let place = rows.length - 1; place >= 0; place--) {
      const row = rows[place].getBoundingClientRect(),
        middle = row.top - top + row.height / 2;
      if (row.height === 0 || middle > limit) continue;
      box.style.maxHeight = `${Math.round(middle)}px`;
      return;
    }
  }

  function markEdges(frame, box) {
    const { scrollTop, scrollLeft, clientHeight, clientWidth } = box;
    const more = {
      above: scrollTop > 1,
      below: scrollTop + clientHeight < box.scrollHeight - 1,
      before: scrollLeft > 1,
      after: scrollLeft + clientWidth < box.scrollWidth - 1,
    };
    for (const [edge, there] of Object.entries(more)) frame.classList.toggle(`more-${edge}`, there);
    // The fades leave the scroll bars free.
    frame.style.setProperty("--bar-across", `${box.offsetHeight - clientHeight}px`);
    frame.style.setProperty("--bar-down", `${box.offsetWidth - clientWidth}px`);
  }

  Object.assign(C, { scroller });
})();
