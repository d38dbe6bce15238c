/* ECE and NLL over the temperature, with T* marked. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, percent, missing, temperatureText, starText, view, panel, note } = C;

  const T_TICKS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50];

  /** The range worth seeing: NLL at T = 0.1 can be a hundred times the one at T*. */
  function usefulRange(values, start) {
    const known = values.filter((value) => !missing(value));
    if (!known.length) return [0, 1];
    const low = Math.min(...known),
      high = Math.max(...known);
    const first = missing(values[start]) ? low : values[start];
    const top = Math.min(high, low + Math.max(3 * (first - low), 0.25 * (high - low)));
    const pad = (top - low) * 0.08 || 0.01;
    return [Math.max(0, low - pad), top + pad];
  }

  function drawCurve(subject, svg, width, { values, title, text, places, by, last }) {
    const { profile, index, temperature } = view.live(subject);
    const height = (last ? 206 : 178) + (view.several ? 0 : 64);
    const y = usefulRange(values, profile.start);
    const ends = [profile.grid[0], profile.grid[profile.grid.length - 1]];
    const plot = new C.Plot(svg, { width, height, x: ends, y, log: true, above: 24, below: last ? 40 : 20, left: 46 });
    const ticks = C.niceTicks(y[0], y[1], 4);
    plot.axes({
      xTicks: T_TICKS.filter((tick) => tick >= ends[0] && tick <= ends[1]),
      yTicks: ticks,
      yText: text,
      xLabel: last ? "temperature T" : null,
    });
    svg.append(C.s("text", { class: "plot-title", x: 46, y: 13 }, title));
    plot.rule(1, "faint", null);
    plot.line(profile.grid, values, "blue");
    const mine = profile.best.filter((best) => best.by === by);
    for (const best of mine)
      plot.rule(best.value, "star", `T* ${starText(best)}`, { left: best.value < temperature });
    plot.rule(temperature, "current", null);
    if (!missing(values[index]) && values[index] <= y[1]) plot.dot(temperature, values[index], "dot-current", 4.5);
    const items = profile.grid.map((one, k) => ({
      x: plot.px(one),
      text: `T = ${temperatureText(one)}: ${by} ${missing(values[k]) ? "∞" : places(values[k])}.`,
    }));
    const stars = mine.map((best) => ` It is lowest near T* = ${starText(best)}.`).join("");
    const said = (k) => (missing(values[k]) ? "infinite" : places(values[k]));
    const here = `${said(index)} at T = ${temperatureText(temperature)}`;
    const label = `${title}: ${said(profile.start)} at T = 1, ${here}.${stars}`;
    return { height, label, items, top: plot.box.top, bottom: plot.box.bottom };
  }

  /** ECE at every temperature of the grid, computed once for each choice of bins. */
  function eceCurves(profile) {
    const memo = new Map();
    return () => {
      const key = `${view.binning} ${view.bins}`;
      const curve = () => profile.grid.map((_, index) => profile.ece(index, view.bins, view.binning));
      if (!memo.has(key)) memo.set(key, curve());
      return memo.get(key);
    };
  }

  function curveCharts(subject) {
    const profile = view.profiles.get(subject.id),
      eces = eceCurves(profile);
    const ece = () => ({
      values: eces(),
      title: `ECE, % (${view.binsText()})`,
      text: (t) => C.short(100 * t),
      places: percent,
      by: "ECE",
      last: false,
    });
    const nll = () => ({
      values: profile.nll,
      title: "NLL, nats",
      text: C.short,
      places: (v) => view.nllText(subject, v),
      by: "NLL",
      last: true,
    });
    const chart = (name, curve) =>
      C.chart({ name, hint: "", draw: (svg, width) => drawCurve(subject, svg, width, curve()) });
    return [chart("ece-temperature", ece), chart("nll-temperature", nll)];
  }

  function temperaturePanel(subject) {
    const { best: stars } = view.profiles.get(subject.id),
      charts = curveCharts(subject);
    const beyond = subject.temperature.beyond || [];
    const none = "No T* is marked: no temperature of the slider is best for these predictions.";
    const element = panel(
      "temperature",
      "What would one temperature change?",
      charts.map((one) => one.element),
      stars.map(starNote),
      beyond.map(beyondNote),
      stars.length + beyond.length ? null : note(none),
    );
    return { element, update: () => charts.forEach((one) => one.redraw()) };
  }

  function starNote(best) {
    const value = `T* = ${starText(best)} has the lowest ${best.by} on ${best.fitted_on}.`;
    const all = view.several ? [" ", useForAll(best)] : null;
    if (best.fitted_on !== "these predictions")
      return note(`${value} It was chosen without the samples shown here.`, all);
    return note(
      h("strong", {}, value),
      " It was chosen on the very data it is shown on, so it looks better than it is.",
      all,
    );
  }

  const useForAll = (best) =>
    h(
      "button",
      {
        type: "button",
        class: "small no-print",
        "data-all": best.by,
        title: `Show all of them at T = ${starText(best)}`,
        click: () => view.setTemperature(best.value),
      },
      "use for all",
    );

  const beyondNote = (best) =>
    note(`The lowest ${best.by} lies beyond the slider, at T = ${starText(best)} (${best.fitted_on}).`);

  Object.assign(C, { temperaturePanel });
})();
