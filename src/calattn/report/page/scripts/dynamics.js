/* The dynamics of training: a small chart for each kind of series. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, missing, panel, absent } = C;

  const COLOURS = ["blue", "orange", "green", "purple", "sky", "ink"];
  const PANELS = {
    loss: ["Loss", 1],
    accuracy: ["Accuracy, %", 100],
    calibration: ["Calibration, %", 100],
    scale: ["1/s, mean", 1],
    scale_cv: ["s, coefficient of variation", 1],
  };

  function drawDynamics(dynamics, name, svg, width) {
    const [title, factor] = PANELS[name],
      { epoch } = dynamics;
    const series = dynamics.series.filter((one) => one.panel === name);
    const known = series.flatMap((one) => one.values.filter((value) => !missing(value)));
    const y = [0, 1.06 * Math.max(...known) || 0.1],
      x = [epoch[0], Math.max(epoch.at(-1), epoch[0] + 1)],
      height = 210;
    const plot = new C.Plot(svg, { width, height, left: 46, above: 24, x, y }).title(title);
    plot.axes({
      xTicks: C.niceTicks(...x, 6).filter(Number.isInteger),
      yTicks: C.niceTicks(...y, 4),
      yText: (t) => C.short(factor * t),
      xLabel: "epoch",
    });
    dynamics.marks.forEach((mark, k) => plot.rule(mark.epoch, "mark", mark.label, { row: k % 3 }));
    series.forEach((one, k) => plot.line(epoch, one.values, COLOURS[k % COLOURS.length]));
    const value = (one, k) => `${one.name} ${missing(one.values[k]) ? C.DASH : C.short(factor * one.values[k])}`;
    const items = epoch.map((at, k) => ({
      x: plot.px(at),
      text: `Epoch ${at}: ${series.map((one) => value(one, k)).join(", ")}.`,
    }));
    const ends = series.map((one) => {
      const there = one.values.filter((each) => !missing(each)).map((each) => C.short(factor * each));
      return `${one.name} from ${there[0]} to ${there[there.length - 1]}`;
    });
    return { height, label: `${title} over ${epoch.length} epochs: ${ends.join("; ")}.`, items, plot };
  }

  function dynamicsPanel(subject) {
    const { dynamics } = subject,
      title = "Training";
    if (!dynamics) return absent("dynamics", title);
    const charts = [...new Set(dynamics.series.map((one) => one.panel))].map((name) => {
      const draw = (svg, width) => drawDynamics(dynamics, name, svg, width);
      const one = C.chart({ name: `dynamics-${name}`, hint: "", draw });
      const entries = dynamics.series
        .filter((series) => series.panel === name)
        .map((series, k) => [`key-${COLOURS[k % COLOURS.length]}`, series.name]);
      return h("div", {}, one.element, C.legend(entries));
    });
    return { element: panel("dynamics", title, h("div", { class: "pair" }, charts)) };
  }

  Object.assign(C, { dynamicsPanel });
})();
