/* Shared by the page and the leaderboard: elements, numbers in words, bins, and plots drawn as SVG.
   Text from the document only ever becomes a text node or an attribute, so a label named like a tag stays a label. */
(() => {
  "use strict";

  /* ---- elements ---- */

  const SVG = "http://www.w3.org/2000/svg";

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") element.addEventListener(name, value);
      else element.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined && child !== false) element.append(child);
    }
    return element;
  }

  /** An HTML element; functions among the attributes become listeners, strings among the children become text. */
  const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  let lastId = 0;
  const freshId = (stem) => `${stem}-${++lastId}`;

  /* ---- numbers in words ---- */

  const DASH = "–";
  const missing = (value) => value === null || value === undefined || Number.isNaN(value);
  const minus = (text) => text.replace("-", "−");
  const fixed = (value, places) => (missing(value) ? DASH : minus(value.toFixed(places)));
  const whole = (value) => (missing(value) ? DASH : minus(Math.round(value).toLocaleString("en-US")));
  const percent = (fraction, places = 2) => (missing(fraction) ? DASH : `${fixed(100 * fraction, places)} %`);
  /** A probability that is neither 0 nor 1 never looks like it. */
  function probability(value) {
    if (value > 0 && value < 0.00005) return "< 0.01 %";
    return value < 1 && value >= 0.99995 ? "> 99.99 %" : percent(value);
  }
  const temperatureText = (value) => (missing(value) ? DASH : value.toPrecision(3));
  const short = (value) => (missing(value) ? DASH : minus(String(Number(value.toPrecision(4)))));

  /** A metric's value as the tables print it: `value * factor` with `places` decimals. */
  function metricNumber(metric, value, { signed = false } = {}) {
    if (metric.infinite === true && value === metric.value) return "∞";
    if (missing(value)) return DASH;
    const text = fixed(value * metric.factor, metric.places);
    return signed && value > 0 ? `+${text}` : text;
  }

  const withUnit = (metric, text) => (metric.unit && text !== DASH && text !== "∞" ? `${text} ${metric.unit}` : text);
  const metricText = (metric, value, options) => withUnit(metric, metricNumber(metric, value, options));

  function intervalText(metric, low, high, options) {
    if (missing(low) || missing(high)) return "";
    return `[${metricNumber(metric, low, options)}, ${metricNumber(metric, high, options)}]`;
  }

  function dateText(made) {
    const date = new Date(made);
    if (Number.isNaN(date.getTime())) return String(made);
    const options = {
      day: "numeric",
      month: "long",
      year: "numeric",
      hour: "2-digit",
      minute: "2-digit",
      timeZone: "UTC",
    };
    return `${new Intl.DateTimeFormat("en-GB", options).format(date)} UTC`;
  }

  /* ---- chance ---- */

  /** Φ⁻¹(q): Newton's steps rise to the root without overshooting, since Φ is concave right of 0. */
  function normalQuantile(q) {
    if (q < 0.5) return -normalQuantile(1 - q);
    let z = 0;
    for (let step = 0; step < 60; step++) {
      let term = z,
        sum = z;
      for (let k = 1; Math.abs(term) > 1e-17 && k < 200; k++) sum += term *= (z * z) / (2 * k + 1);
      const density = Math.exp((-z * z) / 2) / Math.sqrt(2 * Math.PI);
      const change = (q - 0.5 - density * sum) / density;
      z += change;
      if (Math.abs(change) < 1e-12) break;
    }
    return z;
  }

  /** The smallest k with P(X ≤ k) ≥ q for X ~ Binomial(n, p), by adding up the probabilities of the rarer outcome. */
  function exactQuantile(q, n, p) {
    const rare = Math.min(p, 1 - p),
      odds = rare / (1 - rare);
    const limit = p <= 0.5 ? q : 1 - q,
      slack = 1e-12;
    let mass = Math.pow(1 - rare, n),
      total = mass,
      k = 0;
    if (p <= 0.5) {
      while (total < limit - slack && k < n) total += mass *= (odds * (n - k)) / ++k;
      return k;
    }
    // X = n − Y: P(X ≤ n − 1 − j) = 1 − P(Y ≤ j), so look for the largest j with P(Y ≤ j) ≤ 1 − q.
    let j = -1;
    while (total <= limit + slack && j < n - 1) {
      j = k;
      total += mass *= (odds * (n - k)) / ++k;
    }
    return n - 1 - j;
  }

  function binomialQuantile(q, n, p) {
    if (!(n > 0) || p <= 0) return 0;
    if (p >= 1) return n;
    const variance = n * p * (1 - p);
    if (variance <= 25) return exactQuantile(q, n, p);
    const z = normalQuantile(q),
      deviation = Math.sqrt(variance),
      skew = (1 - 2 * p) / deviation;
    const place = n * p + deviation * (z + (skew * (z * z - 1)) / 6);
    return Math.min(n, Math.max(0, Math.ceil(place - 0.5)));
  }

  /** Accuracies that a calibrated model would show in a bin, `level` of the time. */
  function consistency(count, said, level = 0.95) {
    const tail = (1 - level) / 2;
    return [tail, 1 - tail].map((q) => binomialQuantile(q, count, said) / count);
  }

  /* ---- bins ---- */

  function decode(text, Kind) {
    const raw = atob(text),
      bytes = new Uint8Array(raw.length);
    for (let place = 0; place < raw.length; place++) bytes[place] = raw.charCodeAt(place);
    return new Kind(bytes.buffer);
  }

  /** Kernel averages over fine bins, the Gaussian reflected at 0 and 1. Drawn as accuracy over confidence, both averages
      of the same samples: over `at`, a calibrated model would leave the diagonal wherever its confidences crowd.
      `samples`, (Σ K)² / Σ K², is how many equally weighted ones would be as certain. */
  function smoothCurve({ count, confidence, correct }, { bandwidth = 0.05, points = 201 } = {}) {
    const curve = { at: [], confidence: [], accuracy: [], samples: [] };
    const filled = [];
    for (let bin = 0; bin < count.length; bin++) {
      if (count[bin] > 0) filled.push([confidence[bin] / count[bin], count[bin], correct[bin]]);
    }
    const kernel = (distance) =>
      Math.abs(distance) > 7 * bandwidth ? 0 : Math.exp(-0.5 * (distance / bandwidth) ** 2);
    for (let place = 0; place < points; place++) {
      const at = place / (points - 1);
      let mass = 0,
        square = 0,
        said = 0,
        right = 0;
      for (const [mean, samples, hits] of filled) {
        const weight = kernel(at - mean) + kernel(at + mean) + kernel(2 - at - mean);
        mass += weight * samples;
        square += weight * weight * samples;
        said += weight * samples * mean;
        right += weight * hits;
      }
      curve.at.push(at);
      curve.confidence.push(mass > 0 ? said / mass : null);
      curve.accuracy.push(mass > 0 ? right / mass : null);
      curve.samples.push(square > 0 ? (mass * mass) / square : 0);
    }
    return curve;
  }

  /** What the document says about one subject at each temperature of its grid. */
  class Profile {
    constructor({ grid, start, nll, best, fine, equal_count: equal }) {
      Object.assign(this, { grid, start, nll, best: best || [], size: fine.bins });
      this.count = decode(fine.count, Uint32Array);
      this.confidence = decode(fine.confidence, Float32Array);
      this.correct = decode(fine.correct, Uint32Array);
      this.equal = new Map(Object.entries(equal.values).map(([m, text]) => [Number(m), decode(text, Float32Array)]));
    }

    /** Index of the grid's temperature nearest to `value` on the logarithmic scale. */
    nearest(value) {
      let best = 0;
      this.grid.forEach((one, index) => {
        if (Math.abs(Math.log(one / value)) < Math.abs(Math.log(this.grid[best] / value))) best = index;
      });
      return best;
    }

    fine(index) {
      const cut = (values) => values.subarray(index * this.size, (index + 1) * this.size);
      return { count: cut(this.count), confidence: cut(this.confidence), correct: cut(this.correct) };
    }

    /** Bins of equal width, made of fine ones: [{low, high, count, said, right}]. */
    widthBins(index, num) {
      const { count, confidence, correct } = this.fine(index),
        each = this.size / num;
      return Array.from({ length: num }, (_, bin) => {
        let n = 0,
          said = 0,
          right = 0;
        for (let place = bin * each; place < (bin + 1) * each; place++) {
          n += count[place];
          said += confidence[place];
          right += correct[place];
        }
        return {
          low: bin / num,
          high: (bin + 1) / num,
          count: n,
          said: n ? said / n : null,
          right: n ? right / n : null,
        };
      });
    }

    countBins(index, num) {
      const values = this.equal.get(num),
        from = index * num * 3;
      return Array.from({ length: num }, (_, bin) => {
        const [count, said, right] = values.subarray(from + 3 * bin, from + 3 * bin + 3);
        return { low: null, high: null, count, said: count ? said : null, right: count ? right : null };
      });
    }

    bins(index, num, binning) {
      return binning === "count" ? this.countBins(index, num) : this.widthBins(index, num);
    }

    ece(index, num, binning) {
      let gap = 0,
        n = 0;
      for (const bin of this.bins(index, num, binning)) {
        if (bin.count > 0) gap += bin.count * Math.abs(bin.right - bin.said);
        n += bin.count;
      }
      return n ? gap / n : null;
    }

    /** Samples, mean confidence and accuracy of those above a confidence that is a multiple of 1/300. */
    above(index, threshold = 0) {
      const { count, confidence, correct } = this.fine(index);
      let n = 0,
        said = 0,
        right = 0,
        all = 0;
      const first = Math.round(threshold * this.size);
      for (let place = 0; place < this.size; place++) {
        all += count[place];
        if (place < first) continue;
        n += count[place];
        said += confidence[place];
        right += correct[place];
      }
      return { count: n, share: all ? n / all : null, said: n ? said / n : null, right: n ? right / n : null };
    }
  }

  /* ---- plots ---- */

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
    bar([x0, x1], [y0, y1], kind, { gap = 1, paint = null } = {}) {
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
        const place = {
          class: `note ${kind}`,
          x: at + (left ? -5 : 5),
          y: box.top + 11 + 14 * row,
          "text-anchor": left ? "end" : "start",
        };
        this.labels.append(s("text", place, label));
      }
      return this;
    }
  }

  /** A hatched fill, by the name to paint with. */
  function hatch(svg) {
    const id = freshId("hatch");
    const stripes = s("path", { class: "line hatch", d: "M-1 7 L7 -1 M-1 1 L1 -1 M5 7 L7 5" });
    svg.append(s("defs", {}, s("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, stripes)));
    return `url(#${id})`;
  }

  /* ---- charts ---- */

  /** A figure that redraws itself to its width. `draw(svg, width)` returns {height, label, items}: what the chart says
      in words, and items [{x, text}] that a pointer or the arrow keys can ask about. */
  function chart({ name, draw, hint = null, most = 640 }) {
    const svg = s("svg", { role: "img", class: "plot", "data-chart": name });
    const readout = h("p", { class: `readout no-print${hint ? " hinted" : ""}`, "aria-live": "polite" });
    const element = h("figure", { class: "chart" }, svg, hint === null ? null : readout);
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
      const drawn = draw(svg, width);
      Object.assign(held, { items: drawn.items || [], top: drawn.top || 0, bottom: drawn.bottom || drawn.height });
      svg.setAttribute("viewBox", `0 0 ${width} ${drawn.height}`);
      svg.setAttribute("aria-label", drawn.label);
      svg.style.maxWidth = `${width}px`;
      if (hint !== null) show(held.at);
    }

    if (hint !== null) inspectable(svg, held, show);
    new ResizeObserver(([entry]) => {
      const width = seen(entry.contentRect.width);
      if (width === held.width || width <= 0) return;
      held.width = width;
      redraw();
    }).observe(element);
    return { element, redraw };
  }

  function inspectable(svg, held, show) {
    svg.setAttribute("tabindex", "0");
    const nearest = (event) => {
      const frame = svg.getBoundingClientRect();
      const at = ((event.clientX - frame.left) / frame.width) * svg.viewBox.baseVal.width;
      let best = 0;
      held.items.forEach((item, place) => {
        if (Math.abs(item.x - at) < Math.abs(held.items[best].x - at)) best = place;
      });
      show(best);
    };
    svg.addEventListener("pointermove", nearest);
    svg.addEventListener("pointerdown", nearest);
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

  /* ---- tables ---- */

  /** A table that sorts by any column. Columns: {key, title, text(row) | cell(row), value(row), numeric, help}.
      Rows without a value come last whichever way it is sorted. */
  function dataTable({ columns, rows, label, sort = null, name = null }) {
    const body = h("tbody"),
      head = h("tr");
    const table = h(
      "table",
      { class: "data", "data-table": name },
      h("caption", { class: "visually-hidden" }, label),
      h("thead", {}, head),
      body,
    );
    const entries = rows.map((row) => ({
      row,
      line: h(
        "tr",
        {},
        columns.map((column) => cellOf(column, row)),
      ),
    }));
    const shown = { order: entries, sort };

    function order(key, descending) {
      const column = columns.find((one) => one.key === key);
      shown.sort = { key, descending };
      shown.order = [...entries].sort((a, b) => compare(column.value(a.row), column.value(b.row), descending));
      body.append(...shown.order.map((entry) => entry.line));
      for (const cell of head.children) {
        const mine = cell.dataset.column === key;
        if (mine) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      }
    }

    for (const column of columns) {
      const click = () => {
        const again = shown.sort && shown.sort.key === column.key;
        order(column.key, again ? !shown.sort.descending : Boolean(column.numeric));
      };
      const button = h(
        "button",
        { type: "button", class: "sorter", title: column.help, click },
        column.title,
        h("span", { class: "arrow", "aria-hidden": "true" }),
      );
      head.append(
        h("th", { scope: "col", "data-column": column.key, class: column.numeric ? "numeric" : null }, button),
      );
    }
    body.append(...entries.map((entry) => entry.line));
    if (sort) order(sort.key, sort.descending);

    /** Show the rows that pass; returns how many do. */
    function filter(passes) {
      let found = 0;
      for (const { row, line } of entries) {
        line.hidden = !passes(row);
        found += line.hidden ? 0 : 1;
      }
      return found;
    }
    return {
      element: h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": label }, table),
      table,
      filter,
      order,
      entries,
    };
  }

  function cellOf(column, row) {
    const content = column.cell ? column.cell(row) : column.text(row);
    const attributes = { class: column.numeric ? "numeric" : null, "data-column": column.key };
    return column.header ? h("th", { ...attributes, scope: "row" }, content) : h("td", attributes, content);
  }

  function compare(a, b, descending) {
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const sign =
      typeof a === "number" && typeof b === "number"
        ? a - b
        : String(a).localeCompare(String(b), "en", { numeric: true });
    return descending ? -sign : sign;
  }

  /** A plain table of texts under a summary that opens it. */
  function numbersTable(summary, heads) {
    const body = h("tbody");
    const head = h(
      "tr",
      {},
      heads.map((text) => h("th", { scope: "col", class: "numeric" }, text)),
    );
    const table = h(
      "div",
      { class: "scroller", tabindex: "0", role: "region", "aria-label": summary },
      h("table", { class: "data" }, h("thead", {}, head), body),
    );
    const write = (rows) =>
      body.replaceChildren(
        ...rows.map((row) =>
          h(
            "tr",
            {},
            row.map((text) => h("td", { class: "numeric" }, text)),
          ),
        ),
      );
    return { element: h("details", { class: "numbers" }, h("summary", {}, summary), table), write };
  }

  /* ---- the frame of a page ---- */

  /** Light, dark, or what the system says; remembered where the browser lets us. */
  function themeSwitch(select) {
    const dark = window.matchMedia("(prefers-color-scheme: dark)"),
      KEY = "calattn-theme";
    const remembered = (action) => {
      try {
        return action(window.localStorage);
      } catch {
        return null; // storage may be forbidden to files opened from disk
      }
    };
    const apply = () => {
      const choice = select.value;
      document.documentElement.dataset.theme = choice === "system" ? (dark.matches ? "dark" : "light") : choice;
    };
    const before = remembered((storage) => storage.getItem(KEY));
    select.value = before === "light" || before === "dark" ? before : "system";
    select.addEventListener("change", () => {
      remembered((storage) => storage.setItem(KEY, select.value));
      apply();
    });
    dark.addEventListener("change", apply);
    apply();
  }

  /** Everything folded is open on paper, and folded again afterwards. */
  function printing(button) {
    let opened = [];
    window.addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll("details:not([open]):not(.no-print)")];
      opened.forEach((one) => one.setAttribute("open", ""));
    });
    window.addEventListener("afterprint", () => opened.forEach((one) => one.removeAttribute("open")));
    button.addEventListener("click", () => window.print());
  }

  function readDocument() {
    const found = JSON.parse(document.getElementById("document").textContent);
    document.getElementById("title").textContent = found.title;
    if (found.schema === 1) return found;
    const text =
      `This page reads documents of schema 1, but got schema ${found.schema}. ` +
      "Write it again with the calattn that made the data.";
    document.getElementById("content").append(h("p", { class: "notice" }, text));
    return null;
  }

  let pending = null;
  /** Tell screen readers, once the reader has stopped moving things. */
  function announce(text) {
    window.clearTimeout(pending);
    pending = window.setTimeout(() => {
      document.getElementById("announcer").textContent = text;
    }, 500);
  }

  window.calattn = {
    h,
    s,
    freshId,
    DASH,
    missing,
    fixed,
    whole,
    percent,
    probability,
    temperatureText,
    short,
    metricText,
    metricNumber,
    intervalText,
    dateText,
    normalQuantile,
    binomialQuantile,
    consistency,
    smoothCurve,
    Profile,
    niceTicks,
    Plot,
    hatch,
    chart,
    legend,
    dataTable,
    numbersTable,
    themeSwitch,
    printing,
    readDocument,
    announce,
  };
})();
