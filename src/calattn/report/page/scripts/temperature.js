/* ECE and NLL over the temperature, with T* marked. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, percent, missing, temperatureText, view, panel, note } = C;

  const T_TICKS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50];

  /** The top of an axis from zero that shows what matters: NLL at T = 0.1 can be a hundred times the one at T*. */
  function usefulTop(values, start) {
    const known = values.filter((value) => !missing(value));
    if (!known.length) return 1;
    const low = Math.min(...known),
      high = Math.max(...known);
    const first = missing(values[start]) ? low : values[start];
    return (Math.min(high, Math.max(2 * first, 2 * low, low + 3 * (first - low))) || 0.01) * 1.06;
  }

  function drawCurve(subject, svg, width, { curve, title, text, places, by, last }) {
    const { profile, index, temperature } = view.live(subject),
      values = curve(subject);
    const height = (last ? 206 : 178) + (view.several ? 0 : 64);
    const tops = view.subjects.map((one) => usefulTop(curve(one), view.profiles.get(one.id).start));
    const y = [0, Math.max(...tops)]; // one scale for all
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
    const mine = by === "ECE" ? [lowestOf(profile)] : profile.best.filter((best) => best.by === by);
    for (const best of mine) {
      const name = by === "ECE" ? "lowest at" : "T*";
      plot.rule(best.value, "star", `${name} ${temperatureText(best.value)}`, { left: best.value < temperature });
    }
    plot.rule(temperature, "current", null);
    if (!missing(values[index]) && values[index] <= y[1]) plot.dot(temperature, values[index], "dot-current", 4.5);
    const items = profile.grid.map((one, k) => ({
      x: plot.px(one),
      value: one,
      text: `T = ${temperatureText(one)}: ${by} ${missing(values[k]) ? "∞" : places(values[k])}.`,
    }));
    const stars = mine.map((best) => ` It is lowest near T = ${temperatureText(best.value)}.`).join("");
    const said = (k) => (missing(values[k]) ? "infinite" : places(values[k]));
    const here = `${said(index)} at T = ${temperatureText(temperature)}`;
    const label = `${title}: ${said(profile.start)} at T = 1, ${here}.${stars}`;
    return { height, label, items, top: plot.box.top, bottom: plot.box.bottom };
  }

  const lowestOf = (profile) => {
    const index = profile.lowest(view.bins, view.binning);
    return { by: "ECE", index, value: profile.grid[index], least: profile.eces(view.bins, view.binning)[index] };
  };

  function curveCharts(subject) {
    const ece = () => ({
      curve: (one) => view.profiles.get(one.id).eces(view.bins, view.binning),
      title: `ECE, % (${view.binsText()})`,
      text: (t) => C.short(100 * t),
      places: percent,
      by: "ECE",
      last: false,
    });
    const nll = () => ({
      curve: (one) => view.profiles.get(one.id).nll,
      title: "NLL, nats",
      text: C.short,
      places: (v) => view.nllText(subject, v),
      by: "NLL",
      last: true,
    });
    const pick = (item) => view.setTemperature(item.value);
    const chart = (name, curve) =>
      C.chart({ name, hint: "", pick, draw: (svg, width) => drawCurve(subject, svg, width, curve()) });
    return [chart("ece-temperature", ece), chart("nll-temperature", nll)];
  }

  function temperaturePanel(subject) {
    const profile = view.profiles.get(subject.id),
      charts = curveCharts(subject);
    const beyond = subject.temperature.beyond || [];
    const none = "No T* is marked: no temperature from 0.1 to 10 has the lowest NLL for these predictions.";
    const lowest = note();
    const element = panel(
      "temperature",
      "What would one temperature change?",
      charts.map((one) => one.element),
      h("p", { class: "note-text no-print" }, "Drag along a curve to change T."),
      profile.best.map(starNote),
      beyond.map(beyondNote),
      profile.best.length + beyond.length ? null : note(none),
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
    const value = `T* = ${temperatureText(best.value)} has the lowest ${best.by} on ${best.fitted_on}.`;
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
        title: `Show all of them at T = ${temperatureText(best.value)}`,
        click: () => view.setTemperature(best.value),
      },
      "use for all",
    );

  const beyondNote = (best) =>
    note(`The lowest ${best.by} lies beyond the curve, at T = ${temperatureText(best.value)} (${best.fitted_on}).`);

  Object.assign(C, { T_TICKS, usefulTop, temperaturePanel });
})();
