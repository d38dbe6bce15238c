/* Several sets of predictions at a glance: one reliability chart, one temperature chart, and a table with a small diagram each. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, s, percent, missing, temperatureText, view } = C;

  const STYLES = ["blue", "orange", "green", "purple", "sky", "ink"];
  const styleOf = (place) => STYLES[place % STYLES.length];

  const curveOf = (subject) => C.smoothCurve(view.profiles.get(subject.id).fine(view.at.get(subject.id)));
  const key = () => C.legend(view.subjects.map((one, place) => [`key-${styleOf(place)}`, one.title]));

  function drawOverlay(svg, width) {
    const side = Math.min(width, 460),
      words = view.words(view.subjects[0]);
    const plot = new C.Plot(svg, { width, height: side, left: 46 });
    const axis = { xTicks: C.QUARTERS, yTicks: C.QUARTERS, xText: C.hundredth, yText: C.hundredth };
    plot.axes({ ...axis, xLabel: `${words.confidence}, %`, yLabel: `${words.rate}, %` });
    plot.segment([0, 0], [1, 1], "diagonal");
    view.subjects.forEach((subject, place) => {
      const { xs, ys } = curveOf(subject);
      plot.line(xs, ys, "overlay-rim").line(xs, ys, styleOf(place));
    });
    const said = view.subjects.map((one) => {
      const { said, right, ece } = view.live(one);
      return `${one.title}: ${words.mean} ${percent(said, 1)}, ${words.share} ${percent(right, 1)}, ECE ${percent(ece)}`;
    });
    return { height: side, label: `Reliability of all as smooth curves. ${said.join("; ")}.`, items: [] };
  }

  /** One curve of every subject over the temperature. */
  function drawTemperatures(svg, width, curve) {
    const height = curve.last ? 236 : 208,
      plot = C.curvePlot(svg, width, height, curve),
      title = curve.title();
    const all = view.subjects.map((one) => ({ one, profile: view.profiles.get(one.id), values: curve.values(one) }));
    all.forEach(({ one, profile, values }, place) => {
      plot.line(profile.grid, values, styleOf(place));
      C.markHere(plot, one, values, `overlay-dot dot-${styleOf(place)}`);
    });
    const said = ({ one, profile, values }, temperature) => {
      const value = values[profile.nearest(temperature)];
      return `${one.title} ${missing(value) ? "∞" : curve.text(value)}`;
    };
    const items = all[0].profile.grid.map((value) => ({
      x: plot.px(value),
      value,
      text: `T = ${temperatureText(value)}: ${all.map((each) => said(each, value)).join(", ")}.`,
    }));
    return { height, label: `${title} of all over the temperature.`, items, plot };
  }

  /** A reliability diagram of a thumb's size. */
  function thumbnail() {
    const svg = s("svg", { class: "thumb", viewBox: "0 0 56 56", role: "img" });
    const update = (subject, place) => {
      const { xs, ys } = curveOf(subject),
        plot = new C.Plot(svg, { width: 56, height: 56, left: 2, right: 2, above: 2, below: 2 });
      svg.replaceChildren(plot.back, plot.inside);
      plot.inside.removeAttribute("clip-path");
      plot.inside.append(s("rect", { class: "thumb-frame", x: 2, y: 2, width: 52, height: 52 }));
      plot.segment([0, 0], [1, 1], "diagonal").line(xs, ys, styleOf(place));
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
      const { verdict, temperature, right, ece, nll, brier } = view.live(subject);
      thumb.update(subject, place);
      const texts = [verdict.words, temperatureText(temperature), percent(right), percent(ece), view.nllText(subject, nll), percent(brier)];
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
    const label = "All at a glance",
      heads = C.headsOf(["", "Diagram", "Verdict", "T", words.share, "ECE", "NLL", "Brier"], 3);
    const element = h(
      "div",
      { class: "panel panel-overview", "data-panel": "overview" },
      h("h3", {}, label),
      C.plainTable({ name: "overview", label, heads, lines: rows.map((row) => row.line) }),
    );
    return { element, update: () => rows.forEach((row) => row.update()) };
  }

  function overviewSection() {
    const table = view.subjects.length > 2 ? overviewTable() : null;
    const reliability = C.chart({ name: "overlay", most: 480, draw: drawOverlay });
    const curves = C.curveCharts((by) => `overlay-${by}`, drawTemperatures);
    const words = view.words(view.subjects[0]);
    const pair = h(
      "div",
      { class: "pair" },
      h("div", {}, h("h3", {}, `Does ${words.it} match the ${words.rate}?`), reliability.element, key()),
      h("div", {}, h("h3", {}, "What would one temperature change?"), curves.map((one) => one.element)),
    );
    const element = h(
      "section",
      { class: "overview", "aria-label": "Overview" },
      table ? table.element : null,
      h("div", { class: "panel panel-overlay", "data-panel": "overlay" }, pair),
    );
    function update() {
      if (table) table.update();
      for (const one of [reliability, ...curves]) one.redraw();
    }
    return { element, update };
  }

  Object.assign(C, { overviewSection });
})();
