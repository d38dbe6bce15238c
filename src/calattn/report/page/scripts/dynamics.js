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
    const [title, factor] = PANELS[name] || [name, 1],
      { epoch } = dynamics;
    const series = dynamics.series.filter((one) => one.panel === name);
    const known = series.flatMap((one) => one.values.filter((value) => !missing(value)));
    const low = Math.min(...known),
      high = Math.max(...known),
      pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.1;
    const first = epoch[0],
      last = epoch[epoch.length - 1],
      height = 210;
    const plot = new C.Plot(svg, {
      width,
      height,
      left: 46,
      above: 26,
      x: [first, last > first ? last : first + 1],
      y: [low - pad, high + pad],
    });
    const ticks = C.niceTicks(first, Math.max(last, first + 1), 6).filter(Number.isInteger);
    plot.axes({
      xTicks: ticks,
      yTicks: C.niceTicks(low - pad, high + pad, 4),
      yText: (t) => C.short(factor * t),
      xLabel: "epoch",
    });
    svg.append(C.s("text", { class: "plot-title", x: 46, y: 13 }, title));
    (dynamics.marks || []).forEach((mark, k) => plot.rule(mark.epoch, "mark", mark.label, { row: k % 3 }));
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
    return {
      height,
      label: `${title} over ${epoch.length} epochs: ${ends.join("; ")}.`,
      items,
      top: plot.box.top,
      bottom: plot.box.bottom,
    };
  }

  function dynamicsPanel(subject) {
    const { dynamics } = subject,
      title = "Training";
    if (!dynamics) return absent("dynamics", title);
    const full = dynamics.series.filter((one) => one.values.some((value) => !missing(value)));
    const shown = { ...dynamics, series: full };
    const charts = [...new Set(full.map((one) => one.panel))].map((name) => {
      const one = C.chart({
        name: `dynamics-${name}`,
        hint: "",
        draw: (svg, width) => drawDynamics(shown, name, svg, width),
      });
      const entries = full
        .filter((series) => series.panel === name)
        .map((series, k) => [`key-${COLOURS[k % COLOURS.length]}`, series.name]);
      return h("div", {}, one.element, C.legend(entries));
    });
    return { element: panel("dynamics", title, h("div", { class: "pair" }, charts)) };
  }

  Object.assign(C, { dynamicsPanel });
})();
