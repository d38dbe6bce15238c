/* ECE and NLL over the temperature, with T* marked. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, percent, missing, temperatureText, view, panel, note } = C;

  /** The top of an axis from zero that shows what matters: NLL at T = 0.1 can be a hundred times the one at T*. */
  function usefulTop(values, start) {
    const known = values.filter((value) => !missing(value));
    if (!known.length) return 1;
    const low = Math.min(...known),
      high = Math.max(...known);
    const first = missing(values[start]) ? low : values[start];
    return (Math.min(high, Math.max(2 * first, 2 * low, low + 3 * (first - low))) || 0.01) * 1.06;
  }

  /** The two curves: by what they are named, and for each subject their values, which text(value) prints on the axis. */
  const CURVES = [
    {
      by: "ECE",
      title: () => `ECE, % (${view.binsText()})`,
      values: (one) => view.profiles.get(one.id).eces(view.bins, view.binning),
      text: (value) => C.short(100 * value),
      last: false,
    },
    {
      by: "NLL",
      title: () => "NLL, nats",
      values: (one) => view.profiles.get(one.id).nll,
      text: C.short,
      last: true,
    },
  ];

  /** Axes of a curve of all subjects, from zero on one scale, with a line at T = 1. */
  function curvePlot(svg, width, height, { title, values, text, last }) {
    const { grid } = view.profiles.get(view.subjects[0].id),
      x = [grid[0], grid.at(-1)];
    const y = [0, Math.max(...view.subjects.map((one) => usefulTop(values(one), view.profiles.get(one.id).start)))];
    const plot = new C.Plot(svg, { width, height, x, y, log: true, above: 24, below: last ? 40 : 20, left: 46 });
    plot.axes({
      xTicks: [0.1, 0.2, 0.5, 1, 2, 5, 10],
      yTicks: C.niceTicks(...y, 4),
      yText: text,
      xLabel: last ? "temperature T" : null,
    });
    return plot.title(title()).rule(1, "faint", null);
  }

  /** A dot where a subject stands on its curve, if that is on the chart. */
  function markHere(plot, subject, values, kind) {
    const { index, temperature } = view.live(subject);
    if (!missing(values[index]) && values[index] <= plot.y[1]) plot.dot(temperature, values[index], kind, 4.5);
  }

  function drawCurve(subject, svg, width, curve) {
    const { profile, index, temperature } = view.live(subject),
      { by, last } = curve,
      values = curve.values(subject);
    const height = (last ? 206 : 178) + (view.several ? 0 : 64);
    const plot = curvePlot(svg, width, height, curve).line(profile.grid, values, "blue");
    const best = by === "ECE" ? lowestOf(profile) : profile.best,
      name = by === "ECE" ? "lowest at" : "T*";
    if (best)
      plot.rule(best.value, "star", `${name} ${temperatureText(best.value)}`, { left: best.value < temperature });
    plot.rule(temperature, "current", null);
    markHere(plot, subject, values, "dot-current");
    const places = (value, infinite) => (by === "ECE" ? percent(value) : view.nllText(subject, value, infinite));
    const items = profile.grid.map((one, k) => ({
      x: plot.px(one),
      value: one,
      text: `T = ${temperatureText(one)}: ${by} ${places(values[k])}.`,
    }));
    const lowest = best ? ` It is lowest near T = ${temperatureText(best.value)}.` : "";
    const said = (k) => places(values[k], "infinite");
    const here = `${said(index)} at T = ${temperatureText(temperature)}`;
    const label = `${curve.title()}: ${said(profile.start)} at T = 1, ${here}.${lowest}`;
    return { height, label, items, plot };
  }

  const lowestOf = (profile) => {
    const index = profile.lowest(view.bins, view.binning);
    return { value: profile.grid[index], least: profile.eces(view.bins, view.binning)[index] };
  };

  /** The two charts that `draw(svg, width, curve)` draws, which T is dragged along. */
  const curveCharts = (stem, draw) =>
    CURVES.map((curve) =>
      C.chart({
        name: stem(curve.by.toLowerCase()),
        hint: "",
        pick: (item) => view.setTemperature(item.value),
        draw: (svg, width) => draw(svg, width, curve),
      }),
    );

  function temperaturePanel(subject) {
    const profile = view.profiles.get(subject.id),
      charts = curveCharts((by) => `${by}-temperature`, (...place) => drawCurve(subject, ...place));
    const { best } = subject.temperature;
    const none = "No T* is marked: no temperature from 0.1 to 10 has the lowest NLL for these predictions.";
    const lowest = note();
    const element = panel(
      "temperature",
      "What would one temperature change?",
      charts.map((one) => one.element),
      h("p", { class: "note-text no-print" }, "Drag along a curve to change T."),
      best ? (profile.best ? starNote(best) : beyondNote(best)) : note(none),
      lowest,
    );
    function update() {
      charts.forEach((one) => one.redraw());
      const { value, least } = lowestOf(profile);
      lowest.textContent =
        `ECE is lowest at T = ${temperatureText(value)} on this curve (${percent(least)}). ` +
        "That T is chosen on the very data it is shown on, so it looks better than it is.";
    }
    return { element, update };
  }

  function starNote(best) {
    const value = `T* = ${temperatureText(best.value)} has the lowest NLL on ${best.fitted_on}.`;
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
        "data-all": "NLL",
        title: `Show all of them at T = ${temperatureText(best.value)}`,
        click: () => view.setTemperature(best.value),
      },
      "use for all",
    );

  const beyondNote = (best) =>
    note(`The lowest NLL lies beyond the curve, at T = ${temperatureText(best.value)} (${best.fitted_on}).`);

  Object.assign(C, { curveCharts, curvePlot, markHere, temperaturePanel });
})();
