/* Charts: plots that fit their width and answer the pointer and the arrow keys. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, s } = C;

  /** A figure that redraws itself to its width. `draw(svg, width)` returns {height, label, items}: what the chart says
      in words, and items [{x, text}] that a pointer or the arrow keys can ask about; their line spans the box of `plot`. */
  function chart({ name, draw, hint = null, most = 640, pick = null }) {
    const svg = s("svg", { role: "img", class: "plot", "data-chart": name });
    const readout = h("p", { class: `readout no-print${hint ? " hinted" : ""}`, "aria-live": "polite" });
    const element = h("figure", { class: "chart" }, svg, C.copyButtons(svg, name), hint === null ? null : readout);
    const held = { items: [], at: null, width: 0 };

    function show(place) {
      svg.querySelectorAll(".cursor").forEach((old) => old.remove());
      held.at = held.items.length && place !== null ? Math.min(Math.max(place, 0), held.items.length - 1) : null;
      readout.classList.toggle("asked", held.at !== null);
      if (held.at === null) {
        readout.textContent = hint || "";
        return;
      }
      const item = held.items[held.at];
      svg.append(s("line", { class: "line cursor", x1: item.x, x2: item.x, y1: held.top, y2: held.bottom }));
      readout.textContent = item.text;
    }

    // The width comes from the observer: to ask the element would lay out the page anew for every chart.
    const seen = (wide) => Math.min(most, Math.floor(wide));
    function redraw() {
      const width = held.width || seen(element.clientWidth) || 480;
      svg.replaceChildren();
      const { height, label, items, plot } = draw(svg, width);
      Object.assign(held, { items, ...(plot ? plot.box : { top: 0, bottom: height }) });
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("aria-label", label);
      svg.style.maxWidth = `${width}px`;
      if (hint !== null) show(held.at);
    }

    if (hint !== null) inspectable(svg, held, show, pick);
    new ResizeObserver(([entry]) => {
      const width = seen(entry.contentRect.width);
      if (width === held.width || width <= 0) return;
      held.width = width;
      redraw();
    }).observe(element);
    return { element, redraw };
  }

  /** `pick(item)` is told which item is dragged to, or chosen by Enter. */
  function inspectable(svg, held, show, pick) {
    svg.setAttribute("tabindex", "0");
    if (pick) svg.classList.add("draggable");
    const nearest = (event) => {
      const frame = svg.getBoundingClientRect();
      const at = ((event.clientX - frame.left) / frame.width) * svg.viewBox.baseVal.width;
      let best = 0;
      held.items.forEach((item, place) => {
        if (Math.abs(item.x - at) < Math.abs(held.items[best].x - at)) best = place;
      });
      show(best);
      if (pick && held.items.length && (event.buttons & 1 || event.type === "pointerdown")) pick(held.items[best]);
    };
    svg.addEventListener("pointermove", nearest);
    svg.addEventListener("pointerdown", (event) => {
      if (pick) svg.setPointerCapture(event.pointerId);
      nearest(event);
    });
    svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && show(null));
    svg.addEventListener("blur", () => show(null));
    svg.addEventListener("keydown", (event) => {
      const last = held.items.length - 1,
        at = held.at;
      const moves = {
        ArrowLeft: at === null ? last : at - 1,
        ArrowRight: at === null ? 0 : at + 1,
        Home: 0,
        End: last,
        Escape: null,
      };
      if (pick && event.key === "Enter" && at !== null) pick(held.items[at]);
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(moves[event.key]);
    });
  }

  /** What the marks of a chart mean; entries are [class of the swatch, text]. */
  function legend(entries) {
    return h(
      "ul",
      { class: "legend" },
      entries.map(([kind, text]) => h("li", {}, h("span", { class: `swatch ${kind}` }), text)),
    );
  }

  Object.assign(C, { chart, legend });
})();
