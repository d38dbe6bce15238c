/* Plots: axes and shapes in SVG, placed by their values. */
(() => {
  "use strict";
  const C = window.calattn;
  const { s, freshId, missing, short } = C;

  const QUARTERS = [0, 0.25, 0.5, 0.75, 1],
    hundredth = (tick) => `${100 * tick}`;

  function niceTicks(low, high, about = 5) {
    const rough = (high - low) / about,
      power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((size) => size >= rough * 0.999);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++)
      ticks.push(Number((k * step).toPrecision(12)));
    return ticks;
  }

  /** Axes on an SVG element, and shapes placed by their values. */
  class Plot {
    constructor(
      svg,
      { width, height, top = 0, left = 44, right = 10, above = 10, below = 36, x = [0, 1], y = [0, 1], log = false },
    ) {
      Object.assign(this, { svg, x, y, log });
      this.box = { left, right: width - right, top: top + above, bottom: top + height - below };
      const clip = freshId("clip"),
        { box } = this;
      const size = {
        x: box.left,
        y: box.top - 1,
        width: Math.max(0, box.right - box.left),
        height: box.bottom - box.top + 2,
      };
      svg.append(s("clipPath", { id: clip }, s("rect", size)));
      this.back = svg.appendChild(s("g", { class: "axes" }));
      this.inside = svg.appendChild(s("g", { "clip-path": `url(#${clip})` }));
      this.front = svg.appendChild(s("g"));
      this.labels = svg.appendChild(s("g"));
    }

    px(value) {
      const [low, high] = this.log ? this.x.map(Math.log) : this.x;
      const at = this.log ? Math.log(value) : value;
      return this.box.left + ((at - low) / (high - low)) * (this.box.right - this.box.left);
    }

    py(value) {
      const [low, high] = this.y;
      return this.box.bottom - ((value - low) / (high - low)) * (this.box.bottom - this.box.top);
    }

    axes({ xTicks, yTicks, xText = short, yText = short, xLabel, yLabel }) {
      const { box, back } = this;
      for (const tick of yTicks || []) {
        const at = this.py(tick);
        back.append(s("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }));
        back.append(s("text", { class: "tick", x: box.left - 6, y: at + 4, "text-anchor": "end" }, yText(tick)));
      }
      for (const tick of xTicks || []) {
        const at = this.px(tick),
          text = xText(tick);
        back.append(s("line", { class: "stub", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }));
        if (text) back.append(s("text", { class: "tick", x: at, y: box.bottom + 16, "text-anchor": "middle" }, text));
      }
      back.append(s("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
      const middle = (box.left + box.right) / 2,
        half = (box.top + box.bottom) / 2;
      if (xLabel)
        back.append(s("text", { class: "axis", x: middle, y: box.bottom + 32, "text-anchor": "middle" }, xLabel));
      const turned = { class: "axis", "text-anchor": "middle", transform: `translate(11 ${half}) rotate(-90)` };
      if (yLabel) back.append(s("text", turned, yLabel));
      return this;
    }

    /** A title above the box. */
    title(text, x = this.box.left) {
      this.labels.append(s("text", { class: "plot-title", x, y: this.box.top - 11 }, text));
      return this;
    }

    line(xs, ys, kind) {
      let path = "",
        pen = "M";
      xs.forEach((x, place) => {
        if (missing(ys[place])) {
          pen = "M";
          return;
        }
        path += `${pen}${this.px(x).toFixed(2)} ${this.py(ys[place]).toFixed(2)}`;
        pen = "L";
      });
      if (path) this.inside.append(s("path", { class: `line ${kind}`, d: path }));
      return this;
    }

    /** A rectangle between two values of each axis, `gap` pixels narrower than its bin. */
    bar([x0, x1], [y0, y1], kind, { gap = 1, paint = null, opacity = null } = {}) {
      const left = this.px(x0) + gap / 2,
        wide = Math.max(0.5, this.px(x1) - this.px(x0) - gap);
      const high = this.py(Math.max(y0, y1)),
        low = this.py(Math.min(y0, y1));
      const shape = {
        class: kind,
        x: left,
        y: high,
        width: wide,
        height: Math.max(0, low - high),
        opacity,
        style: paint && `fill:${paint}`,
      };
      this.inside.append(s("rect", shape));
      return this;
    }

    segment([x0, y0], [x1, y1], kind) {
      this.inside.append(
        s("line", { class: `line ${kind}`, x1: this.px(x0), y1: this.py(y0), x2: this.px(x1), y2: this.py(y1) }),
      );
      return this;
    }

    dot(x, y, kind, radius = 4) {
      this.front.append(s("circle", { class: kind, cx: this.px(x), cy: this.py(y), r: radius }));
      return this;
    }

    /** A vertical line across the plot, if it lies there; its label stays inside the box. */
    rule(x, kind, label, { row = 0, left = this.px(x) > (this.box.left + this.box.right) / 2 } = {}) {
      const at = this.px(x),
        { box } = this;
      if (!(at >= box.left - 1 && at <= box.right + 1)) return this;
      this.front.append(s("line", { class: `line ${kind}`, x1: at, x2: at, y1: box.top, y2: box.bottom }));
      if (label) {
        const room = 7.5 * label.length + 5; // of 12 px letters, on the safe side
        const aside = (left && at - room >= box.left) || at + room > box.right;
        const place = {
          class: `note ${kind}`,
          x: at + (aside ? -5 : 5),
          y: box.top + 11 + 14 * row,
          "text-anchor": aside ? "end" : "start",
        };
        this.labels.append(s("text", place, label));
      }
      return this;
    }
  }

  /** A hatched fill, by the name to paint with; rising or falling, so that two are told apart without colour. */
  function hatch(svg, kind, { falling = false } = {}) {
    const id = freshId("hatch");
    const stripes = s("path", {
      class: `line ${kind}`,
      d: falling ? "M-1 -1 L7 7 M-1 5 L1 7 M5 -1 L7 1" : "M-1 7 L7 -1 M-1 1 L1 -1 M5 7 L7 5",
    });
    svg.append(s("defs", {}, s("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, stripes)));
    return `url(#${id})`;
  }

  Object.assign(C, { QUARTERS, hundredth, niceTicks, Plot, hatch });
})();
