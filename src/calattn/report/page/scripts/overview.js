/* Several sets of predictions at a glance: one reliability chart, one temperature chart, and a table with a small diagram each. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, s, percent, missing, temperatureText, view } = C;

  const STYLES = ["blue", "orange", "green", "purple", "sky", "ink"];
  const styleOf = (place) => STYLES[place % STYLES.length];
  const ENOUGH = 20;

  const key = () => C.legend(view.subjects.map((one, place) => [`key-${styleOf(place)}`, one.title]));

  /** The smooth curve where enough samples lie, and null elsewhere. */
  function curveOf(subject) {
    const { profile, index } = view.live(subject),
      curve = C.smoothCurve(profile.fine(index));
    const enough = Math.min(ENOUGH, Math.max(...curve.samples));
    return { x: curve.confidence, y: curve.accuracy.map((y, k) => (curve.samples[k] < enough ? null : y)) };
  }

  function drawOverlay(svg, width) {
    const side = Math.min(width, 460),
      words = view.words(view.subjects[0]);
    const plot = new C.Plot(svg, { width, height: side, left: 46 });
    const quarters = [0, 0.25, 0.5, 0.75, 1],
      text = (tick) => `${100 * tick}`;
    const axis = { xTicks: quarters, yTicks: quarters, xText: text, yText: text };
    plot.axes({ ...axis, xLabel: `${words.confidence}, %`, yLabel: `${words.rate}, %` });
    plot.segment([0, 0], [1, 1], "diagonal");
    view.subjects.forEach((subject, place) => {
      const { x, y } = curveOf(subject);
      plot.line(x, y, "overlay-rim").line(x, y, styleOf(place));
    });
    const said = view.subjects.map((one) => {
      const { said, right, ece } = view.live(one);
      return `${one.title}: ${words.mean} ${percent(said, 1)}, ${words.share} ${percent(right, 1)}, ECE ${percent(ece)}`;
    });
    return { height: side, label: `Reliability of all as smooth curves. ${said.join("; ")}.`, items: [] };
  }

  /** One curve of every subject over the temperature, all on one scale from zero. */
  function drawTemperatures(svg, width, { title, values, text, last }) {
    const all = view.subjects.map((one) => ({ ...view.live(one), values: values(one) }));
    const top = Math.max(...all.map((one) => C.usefulTop(one.values, one.profile.start)));
    const grid = all[0].profile.grid,
      x = [grid[0], grid[grid.length - 1]];
    const height = last ? 236 : 208;
    const plot = new C.Plot(svg, {
      width, height, x, y: [0, top], log: true, above: 24, below: last ? 40 : 20, left: 46,
    });
    plot.axes({
      xTicks: C.T_TICKS.filter((tick) => tick >= x[0] && tick <= x[1]),
      yTicks: C.niceTicks(0, top, 4),
      yText: text,
      xLabel: last ? "temperature T" : null,
    });
    svg.append(s("text", { class: "plot-title", x: 46, y: 13 }, title));
    plot.rule(1, "faint", null);
    all.forEach((one, place) => {
      plot.line(one.profile.grid, one.values, styleOf(place));
      const here = one.values[one.index];
      if (!missing(here) && here <= top) plot.dot(one.temperature, here, `overlay-dot dot-${styleOf(place)}`, 4.5);
    });
    const items = grid.map((one) => ({
      x: plot.px(one),
      value: one,
      text: `T = ${temperatureText(one)}: ${all
        .map((each, k) => `${view.subjects[k].title} ${text(each.values[each.profile.nearest(one)])}`)
        .join(", ")}.`,
    }));
    const label = `${title} of all over the temperature.`;
    return { height, label, items, top: plot.box.top, bottom: plot.box.bottom };
  }

  /** A reliability diagram of a thumb's size. */
  function thumbnail() {
    const svg = s("svg", { class: "thumb", viewBox: "0 0 56 56", role: "img" });
    const update = (subject, place) => {
      const { x, y } = curveOf(subject),
        plot = new C.Plot(svg, { width: 56, height: 56, left: 2, right: 2, above: 2, below: 2 });
      svg.replaceChildren(plot.back, plot.inside);
      plot.inside.removeAttribute("clip-path");
      plot.inside.append(s("rect", { class: "thumb-frame", x: 2, y: 2, width: 52, height: 52 }));
      plot.segment([0, 0], [1, 1], "diagonal").line(x, y, styleOf(place));
      svg.setAttribute("aria-label", `Small reliability diagram of ${subject.title}`);
    };
    return { svg, update };
  }

  function overviewRow(subject, place) {
    const thumb = thumbnail(),
      cells = ["verdict", "temperature", "accuracy", "ece", "nll", "brier"].map((name) => h("td", { "data-live": name }));
    cells.slice(1).forEach((cell) => cell.classList.add("numeric"));
    const unfold = () => document.getElementById(`subject-${subject.id}`).parentElement.setAttribute("open", "");
    const link = h("a", { href: `#subject-${subject.id}`, click: unfold }, C.breakable(subject.title));
    const line = h("tr", { "data-overview": subject.id }, h("th", { scope: "row" }, link), h("td", {}, thumb.svg), cells);
    function update() {
      const { word, temperature, right, ece, nll, brier } = view.live(subject);
      thumb.update(subject, place);
      const texts = [word, temperatureText(temperature), percent(right), percent(ece), view.nllText(subject, nll), percent(brier)];
      const values = [null, temperature, right, ece, nll, brier];
      cells.forEach((cell, k) => {
        cell.textContent = texts[k];
        if (k) cell.setAttribute("data-value", missing(values[k]) ? "" : String(values[k]));
      });
    }
    return { line, update };
  }

  function overviewTable() {
    const rows = view.subjects.map(overviewRow),
      words = view.words(view.subjects[0]);
    const heads = ["", "Diagram", "Verdict", "T", `${words.share}`, "ECE", "NLL", "Brier"];
    const head = heads.map((text, k) => h("th", { scope: "col", class: k > 2 ? "numeric" : null }, text));
    const table = h(
      "table",
      { class: "data", "data-table": "overview" },
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, rows.map((row) => row.line)),
    );
    const element = h(
      "div",
      { class: "panel panel-overview", "data-panel": "overview" },
      h("h3", {}, "All at a glance"),
      C.scroller(table, { label: "All at a glance" }),
    );
    return { element, update: () => rows.forEach((row) => row.update()) };
  }

  function overviewSection() {
    const table = view.subjects.length > 2 ? overviewTable() : null;
    const pick = (item) => view.setTemperature(item.value);
    const reliability = C.chart({ name: "overlay", most: 480, draw: drawOverlay });
    const curve = (name, options) =>
      C.chart({ name, hint: "", pick, draw: (svg, width) => drawTemperatures(svg, width, options()) });
    const ece = curve("overlay-ece", () => ({
      title: `ECE, % (${view.binsText()})`,
      values: (one) => view.profiles.get(one.id).eces(view.bins, view.binning),
      text: (value) => (missing(value) ? "∞" : C.short(100 * value)),
    }));
    const nll = curve("overlay-nll", () => ({
      title: "NLL, nats",
      values: (one) => view.profiles.get(one.id).nll,
      text: (value) => (missing(value) ? "∞" : C.short(value)),
      last: true,
    }));
    const words = view.words(view.subjects[0]);
    const pair = h(
      "div",
      { class: "pair" },
      h("div", {}, h("h3", {}, `Does ${words.it} match the ${words.rate}?`), reliability.element, key()),
      h("div", {}, h("h3", {}, "What would one temperature change?"), ece.element, nll.element),
    );
    const element = h(
      "section",
      { class: "overview", "aria-label": "Overview" },
      table ? table.element : null,
      h("div", { class: "panel panel-overlay", "data-panel": "overlay" }, pair),
    );
    function update() {
      if (table) table.update();
      for (const one of [reliability, ece, nll]) one.redraw();
    }
    return { element, update };
  }

  Object.assign(C, { overviewSection });
})();
